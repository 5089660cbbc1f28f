"""Local files. What is not in the page cache is read on threads, so that a slow disk does not block the loop.

What is in the page cache may be read by the thread that decodes it: see ``FileSpan``.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from random import Random

import numpy as np

from ..errors import StoreError
from ..flow.engine import opened
from ..types import Buffer, Span
from .store import BUFFER_BYTES, Body
from .urls import local_path, scheme_of

# How many files are checked before anything is read: a few ms of disk, and half a second of a slow network
# file system.
_MOST_LOOKED_AT = 1000


_CHANGED = "the file was changed while it was being read"

# Bytes of a local file that are in the page cache, which the decoding thread reads itself.
#
# The system keeps them anyway: reading them ahead would only take memory and the loop's time. Read in small
# pieces by the thread that decodes, they are still in its processor's cache when they are decoded.

#: Two of them stay in the second-level cache of a core; a sample across two pieces holds both. 1 GB of tar in
#: pieces of 2 MiB took a quarter longer; LitData samples of 100 kB in pieces of half this size took half as
#: long again.
PIECE_BYTES = 512 << 10

# Each reader holds one piece and what is decoded from it. If that would be more than this share of its
# budget, pieces are smaller, down to a size where the call costs as much as the copy.
_MOST_SHARE = 0.25
_LEAST_BYTES = 64 << 10

# Reads only what is in the page cache. Linux only.
_NOWAIT: int | None = getattr(os, "RWF_NOWAIT", None)

# Files are cached and dropped in long runs, so this many probes of so many spans are enough.
_LOOKS = 16

# Without O_NONBLOCK, opening a named pipe would block its thread until something writes to it; for regular
# files the flag has no effect. Windows has neither.
_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


class FileSpan:
    """The wanted bytes of a file, read from the front.

    The file is opened by the first read: many of them may wait for their turn. It is closed when all is
    read, at ``close``, or when the object is collected.

    Args:
        url: Of the file.
        spans: What is wanted, none of it empty, in the order in which it is read.
        version: What ``version_of`` has to return for the file.
    """

    _fd = -1

    def __init__(self, url: str, spans: Sequence[Span], version: str) -> None:
        self._spans = deque(spans)
        self._url = url
        self._path = os.path.abspath(local_path(url))  # the program may change its folder meanwhile
        self._left = sum(stop - start for start, stop in spans)
        self._version = version

    def __len__(self) -> int:
        return self._left

    def read(self, most_bytes: int) -> Buffer:
        """The next bytes, at least one.

        Args:
            most_bytes: How many may be read at once.

        Raises:
            StoreError: They cannot be read, or the file was changed since the span was made.
        """
        start, stop = self._spans[0]
        piece = np.empty(min(stop - start, most_bytes), np.uint8).data
        try:
            if self._fd < 0:
                self._fd = os.open(self._path, _FLAGS)
            size = os.preadv(self._fd, [piece], start)
            version = version_of(os.fstat(self._fd))
        except OSError as error:
            raise _store_error(error, self._url, start) from error
        if version != self._version or not size:
            raise StoreError(_CHANGED, shard=self._url, offset=start)
        self._left -= size
        if start + size < stop:
            self._spans[0] = Span(start + size, stop)
        else:
            self._spans.popleft()
        if not self._spans:
            self.close()
        return piece[:size]

    def close(self) -> None:
        """Stop reading: nothing is left. Idempotent."""
        self._spans.clear()
        self._left = 0
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


def piece_bytes_of(most_bytes: int) -> int:
    """How much of a file is read at a time, by a reader that may have so many bytes under way."""
    return min(max(int(_MOST_SHARE * most_bytes), _LEAST_BYTES), PIECE_BYTES)


def version_of(found: os.stat_result) -> str:
    """In place of an ETag: another inode, length or modification is another version."""
    return f"{found.st_dev:x}-{found.st_ino:x}-{found.st_size:x}-{found.st_mtime_ns:x}"


def is_cached(fd: int, spans: Sequence[Span]) -> bool:
    """Whether spans of a file, none of them empty, can be read without waiting, as some probes show."""
    if _NOWAIT is None:
        return False
    look = bytearray(1)
    try:
        # At random: every second span may be of a column that is not there. Always the same ones.
        for start, stop in spans if len(spans) <= _LOOKS else Random(0).sample(spans, _LOOKS):
            step = max((stop - start) // _LOOKS, 4096)
            if not all(os.preadv(fd, [look], at, _NOWAIT) for at in (*range(start, stop, step), stop - 1)):
                return False
    except OSError:  # it would have to wait, or the file system does not support the flag
        return False
    return True


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
                raise StoreError(_CHANGED, shard=url, offset=start)
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
    return FileSpan(url, spans, version) if is_cached(fd, spans) else None


async def _open(url: str, start: int) -> int:
    loop = asyncio.get_running_loop()
    try:
        return await opened(loop.run_in_executor(None, os.open, local_path(url), _FLAGS), os.close)
    except OSError as error:
        raise _store_error(error, url, start) from error


async def _read(fd: int, piece: memoryview, offset: int) -> int:
    if _NOWAIT is not None:
        # What is in the page cache needs no thread, whose hop costs half as much as the copy.
        with suppress(OSError):  # it would have to wait, or the file system does not support the flag
            return os.preadv(fd, [piece], offset, _NOWAIT)
    return await asyncio.to_thread(os.preadv, fd, [piece], offset)


def _store_error(error: OSError, url: str, offset: int) -> StoreError:
    where = "" if os.path.isabs(local_path(url)) else f" (looked from {os.getcwd()})"
    advice = ""
    if isinstance(error, FileNotFoundError):
        advice = "; check the path, and the ranges in its braces if it has any"
    told = f"cannot read the file: {error.strerror or error}{where}{advice}"
    return StoreError(told, shard=url, offset=offset)
