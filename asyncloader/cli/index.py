"""``asyncloader index``: make the index of shards that exist."""

from __future__ import annotations

import argparse

from ..pipeline.folders import is_folder
from ..shards.expectations import Expected
from ..shards.index_building import open_index
from ..shards.index_survey import Measured
from ..stores.urls import INDEX_NAME, redact
from .arguments import add_concurrency, add_json, add_shards, storage_options
from .printing import counted, print_json, print_lines, seen

HELP = (
    "Read each shard once and write to an index its length, digests and number of samples, and where to "
    "begin inside of it. A run that was killed goes on where it was. The exit status is 1 if a shard is bad; "
    "then nothing is written."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shards(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="INDEX",
        help=f"path of the index; {INDEX_NAME} beside the shards if they are files of one folder",
    )
    parser.add_argument(
        "--idx",
        action="store_true",
        help="take counts and offsets from the .idx beside each tar, as wds2idx writes it; read no shard",
    )
    add_concurrency(parser)
    add_json(parser)


def run(asked: argparse.Namespace) -> int:
    if is_folder(asked.format, asked.block_size):
        raise ValueError(
            f"format {asked.format!r} is of folders whose index.json is their index: there is none to make"
        )
    with open_index(
        asked.urls,
        output=asked.output,
        format=asked.format,
        delimiter=asked.delimiter,
        storage_options=storage_options(asked),
        concurrency=asked.concurrency,
        idx=asked.idx,
    ) as index:
        shards = seen(index.measured, "index", index.count, _line, as_json=asked.json)
        found = [outcome for _, outcome in shards if isinstance(outcome, Expected)]
        bad = index.count - len(found)
        if not bad:
            index.write(found)
        if asked.json:
            rows = [*map(_row, shards)]
            print_json({"index": None if bad else index.path, "bad": bad, "shards": rows})
        elif bad:
            print_lines(f"{bad} of {counted(index.count, 'shard')} bad; no index was written")
        else:
            empty = sum(expected.size_bytes == 0 for expected in found)
            told = f"; {empty} empty, without a sample" if empty else ""
            print_lines(f"{index.path}: {counted(index.count, 'shard')}{told}")
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
    told = f"{row['shard']}: {row['samples']} samples, {row['size_bytes']} bytes"
    return told if row["size_bytes"] else f"{told}: it is empty"
