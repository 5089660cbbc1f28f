"""``python -m asyncloader.cache DIR``: verify a disk cache."""

from __future__ import annotations

import argparse
import os
import sys

from .audit import audit


def main(arguments: list[str]) -> int:
    """The program: prints what is there; its exit status is 1 if anything of it was bad."""
    parser = argparse.ArgumentParser(
        prog="python -m asyncloader.cache",
        description="Read every shard of a disk cache and compare it with its digest. Damaged ones are put "
        "aside, and downloaded again when they are needed; the exit status is 1 if there are any.",
    )
    parser.add_argument("cache_dir", metavar="CACHE_DIR", help="as given to from_urls")
    cache_dir = parser.parse_args(arguments).cache_dir
    try:
        verified = audit(cache_dir)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    if not verified.bad:
        print(f"{_shards(verified.sound)}, {verified.sound_bytes / 1e6:.0f} MB: all sound")
        return 0
    for name in verified.bad:
        print(f"damaged, put aside as {os.path.join(cache_dir, name)}")
    print(
        f"{_shards(verified.sound + len(verified.bad))}, {len(verified.bad)} of them damaged: "
        "what was put aside is downloaded again when it is needed"
    )
    return 1


def _shards(count: int) -> str:
    return f"{count} shard{'' if count == 1 else 's'}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
