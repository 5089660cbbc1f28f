"""``asyncloader convert``: shards of another form, another size, with fewer fields."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from typing import Any

from ..converting.convert import Converted, convert
from ..quantity import bytes_text as size_of
from .arguments import add_columns, add_json, add_shards, columns_of, storage_options
from .printing import counted, print_json, print_lines

HELP = (
    "Make shards of other shards, with a manifest that is their index. A run that was killed goes on where "
    "it was when the command is given again; how many processes work makes no difference to what is written."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shards(parser)
    add_output(parser)
    add_columns(parser)
    parser.add_argument(
        "--types",
        metavar="NAME=TYPE,...",
        help="what the text of fields becomes, such as that of CSV: int, float, bool, str or json",
    )
    parser.add_argument(
        "--shuffle",
        type=int,
        metavar="SEED",
        help="write all samples in a random order that SEED draws, which takes room for all of them aside; "
        "by default they keep their order",
    )
    parser.add_argument("--manifest", metavar="URL", help="of the sources, if it is not found beside them")
    add_json(parser)


def add_output(parser: argparse.ArgumentParser) -> None:
    """What is written, where, and by how many; also of ``pack``."""
    parser.add_argument(
        "output", metavar="OUT", help="a folder, or a prefix of an object store, empty or of this command"
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
        help="about how large a shard is, before compression; 256MB by default",
    )
    parser.add_argument(
        "--samples-per-shard", type=int, metavar="N", help="the most samples of a shard, in place of a size"
    )
    parser.add_argument(
        "--decode",
        action="store_true",
        help="make values of a tar's fields by their extension, such as txt, json, cls; jsonl always does",
    )
    parser.add_argument(
        "--num-workers",
        type=int,
        metavar="N",
        help="processes; as many as there are processors, of up to 8; 0 for this one",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="remove the shards that another call has left in OUT"
    )


def run(asked: argparse.Namespace) -> int:
    done = convert(
        asked.urls,
        asked.output,
        columns=columns_of(asked),
        types=_types(asked.types),
        format=asked.format,
        delimiter=asked.delimiter,
        block_size=asked.block_size,
        manifest=asked.manifest,
        **output_options(asked),
    )
    say(done, asked.json)
    return 0


def output_options(asked: argparse.Namespace) -> dict[str, Any]:
    """The options of what is written, by their names in Python; also of ``pack``."""
    names = ("to", "shard_size", "samples_per_shard", "decode", "shuffle", "num_workers", "overwrite")
    given = {name: getattr(asked, name) for name in names}
    return {**given, "storage_options": storage_options(asked), "progress": sys.stderr.isatty()}


def say(done: Converted, as_json: bool) -> None:
    """What was made; also by ``pack``."""
    if as_json:
        print_json(asdict(done))
        return
    before = done.shards - done.made
    line = (
        f"{done.output}: {counted(done.samples, 'sample')} in {counted(done.shards, 'shard')}, "
        f"{size_of(done.stored_bytes)} from {size_of(done.source_bytes)}"
    )
    if before:
        line += f"; {before:,} were there"
    else:
        line += f"; {done.elapsed_s:.1f} s, {size_of(done.source_bytes / max(done.elapsed_s, 1e-9))}/s"
    if done.shuffle is not None:
        line += f"; shuffled with seed {done.shuffle}"
    if done.hidden_files:
        line += f"; {counted(done.hidden_files, 'hidden file')} left out"
    print_lines(line)


def _types(given: str | None) -> dict[str, str]:
    """The types of fields by name, as ``--types`` names them."""
    types = {}
    for each in [] if given is None else given.split(","):
        name, equals, kind = each.partition("=")
        if not (name and equals):
            raise ValueError(f"--types should be NAME=TYPE with commas between, but has {each!r}")
        types[name] = kind
    return types
