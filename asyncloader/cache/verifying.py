"""Whether a complete file still holds what was put into it; blocking, to be called in threads."""

from __future__ import annotations

import hashlib
import os
import sys
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

    Nothing has to stop for it. What it moves aside is downloaded again when it is needed. The program
    ``python -m asyncloader.cache DIR`` does the same.

    Args:
        cache_dir: As given to ``from_urls``.

    Returns:
        The files that were bad, by their new names below ``cache_dir``. Which URLs they had is not known: the
        cache keeps none.

    Raises:
        FileNotFoundError: There is no such folder.
        ValueError: The cache in it is not private; see ``from_urls``.
    """
    parent = Path(cache_dir).absolute()
    if not parent.is_dir():
        raise FileNotFoundError(f"there is no folder {str(parent)!r}")
    folder = Folder(str(parent))
    bad = []
    try:
        for below in sorted(folder.names(SHARDS)):
            for name in sorted(folder.names(f"{SHARDS}/{below}")):
                path = f"{SHARDS}/{below}/{name}"
                if not _is_right(folder.open_kept(path)) and folder.has(path):
                    bad.append(f"{ROOT}/{folder.quarantine(path)}")
    finally:
        folder.close()
    return bad


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
    """The program: prints what was bad; its exit status is 1 if anything was."""
    if len(arguments) != 1:
        print("usage: python -m asyncloader.cache CACHE_DIR", file=sys.stderr)
        return 2
    try:
        bad = verify_cache(arguments[0])
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    for name in bad:
        print(name)
    return 1 if bad else 0
