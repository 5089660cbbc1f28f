"""``asyncloader convert``: make shards in another format or size, with fewer fields; or from files."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict

from ..quantity import bytes_text as size_of
from ..tools.convert import convert
from .arguments import add_columns, add_shards, columns_of, storage_options
from .printing import counted, print_json, print_lines

HELP = (
    "Write shards from other shards, or from a folder of files (named without / at its end): files "
    "whose paths are equal up to the first dot of the name become one sample. If the command is killed, "
    "repeat it: it writes the missing shards. The result does not depend on the number of processes."
)

# Options with the same name in Python.
_SAME = ("to", "shard_size", "samples_per_shard", "decode", "labels", "shuffle", "num_workers", "overwrite")
_OF_SOURCES = ("format", "delimiter", "block_size", "index")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shards(parser)
    parser.add_argument(
        "output", metavar="OUT", help="folder, or prefix of an object store; empty, or of the same command"
    )
    parser.add_argument(
        "--to",
        default="tar",
        metavar="FORMAT",
        help="parquet, tar or jsonl; tar and jsonl also with .gz, .zst, .xz or .bz2 (default: tar)",
    )
    parser.add_argument(
        "--shard-size",
        default="256MB",
        metavar="SIZE",
        help="approximate size of a shard before compression (default: 256MB)",
    )
    parser.add_argument(
        "--samples-per-shard",
        type=int,
        metavar="N",
        help="maximum number of samples per shard, in place of a size; for files, in addition to it",
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
        help="decode the fields of a tar by their extension, such as txt, json, cls (always done for jsonl)",
    )
    parser.add_argument(
        "--labels",
        action="store_true",
        help="use the folders in a folder of files as classes: each sample gets the name of its class as "
        "label.txt and its number as cls",
    )
    order = parser.add_mutually_exclusive_group()
    order.add_argument(
        "--shuffle",
        type=int,
        metavar="SEED",
        help="write all samples in a random order (default: seed 0 for files; shards keep their order). "
        "Shuffling shards takes disk space for all samples",
    )
    order.add_argument(
        "--no-shuffle",
        dest="shuffle",
        action="store_false",
        default=None,
        help="keep files in the order of their paths. If folders are classes, each shard then has one class",
    )
    parser.add_argument("--index", metavar="URL", help="index of the source shards, if it is not beside them")
    parser.add_argument(
        "--num-workers",
        type=int,
        metavar="N",
        help="number of processes; 0 for this one (default: one per processor, up to 8)",
    )
    parser.add_argument("--overwrite", action="store_true", help="remove shards of another call from OUT")


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
        f"{size_of(done.stored_bytes)} from {size_of(done.source_bytes)} in {done.elapsed_s:.1f} s"
    )
    if before:
        line += f"; {counted(before, 'shard')} existed before"
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
            raise ValueError(f"--types should be NAME=TYPE,NAME=TYPE and so on, but got {each!r}")
        types[name] = kind
    return types
