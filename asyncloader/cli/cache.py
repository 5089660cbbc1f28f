"""``asyncloader cache``: look after a disk cache."""

from __future__ import annotations

import argparse
import os
from typing import Any

from ..cache.audit import audit
from .arguments import add_json
from .printing import counted, print_json, size_of

HELP = "Look after a disk cache. Nothing has to stop for it."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="cache_command", metavar="COMMAND", required=True)
    _add(
        commands,
        "verify",
        "read every shard and compare it with its digest",
        "Read every shard of a disk cache and compare it with its digest. Damaged ones are put aside, and "
        "downloaded again when they are needed; the exit status is 1 if there are any.",
    )


def run(asked: argparse.Namespace) -> int:
    return _verify(asked)


def _add(commands: Any, name: str, does: str, more: str) -> None:
    parser = commands.add_parser(name, help=does, description=more)
    parser.add_argument("cache_dir", metavar="CACHE_DIR", help="as given to from_urls")
    add_json(parser)


def _verify(asked: argparse.Namespace) -> int:
    verified = audit(asked.cache_dir)
    paths = [os.path.join(asked.cache_dir, name) for name in verified.bad]
    if asked.json:
        print_json({"sound": verified.sound, "sound_bytes": verified.sound_bytes, "bad": paths})
    elif not paths:
        print(f"{counted(verified.sound, 'shard')}, {size_of(verified.sound_bytes)}: all sound")
    else:
        for path in paths:
            print(f"damaged, put aside as {path}")
        print(
            f"{counted(verified.sound + len(paths), 'shard')}, {len(paths)} of them damaged: "
            "what was put aside is downloaded again when it is needed"
        )
    return 1 if paths else 0
