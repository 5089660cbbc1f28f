"""The bytes of an array as they come: stored as they are, or deflated."""

from __future__ import annotations

import zlib
from collections import deque

import numpy as np
from numpy.typing import NDArray

__all__ = ["Deflated", "Held", "Stored"]

# Of what is deflated, from its first byte on, and of what becomes of it: as in ``compression``, so that what
# comes out before corrupt bytes raise does not go by how they were cut into chunks.
_STEP_BYTES = 1 << 16
_PIECE_BYTES = 1 << 20


class Held:
    """Bytes in a queue."""

    def __init__(self) -> None:
        self._pieces: deque[memoryview] = deque()
        self.size_bytes = 0

    def put(self, piece: memoryview) -> None:
        """Add to the end."""
        if len(piece):
            self._pieces.append(piece)
            self.size_bytes += len(piece)

    def take(self, size_bytes: int) -> NDArray[np.uint8]:
        """Copy out what is in front, into memory of its own; so much is there."""
        taken = np.empty(size_bytes, np.uint8)
        at = 0
        while at < size_bytes:
            piece = self._next(size_bytes - at)
            taken[at : at + len(piece)] = piece
            at += len(piece)
        return taken

    def drop(self, most_bytes: int) -> int:
        """Let go of what is in front; how much it was."""
        dropped = 0
        while dropped < most_bytes and self._pieces:
            dropped += len(self._next(most_bytes - dropped))
        return dropped

    def _next(self, most: int) -> memoryview:
        piece = self._pieces.popleft()
        if len(piece) > most:
            self._pieces.appendleft(piece[most:])
            piece = piece[:most]
        self.size_bytes -= len(piece)
        return piece


class Stored:
    """Bytes that are stored as they are.

    Args:
        crc32: Of all bytes, those before the first that comes included; None to check nothing.
        before: The checksum of those.
    """

    fault: str | None = None

    def __init__(self, crc32: int | None = None, before: int = 0) -> None:
        self._expected = crc32
        self._found = before
        self._held = Held()

    def put(self, chunk: memoryview) -> None:
        """Take in the next bytes."""
        if self._expected is not None:
            self._found = zlib.crc32(chunk, self._found)
        self._held.put(chunk)

    def available(self, most_bytes: int) -> int:
        """How many bytes are there, as far as ``most_bytes``."""
        return self._held.size_bytes

    def take(self, size_bytes: int) -> NDArray[np.uint8]:
        """What is in front, as many as are there."""
        return self._held.take(size_bytes)

    def finish(self) -> str | None:
        """What is wrong, when all bytes have come."""
        if self._expected is not None and self._found != self._expected:
            return _wrong_crc(self._expected, self._found)
        return None


class Deflated:
    """Bytes that were deflated, of which no more is expanded than is wanted.

    Args:
        stored_bytes: How many come.
        size_bytes: How many they hold.
        skip_bytes: Of these, how many in front nobody wants.
        crc32: Of these.
    """

    def __init__(self, stored_bytes: int, size_bytes: int, skip_bytes: int, crc32: int) -> None:
        self._left = stored_bytes
        self._size_bytes = size_bytes
        self._skip = skip_bytes
        self._expected = crc32
        self._found = 0
        self._made = 0
        self._stored, self._held = Held(), Held()
        self._inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        self._tail: bytes = b""
        self._may_hold_more = False
        self.fault: str | None = None

    def put(self, chunk: memoryview) -> None:
        """Take in the next bytes."""
        self._stored.put(chunk)

    def available(self, most_bytes: int) -> int:
        """Expand until so many bytes are there, or all that have come; how many there are."""
        while self._held.size_bytes < most_bytes and self._expand():
            if self._skip:
                self._skip -= self._held.drop(self._skip)
        return self._held.size_bytes

    def take(self, size_bytes: int) -> NDArray[np.uint8]:
        """What is in front, as many as are there."""
        return self._held.take(size_bytes)

    def finish(self) -> str | None:
        """What is wrong, when all bytes have come, and the last that was wanted was taken."""
        while self.fault is None and self._expand():
            self._held.drop(self._held.size_bytes)
        if self.fault is None and self._made != self._size_bytes:
            return f"expected {self._size_bytes} bytes when it is inflated, found {self._made}"
        if self.fault is None and self._found != self._expected:
            return _wrong_crc(self._expected, self._found)
        return self.fault

    def _expand(self) -> bool:
        """One step; False if there is nothing to be had of what has come."""
        if self.fault is not None or self._inflater.eof:
            return False
        if not self._tail and not self._may_hold_more:
            step = min(_STEP_BYTES, self._left)
            if not step or self._stored.size_bytes < step:
                return False
            self._left -= step
            self._tail = self._stored.take(step).tobytes()
        try:
            piece = self._inflater.decompress(self._tail, _PIECE_BYTES)
        except zlib.error as error:
            self.fault = f"corrupt deflated bytes: {error}"
            return False
        self._tail = self._inflater.unconsumed_tail
        self._may_hold_more = len(piece) == _PIECE_BYTES
        self._made += len(piece)
        if self._made > self._size_bytes:
            self.fault = f"expected {self._size_bytes} bytes when it is inflated, found more"
            return False
        self._found = zlib.crc32(piece, self._found)
        self._held.put(memoryview(piece))
        return True


def _wrong_crc(expected: int, found: int) -> str:
    return f"damaged: expected the CRC-32 {expected:08x}, found {found:08x}"
