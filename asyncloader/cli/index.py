"""``asyncloader index``: make the index of existing shards."""

from __future__ import annotations

import argparse

from ..pipeline.folders import is_folder
from ..shards.expectations import Expected
from ..shards.index_building import Measured, open_index
from ..stores.urls import INDEX_NAME, redact
from .arguments import add_concurrency, add_shards, named_shards
from .printing import counted, print_json, print_lines, seen

HELP = (
    "Read each shard once, and write its length, digests, number of samples and offsets to an index. If the "
    "command is killed, repeat it: finished shards are not read a second time. If a shard is bad, no index "
    "is written and the exit status is 1."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shards(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="INDEX",
        help=f"path of the index (default: {INDEX_NAME} in the folder of the shards, if it is a local one)",
    )
    parser.add_argument(
        "--idx",
        action="store_true",
        help="do not read shards: take counts and offsets from the .idx file beside each tar, which wds2idx "
        "writes",
    )
    add_concurrency(parser)


def run(asked: argparse.Namespace) -> int:
    if is_folder(asked.format, asked.block_size):
        raise ValueError(f"folders of format {asked.format!r} have an index.json, and need no other index")
    with open_index(named_shards(asked), asked.output, asked.concurrency, idx=asked.idx) as index:
        shards = seen(index.measured, "index", index.count, _line, as_json=asked.json)
        found = [outcome for _, outcome in shards if isinstance(outcome, Expected)]
        bad = index.count - len(found)
        if not bad:
            index.write(found)
        if asked.json:
            rows = [*map(_row, shards)]
            print_json({"index": None if bad else index.path, "bad": bad, "shards": rows})
        elif bad:
            print_lines(f"{bad} of {counted(index.count, 'shard')} bad: no index was written")
        else:
            empty = sum(expected.size_bytes == 0 for expected in found)
            note = f"; {empty} without a sample" if empty else ""
            print_lines(f"wrote {index.path}: {counted(index.count, 'shard')}{note}")
        return 1 if bad else 0


def _row(shard: Measured) -> dict[str, str | int | None]:
    url, found = redact(shard[0]), shard[1]
    if isinstance(found, Expected):
        return {"shard": url, "samples": found.samples, "size_bytes": found.size_bytes, "error": None}
    return {"shard": url, "samples": None, "size_bytes": None, "error": str(found)}


def _line(shard: Measured) -> str:
    row = _row(shard)
    if row["error"] is not None:
        return f"BAD {row['shard']}: {row['error']}"
    return f"{row['shard']}: {row['samples']} samples, {row['size_bytes']} bytes"
