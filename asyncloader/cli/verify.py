"""``asyncloader verify``: check shards against their index."""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager
from dataclasses import asdict
from functools import partial

from ..pipeline.folders import is_folder
from ..shards.index_survey import Verified, Verifying, open_verifying, open_verifying_by_index
from ..stores.urls import INDEX_NAME
from .arguments import add_concurrency, add_shards, named_shards, open_shards
from .printing import counted, print_json, print_lines, seen

HELP = (
    "Read each shard, and compare its length, digests, number of samples and offsets with the index (for a "
    "folder of MDS or LitData, with its index.json). Nothing is written. The exit status is 1 if a shard "
    "differs, cannot be read, or is in the index and missing."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shards(parser)
    parser.add_argument(
        "-m",
        "--index",
        metavar="INDEX",
        help=f"path or URL of the index (default: {INDEX_NAME} in the folder of the shards, if it is one)",
    )
    add_concurrency(parser)


def run(asked: argparse.Namespace) -> int:
    with _open(asked) as verifying:
        line = partial(_line, verifying.teller)
        shards = seen(verifying.each, "verify", verifying.count, line, as_json=asked.json)
        bad = sum(bool(shard.wrong) for shard in shards)
        if asked.json:
            print_json({"index": verifying.index, "bad": bad, "shards": [*map(asdict, shards)]})
        elif bad:
            print_lines(f"{bad} of {counted(len(shards), 'shard')} bad")
        else:
            empty = sum(shard.size_bytes == 0 for shard in shards)
            note = f"; {empty} without a sample" if empty else ""
            match = "matches" if len(shards) == 1 else "match"
            print_lines(f"{counted(len(shards), 'shard')} {match} {verifying.teller}{note}")
        return 1 if bad else 0


def _open(asked: argparse.Namespace) -> AbstractContextManager[Verifying]:
    if is_folder(asked.format, asked.block_size):
        shards = open_shards(asked, index=asked.index)
        return open_verifying_by_index(
            shards.urls, shards.formats, shards.checks, shards.index, shards.access, asked.concurrency
        )
    return open_verifying(named_shards(asked), asked.index, asked.concurrency)


def _line(teller: str, shard: Verified) -> str:
    if shard.wrong:
        return f"BAD {shard.shard}: {'; '.join(shard.wrong)}"
    return f"{shard.shard}: matches {teller}{', empty' * (shard.size_bytes == 0)}"
