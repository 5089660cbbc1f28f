"""Bytes of a local file that lie in the page cache, which whoever decodes them reads himself.

The system keeps them anyway: to bring them ahead would only take memory, and the loop's time. Read in small
pieces by the thread that decodes, they are still in its processor's cache when it looks at them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ..errors import StoreError
from ..types import Buffer
from .buffers import Buffers

__all__ = ["PIECE_BYTES", "FileSpan", "closed_on_error", "is_cached", "piece_bytes_of"]

#: Two of them, as a sample that goes on from one into the next holds both, stay in the second cache of a
#: processor's core: 1 GB of tar in pieces of 2 MiB took a quarter longer. In halves of them tuples of LitData
#: with 100 kB each took half as long again.
PIECE_BYTES = 512 << 10

# Each reader holds one, and what comes of it: where that is more of what it could have at most, pieces are
# smaller, down to those of which the call costs as much as the copy.
_MOST_SHARE = 0.25
_LEAST_BYTES = 64 << 10

# Of Linux alone.
_NOWAIT: int | None = getattr(os, "RWF_NOWAIT", None)

# Files are cached and forgotten in long runs: so many looks, evenly over what is wanted, tell.
_LOOKS = 64


class FileSpan:
    """Bytes of an open file, up to the last that is wanted; taken from the front.

    Args:
        fd: The file's; the span has its own copy, and closes that when it was read, is closed, or goes.
        start: Offset of the first byte.
        stop: Offset behind the last one.
        shard: Named in errors.
    """

    def __init__(self, fd: int, start: int, stop: int, shard: str) -> None:
        self._fd = os.dup(fd)
        self._start = start
        self._stop = stop
        self._shard = shard
        self._version = _version_of(self._fd)

    def __len__(self) -> int:
        return self._stop - self._start

    def read(self, buffers: Buffers) -> Buffer:
        """The next bytes, one at least.

        Args:
            buffers: Lends the memory; one of them is the most that is read.

        Raises:
            StoreError: They cannot be read, or the file was changed since the span was made.
        """
        wanted = min(len(self), buffers.each_bytes)
        piece = buffers.take(wanted)[:wanted]
        try:
            size = os.preadv(self._fd, [piece], self._start)
            version = _version_of(self._fd)
        except OSError as error:
            what = f"cannot read the file: {error.strerror or error}"
            raise StoreError(what, shard=self._shard, offset=self._start) from error
        if version != self._version or not size:
            what = "the file was changed while it was being read"
            raise StoreError(what, shard=self._shard, offset=self._start)
        self._start += size
        if self._start == self._stop:
            self.close()
        return piece[:size]

    def close(self) -> None:
        """Read no more. Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        with suppress(AttributeError):  # there was no descriptor to be had
            self.close()


@contextmanager
def closed_on_error(chunk: Buffer | FileSpan) -> Iterator[None]:
    """Close a span that could not be handed on: the error's traceback would keep its file open."""
    try:
        yield
    except BaseException:
        if isinstance(chunk, FileSpan):
            chunk.close()
        raise


def piece_bytes_of(most_bytes: int) -> int:
    """How much is read of a file at a time, by a reader that could have so many bytes under way at most."""
    return min(max(int(_MOST_SHARE * most_bytes), _LEAST_BYTES), PIECE_BYTES)


def _version_of(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_size, found.st_mtime_ns


def is_cached(fd: int, start: int, stop: int) -> bool:
    """Whether bytes of a file, one at least, can be had without waiting, as far as some looks tell."""
    if _NOWAIT is None:
        return False
    step = max((stop - start) // _LOOKS, 4096)
    look = bytearray(1)
    try:
        return all(os.preadv(fd, [look], at, _NOWAIT) for at in (*range(start, stop, step), stop - 1))
    except OSError:  # it would have to wait, or the file system does not know of this
        return False
