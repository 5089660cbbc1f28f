"""Local files. What is not in the page cache is read on threads, so that a slow disk does not block the loop.

What is in the page cache may be read by the thread that decodes it: see ``FileSpan``.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial

import numpy as np

from ..errors import StoreError
from ..flow.engine import opened
from ..types import Buffer, Span
from .store import BUFFER_BYTES, FILE_FLAGS, NOWAIT, Body, FileSpan, is_cached, version_of
from .urls import local_path, scheme_of

# How many files are checked before anything is read: a few ms of disk, and half a second of a slow network
# file system.
_MOST_LOOKED_AT = 1000


class LocalStore:
    """Regular files by path."""

    @asynccontextmanager
    async def read(self, url: str, start: int, stop: int, *, etag: str | None = None) -> AsyncIterator[Body]:
        fd = await _open(url, start)
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):  # a pipe has no length, and would look empty
                what = "this is a folder; one that is named with '/' at the end means the shards below it"
                if not stat.S_ISDIR(found.st_mode):
                    what = "this is none"
                raise StoreError(f"a shard should be a regular file, and {what}", shard=url)
            version = version_of(found)
            if etag is not None and etag != version:
                raise StoreError("the file was changed while it was being read", shard=url, offset=start)
            end = min(stop, found.st_size)
            async with aclosing(self._pieces(fd, start, end, url)) as pieces:
                span_of = partial(_span_of, fd, version, url)
                yield Body(min(start, end), end, found.st_size, version, pieces, span_of=span_of)
        finally:
            os.close(fd)

    async def _pieces(self, fd: int, start: int, end: int, url: str) -> AsyncGenerator[Buffer, None]:
        offset = start
        while offset < end:
            piece = np.empty(min(end - offset, BUFFER_BYTES), np.uint8).data
            try:
                size = await _read(fd, piece, offset)
            except OSError as error:
                raise _store_error(error, url, offset) from error
            if not size:  # truncated since it was opened; the reader sees the missing length
                return
            offset += size
            yield piece[:size]
            del piece  # so that its memory is free when the decoder is done with it


def check_there(urls: Sequence[str]) -> None:
    """Refuse local shards that do not exist; of many, only the first and the last are checked.

    The first ones show a wrong folder, the last ones a range that goes too far.

    Raises:
        StoreError: As when such a shard is read.
    """
    half = _MOST_LOOKED_AT // 2
    numbers = range(len(urls))
    for number in (*numbers[:half], *numbers[max(half, len(urls) - half) :]):
        url = urls[number]
        if scheme_of(url).is_local:
            try:
                os.stat(local_path(url))
            except OSError as error:
                raise _store_error(error, url, 0) from error


def length_of(url: str) -> int | None:
    """The length of a local shard in bytes; None if it is no regular file."""
    try:
        found = os.stat(local_path(url))
    except OSError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _span_of(fd: int, version: str, url: str, spans: Sequence[Span]) -> FileSpan | None:
    return FileSpan(local_path(url), spans, version, url) if is_cached(fd, spans) else None


async def _open(url: str, start: int) -> int:
    loop = asyncio.get_running_loop()
    try:
        return await opened(loop.run_in_executor(None, os.open, local_path(url), FILE_FLAGS), os.close)
    except OSError as error:
        raise _store_error(error, url, start) from error


async def _read(fd: int, piece: memoryview, offset: int) -> int:
    if NOWAIT is not None:
        # What is in the page cache needs no thread, whose hop costs half as much as the copy.
        with suppress(OSError):  # it would have to wait, or the file system does not support the flag
            return os.preadv(fd, [piece], offset, NOWAIT)
    return await asyncio.to_thread(os.preadv, fd, [piece], offset)


def _store_error(error: OSError, url: str, offset: int) -> StoreError:
    where = "" if os.path.isabs(local_path(url)) else f" (looked from {os.getcwd()})"
    advice = ""
    if isinstance(error, FileNotFoundError):
        advice = "; check the path, and the ranges in its braces if it has any"
    told = f"cannot read the file: {error.strerror or error}{where}{advice}"
    return StoreError(told, shard=url, offset=offset)
