"""Local files. Reads go to threads, since a slow disk must not hold up the loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ..errors import StoreError
from ..types import Buffer
from .store import Body
from .urls import local_path

__all__ = ["LocalStore"]

# One thread hop costs some 60 us; at 2 MiB a hop it is a tenth of the copy it pays for, and the piece is
# still in the processor's cache when the decoder reads it.
_PIECE_BYTES = 2 << 20


class LocalStore:
    """Regular files by path."""

    @asynccontextmanager
    async def read(self, url: str, start: int, stop: int, *, etag: str | None = None) -> AsyncIterator[Body]:
        path = local_path(url)
        try:
            fd = await asyncio.to_thread(os.open, path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        except OSError as error:
            raise _store_error(error, url, start) from error
        try:
            found = os.fstat(fd)
            # What an ETag is to a server: another inode, length or modification is another version.
            version = f"{found.st_dev:x}-{found.st_ino:x}-{found.st_size:x}-{found.st_mtime_ns:x}"
            if etag is not None and etag != version:
                raise StoreError("the file was changed while it was being read", shard=url, offset=start)
            end = min(stop, found.st_size)
            yield Body(min(start, end), end, found.st_size, version, _pieces(fd, start, end, url))
        finally:
            os.close(fd)


async def _pieces(fd: int, start: int, end: int, url: str) -> AsyncIterator[Buffer]:
    offset = start
    while offset < end:
        try:
            piece = await asyncio.to_thread(os.pread, fd, min(_PIECE_BYTES, end - offset), offset)
        except OSError as error:
            raise _store_error(error, url, offset) from error
        if not piece:  # truncated since it was opened; the reader sees the missing length
            return
        yield piece
        offset += len(piece)


def _store_error(error: OSError, url: str, offset: int) -> StoreError:
    return StoreError(f"cannot read the file: {error.strerror or error}", shard=url, offset=offset)
