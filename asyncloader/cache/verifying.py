"""Whether a complete file still holds what was put into it; blocking, to be called in threads."""

from __future__ import annotations

import hashlib
import os

from .header import MARK_BYTES, Header, mark_of
from .stretches import DamagedError, Stretches

__all__ = ["Check", "is_marked", "mark", "touch"]

_READ_BYTES = 2 << 20


class Check:
    """The digest of a file, worked out step by step, so that whoever waits for it can be cancelled.

    Args:
        header: What the file should hold.
    """

    _STEP_BYTES = 32 << 20

    def __init__(self, header: Header) -> None:
        self._header = header
        self._sha256 = hashlib.sha256()
        self._stretches = Stretches(header)
        self._offset = 0

    def step(self, number: int) -> bool | None:
        """Whether the file is right, once that is known.

        Raises:
            OSError: The disk cannot read it.
        """
        stop = min(self._offset + self._STEP_BYTES, self._header.size)
        while self._offset < stop:
            end = min(self._offset + _READ_BYTES, stop)
            try:
                chunks = self._stretches.read(number, self._offset, end)
            except DamagedError:
                return False
            for chunk in chunks:
                self._sha256.update(chunk)
            self._offset = end
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
