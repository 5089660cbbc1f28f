"""``asyncloader ls``: list shards."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict

from ..pipeline.folders import is_folder
from ..quantity import bytes_text as size_of
from ..shards.index_survey import ListedShard, ShardList, open_lengths, open_shard_list
from .arguments import add_shards, named_shards, open_shards
from .printing import counted, print_json, print_lines, seen

HELP = (
    "List shards in order, with their lengths and formats. Globs, prefixes, folders, braces and indexes are "
    "expanded. The exit status is 1 if a shard is unavailable, or empty in a format that does not allow it."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shards(parser)


def run(asked: argparse.Namespace) -> int:
    with _open(asked) as listed:
        shards = seen(listed.shards, "ls", listed.count, _line, as_json=asked.json)
    bad = sum(shard.error is not None for shard in shards)
    total_bytes = sum(shard.size_bytes or 0 for shard in shards)
    if asked.json:
        print_json({"shards": [*map(asdict, shards)], "size_bytes": total_bytes, "bad": bad})
    else:
        print_lines(_total(shards, total_bytes, bad))
    return 1 if bad else 0


def _open(asked: argparse.Namespace) -> AbstractContextManager[ShardList]:
    if is_folder(asked.format, asked.block_size):
        shards = open_shards(asked)
        return open_lengths(shards.urls, shards.formats, shards.access)
    return open_shard_list(named_shards(asked))


def _line(shard: ListedShard) -> str:
    if shard.error is not None:
        return f"BAD {shard.url}: {shard.error}"
    size = "?" if shard.size_bytes is None else size_of(shard.size_bytes)
    # A text without a line, or one that was cut to nothing, is read without an error.
    note = ": empty, without a sample" * (shard.size_bytes == 0)
    return f"{size:>8}  {shard.format or '?':<7}  {shard.url}{note}"


def _total(shards: Sequence[ListedShard], total_bytes: int, bad: int) -> str:
    sizes = [shard.size_bytes for shard in shards if shard.size_bytes is not None]
    line = f"{counted(len(shards), 'shard')}, {size_of(total_bytes)}"
    if len(sizes) > 1:
        line += f": from {size_of(min(sizes))} to {size_of(max(sizes))} each"
    if unknown := sum(shard.size_bytes is None and shard.error is None for shard in shards):
        line += f"; {unknown} of unknown length"
    if empty := sum(shard.size_bytes == 0 and shard.error is None for shard in shards):
        line += f"; {empty} empty"
    return f"{line}; {bad} unavailable" if bad else line
