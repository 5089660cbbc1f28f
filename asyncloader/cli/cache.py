"""``asyncloader cache``: list, verify or prune a disk cache."""

from __future__ import annotations

import argparse
import os
from dataclasses import asdict
from typing import Any

from ..cache.locks import CacheFile
from ..cache.upkeep import audit, list_cache, prune_cache
from ..quantity import bytes_text as size_of
from ..quantity import parse_bytes, parse_seconds
from . import add_json
from .printing import age_of, counted, print_json, print_lines

HELP = "List, verify or prune a disk cache. Loaders may use it at the same time."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="cache_command", metavar="COMMAND", required=True)
    _add(
        commands,
        "ls",
        "list its files",
        "List the files of a disk cache, least recently used first. A name is a digest, which does not tell "
        "the URL.",
    )
    _add(
        commands,
        "verify",
        "read every shard and compare it with its digest",
        "Read every shard of a disk cache and compare it with its digest. Damaged shards are renamed, and "
        "are downloaded again when they are needed. The exit status is 1 if there are any.",
    )
    prune = _add(
        commands,
        "prune",
        "remove shards",
        "Remove shards, least recently used first. Reads and downloads in progress are not disturbed.",
    )
    prune.add_argument("--to", metavar="SIZE", help="remove until at most this much is left, such as 50GB")
    prune.add_argument(
        "--older-than",
        metavar="AGE",
        help="remove shards that were not used for this long, such as 12h, 7d or 2w",
    )
    prune.add_argument(
        "--dry-run", action="store_true", help="list what would be removed, and remove nothing"
    )


def run(asked: argparse.Namespace) -> int:
    return {"ls": _list, "verify": _verify, "prune": _prune}[asked.cache_command](asked)


def _add(commands: Any, name: str, does: str, more: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=does, description=more)
    parser.add_argument(
        "cache_dir", metavar="CACHE_DIR", help="folder that is given to from_urls(cache_dir=...)"
    )
    add_json(parser)
    return parser


def _list(asked: argparse.Namespace) -> int:
    contents = list_cache(asked.cache_dir)
    if asked.json:
        print_json(asdict(contents))
        return 0
    for file in contents.files:
        print_lines(_line(file))
    total = f"{counted(len(contents.files), 'file')}, {size_of(contents.size_bytes)}"
    if contents.downloads:
        total += (
            f"; {counted(contents.downloads, 'download')} of {size_of(contents.announced_bytes)} in progress"
        )
    print_lines(total)
    return 0


def _verify(asked: argparse.Namespace) -> int:
    verified = audit(asked.cache_dir)
    paths = [os.path.join(asked.cache_dir, name) for name in verified.bad]
    if asked.json:
        print_json({"sound": verified.sound, "sound_bytes": verified.sound_bytes, "bad": paths})
    elif not paths:
        print_lines(f"{counted(verified.sound, 'shard')}, {size_of(verified.sound_bytes)}: none is damaged")
    else:
        print_lines(
            *(f"damaged, renamed to {path}" for path in paths),
            f"{len(paths)} of {counted(verified.sound + len(paths), 'shard')} damaged; damaged shards are "
            "downloaded again when they are needed",
        )
    return 1 if paths else 0


def _prune(asked: argparse.Namespace) -> int:
    if asked.to is None and asked.older_than is None:
        raise ValueError("expected what to prune: pass --to 50GB, --older-than 7d, or both")
    pruned = prune_cache(
        asked.cache_dir,
        to_bytes=None if asked.to is None else parse_bytes("--to", asked.to),
        older_than_s=None if asked.older_than is None else parse_seconds("--older-than", asked.older_than),
        dry_run=asked.dry_run,
    )
    if asked.json:
        print_json({**asdict(pruned), "dry_run": asked.dry_run})
        return 0
    for file in pruned.removed:
        print_lines(_line(file))
    print_lines(
        f"{'would remove' if asked.dry_run else 'removed'} {counted(len(pruned.removed), 'file')}, "
        f"{size_of(pruned.removed_bytes)}; {counted(pruned.left, 'file')}, {size_of(pruned.left_bytes)}, left"
    )
    return 0


def _line(file: CacheFile) -> str:
    bad = "  (damaged, renamed)" if file.is_bad else ""
    return f"{size_of(file.size_bytes):>8}  {age_of(file.unused_s):>8}  {file.path}{bad}"
