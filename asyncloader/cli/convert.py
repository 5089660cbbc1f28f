"""``asyncloader convert``: make shards in another format or size, with fewer fields; or from files."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict

from ..quantity import bytes_text as size_of
from ..tools.convert import convert
from .arguments import add_columns, add_json, add_shards, columns_of, storage_options
from .printing import counted, print_json, print_lines

HELP = (
    "Make shards from other shards, or from the files of a folder, named without / at its end: files with "
    "the same path up to the first dot of their names are one sample. If the command is killed, repeat it to "
    "make the missing shards. The result does not depend on the number of processes."
)

# Options with the same name in Python.
_SAME = ("to", "shard_size", "samples_per_shard", "decode", "labels", "shuffle", "num_workers", "overwrite")
_OF_SOURCES = ("format", "delimiter", "block_size", "index")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shards(parser)
    parser.add_argument(
        "output", metavar="OUT", help="a folder, or a prefix of an object store, empty or of the same command"
    )
    parser.add_argument(
        "--to",
        default="tar",
        metavar="FORMAT",
        help="tar or jsonl, with .gz, .zst, .xz or .bz2 after it to compress; or parquet; tar by default",
    )
    parser.add_argument(
        "--shard-size",
        default="256MB",
        metavar="SIZE",
        help="approximate size of a shard, before compression; 256MB by default",
    )
    parser.add_argument(
        "--samples-per-shard",
        type=int,
        metavar="N",
        help="the most samples of a shard, in place of a size; for files, in addition to it",
    )
    add_columns(parser)
    parser.add_argument(
        "--types",
        metavar="NAME=TYPE,...",
        help="convert the text of fields, such as that of CSV, to int, float, bool, str or json",
    )
    parser.add_argument(
        "--decode",
        action="store_true",
        help="decode a tar's fields by their extension, such as txt, json, cls; jsonl always does",
    )
    parser.add_argument(
        "--labels",
        action="store_true",
        help="use the folders in a folder of files as classes: samples get their names as label.txt, their "
        "numbers as cls",
    )
    order = parser.add_mutually_exclusive_group()
    order.add_argument(
        "--shuffle",
        type=int,
        metavar="SEED",
        help="write all samples in the random order of SEED. Shards keep their order by default; to shuffle "
        "them takes disk space for all samples. Files are shuffled by default, with seed 0",
    )
    order.add_argument(
        "--no-shuffle",
        dest="shuffle",
        action="store_false",
        default=None,
        help="keep the order of paths of files. If folders are classes, it makes shards of one class each",
    )
    parser.add_argument("--index", metavar="URL", help="index of the sources, if it is not beside them")
    parser.add_argument(
        "--num-workers",
        type=int,
        metavar="N",
        help="processes; by default one for each processor, up to 8; 0 for this one",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="remove the shards that another call has left in OUT"
    )
    add_json(parser)


def run(asked: argparse.Namespace) -> int:
    done = convert(
        asked.urls,
        asked.output,
        columns=columns_of(asked),
        types=_types(asked.types),
        storage_options=storage_options(asked),
        progress=sys.stderr.isatty(),
        **{name: getattr(asked, name) for name in _SAME + _OF_SOURCES},
    )
    if asked.json:
        print_json(asdict(done))
        return 0
    before = done.shards - done.made
    line = (
        f"{done.output}: {counted(done.samples, 'sample')} in {counted(done.shards, 'shard')}, "
        f"{size_of(done.stored_bytes)} from {size_of(done.source_bytes)}"
    )
    if before:
        line += f"; {before:,} existed"
    else:
        line += f"; {done.elapsed_s:.1f} s, {size_of(done.source_bytes / max(done.elapsed_s, 1e-9))}/s"
    if done.shuffle is not None:
        line += f"; shuffled with seed {done.shuffle}"
    if done.hidden_files:
        line += f"; {counted(done.hidden_files, 'hidden file')} left out"
    print_lines(line)
    return 0


def _types(given: str | None) -> dict[str, str]:
    """The types of fields by name, as ``--types`` names them."""
    types = {}
    for each in [] if given is None else given.split(","):
        name, equals, kind = each.partition("=")
        if not (name and equals):
            raise ValueError(f"--types should be NAME=TYPE with commas between, but has {each!r}")
        types[name] = kind
    return types
