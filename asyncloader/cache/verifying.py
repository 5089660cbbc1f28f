"""Whether a complete file still holds what was put into it; blocking, to be called in threads."""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

from .folder import ROOT, SHARDS, Folder, Found
from .header import HEADER_BYTES, MARK_BYTES, Header, mark_of

__all__ = ["Check", "is_marked", "mark", "touch", "verify_cache"]

_READ_BYTES = 1 << 20


class Check:
    """The digest of a file, worked out step by step, so that whoever waits for it can be cancelled.

    Args:
        header: What the file should hold.
    """

    _STEP_BYTES = 32 << 20

    def __init__(self, header: Header) -> None:
        self._header = header
        self._sha256 = hashlib.sha256()
        self._offset = 0

    def step(self, number: int) -> bool | None:
        """Whether the file is right, once that is known.

        Raises:
            OSError: The disk cannot read it.
        """
        buffer = memoryview(bytearray(_READ_BYTES))
        stop = min(self._offset + self._STEP_BYTES, self._header.size)
        while self._offset < stop:
            wanted = buffer[: stop - self._offset]
            read = os.preadv(number, [wanted], HEADER_BYTES + self._offset)
            if not read:
                return False
            self._sha256.update(wanted[:read])
            self._offset += read
        if self._offset < self._header.size:
            return None
        return self._sha256.digest() == self._header.sha256


def is_marked(number: int, header: Header, run: str) -> bool:
    """Whether ``run`` has verified this file before."""
    offset, wanted = mark_of(header, run)
    return os.pread(number, MARK_BYTES, offset) == wanted


def mark(number: int, header: Header, run: str) -> None:
    """Note that ``run`` has verified this file."""
    offset, wanted = mark_of(header, run)
    os.pwrite(number, wanted, offset)


def touch(number: int) -> None:
    """Note that the file is used now."""
    os.utime(number)


def verify_cache(cache_dir: str | os.PathLike[str]) -> list[str]:
    """Read every shard of a disk cache and compare it with its digest; move the bad ones aside.

    Nothing has to stop for it, and nothing is made by it. What it moves aside is downloaded again when it is
    needed. The program ``python -m asyncloader.cache DIR`` does the same, and tells how much is there.

    Args:
        cache_dir: As given to ``from_urls``.

    Returns:
        The files that were bad, by their new names below ``cache_dir``. Which URLs they had is not known: the
        cache keeps none.

    Raises:
        FileNotFoundError: There is no such folder, or no cache in it.
        ValueError: The cache in it is not private; see ``from_urls``.
    """
    return _verify(cache_dir).bad


@dataclass
class _Verified:
    """What a cache was found to hold: the sound shards with their length, the new names of the others."""

    sound: int = 0
    sound_bytes: int = 0
    bad: list[str] = field(default_factory=list)


def _verify(cache_dir: str | os.PathLike[str]) -> _Verified:
    parent = Path(cache_dir).absolute()
    if not parent.is_dir():
        raise FileNotFoundError(f"there is no folder {str(parent)!r}")
    if not os.path.lexists(parent / ROOT):
        raise FileNotFoundError(
            f"there is no cache in {str(parent)!r}: a cache_dir, once it is used, has a folder {ROOT!r} in it"
        )
    folder = Folder(str(parent))
    verified = _Verified()
    try:
        for below in sorted(folder.names(SHARDS)):
            for name in sorted(folder.names(f"{SHARDS}/{below}")):
                path = f"{SHARDS}/{below}/{name}"
                found = folder.open_kept(path)
                size = found.header.size if found is not None and found.header is not None else 0
                if _is_right(found):
                    verified.sound += 1
                    verified.sound_bytes += size
                elif folder.has(path):
                    verified.bad.append(f"{ROOT}/{folder.quarantine(path)}")
    finally:
        folder.close()
    return verified


def _is_right(found: Found | None) -> bool:
    if found is None or found.header is None:
        return False
    check = Check(found.header)
    try:
        while (verdict := check.step(found.number)) is None:
            pass
    except OSError:
        return False
    finally:
        found.close()
    return verdict


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
        verified = _verify(cache_dir)
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
