"""One download of one shard into its file."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import hashlib
import os
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, partial

from ..errors import StoreError
from ..flow.budget import claim_alone
from ..flow.channel import Channel, EndOfChannel
from ..flow.engine import Scope
from ..flow.process import has_linux
from ..formats.digest import Verifier
from ..stores.failures import changed
from ..stores.reading import ShardChunks, read_shards
from ..stores.store import BUFFER_BYTES, Body, FileSpan, Store
from ..stores.urls import redact
from ..types import Buffer
from .copy import Copy, Descriptor, Sums, has_crc32c, mark
from .folder import ABANDONED, CachedFile, CacheFolder, CopyState, Header, Identity
from .locks import Progress, look, publish, withdraw


class NotKeptError(Exception):
    """The shard cannot be cached, and is read from the network. The text may say why."""


@dataclass(frozen=True, slots=True)
class DownloadTarget:
    """Where a download goes.

    Attributes:
        folder: The cache's.
        identity: The shard's.
        found: The file, locked by this process.
        file: Its descriptor.
        run: Names the run, which has verified the file once it is whole.
    """

    folder: CacheFolder
    identity: Identity
    found: CachedFile
    file: Descriptor
    run: str

    def publish(self, whole: Header) -> None:
        """Give the file its final name, in a thread; if that fails, withdraw it."""
        try:
            mark(self.found.number, whole, self.run)
            publish(self.folder, self.found, self.identity, whole)
        except OSError:
            self.withdraw(ABANDONED)
            raise

    def withdraw(self, last_word: Header) -> None:
        """Stop filling the file, in a thread."""
        withdraw(self.folder, self.found, last_word)


@dataclass(eq=False, repr=False)
class Download:
    """Fills a file.

    Args:
        url: What to read.
        remote: The store to read from, which retries and resumes.
        budget_bytes: For ``read_shards``.
        target: Where to write it.
        has_room: Called once the header announces the length.
        opened: Called with the copy as soon as it grows.
    """

    url: str
    remote: Store
    budget_bytes: int
    target: DownloadTarget
    has_room: Callable[[], Awaitable[bool]]
    opened: Callable[[Copy], None]

    def __post_init__(self) -> None:
        self._file = self.target.file
        self._admitting = asyncio.Lock()
        self._copy: Copy | None = None
        self._header = ABANDONED  # until it is known what is coming
        self._sums = Sums(self._header)
        self._sha256 = hashlib.sha256()
        self._verifier = Verifier({})

    async def run(self) -> None:
        """Read the shard and write it, until it is whole and has its final name.

        Raises:
            NotKeptError: It cannot be kept; no reader has got any of it.
            StoreError: The store cannot read it, or it is not what the store promised.
            OSError: The disk cannot write it.
        """
        last_word: Header | None = ABANDONED
        try:
            await self._fill()
            assert self._copy is not None, "a shard that ends has begun"
            last_word = replace(self._header, state=CopyState.REJECTED)  # unless the digest is right
            self._verifier.check(redact(self.url))
            whole = replace(self._header, state=CopyState.COMPLETE, sha256=self._sha256.digest())
            last_word = None  # from here on the thread writes it, also if this is cancelled
            await self._file.run(self.target.publish, whole)
            self._copy.end(whole=True)
        except StoreError as error:
            if self._copy is not None:
                self._copy.end(error=error)
            raise
        finally:
            if self._copy is not None:
                self._copy.end()
                self._copy.close()
            if last_word is not None:
                # If cancelled a second time, the lock goes with the descriptor, the file with the next scan.
                await self._file.run(self.target.withdraw, last_word)

    async def _fill(self) -> None:
        out = Channel[ShardChunks](1)
        async with Scope() as scope:
            scope.start(partial(read_shards, self, [(self.url, 0)], claim_alone(self.budget_bytes), out), out)
            try:
                await self._write(await out.receive_async())
            finally:
                out.close()

    async def _write(self, chunks: ShardChunks) -> None:
        """Write chunks as they come: many together if they come fast, each at once if they do not."""
        offset = 0
        ended = False
        while not ended:
            piece: list[Buffer] = []
            length = 0
            while length < BUFFER_BYTES and (not piece or len(chunks)):
                try:
                    chunk = await chunks.receive_async()
                except EndOfChannel:
                    ended = True
                    break
                assert not isinstance(chunk, FileSpan), "local files are not cached"
                piece.append(chunk)
                length += len(chunk)
            if piece:
                assert self._copy is not None, "the first answer comes before its first byte"
                await self._file.run(self._store_piece, self._file.number, piece, self._header.begin + offset)
                offset += length
                self._copy.grow(offset)

    def _store_piece(self, number: int, piece: Sequence[Buffer], offset: int) -> None:
        for chunk in piece:
            self._sha256.update(chunk)
            self._verifier.update(chunk)
            # Before the bytes: processes that read along take these as the sign that a stretch is complete.
            self._sums.add(number, chunk)
            rest = memoryview(chunk)
            while rest:
                written = os.pwrite(number, rest, offset)
                rest = rest[written:]
                offset += written

    # --- what ``read_shards`` sees ---

    async def of(self, url: str) -> Store:
        """This download, as the store of its shard."""
        return self

    def hedges_of(self, url: str) -> None:
        """None: a download is ahead of its readers."""

    @asynccontextmanager
    async def read(self, url: str, start: int, stop: int, *, etag: str | None = None) -> AsyncIterator[Body]:
        """The answer of the remote store; the first one waits until there is room for the shard."""
        async with self.remote.read(url, start, stop, etag=etag) as body:
            async with self._admitting:
                if self._copy is None:
                    await self._admit(body)
            assert self._copy is not None, "admitted or raised"
            if body.etag is not None and body.etag != self._copy.etag:
                raise changed(url, start, self._copy.etag, body.etag)
            yield body

    async def _admit(self, body: Body) -> None:
        if body.total == 0:
            raise NotKeptError
        if body.etag is None or not Header.fits(body.etag):
            raise NotKeptError("its server names no version of it (ETag), so a change could not be seen")
        if body.total is None:
            raise NotKeptError("its server does not say how long it is")
        self._header = Header(CopyState.FILLING, body.etag, body.total, crc32c=has_crc32c())
        self._sums = Sums(self._header)
        await self._file.run(os.pwrite, self._file.number, self._header.encode(), 0)
        if not await self.has_room():
            raise NotKeptError(
                "there is no room for it; give cache_limit= more, or cache_dir= on a disk with more room"
            )
        self._verifier = Verifier(body.digests)
        self._copy = Copy(self._file.share(), self._header)
        self.opened(self._copy)


# From linux/inotify.h. An unlinked name is a change of attributes (the number of links).
_IN_MODIFY, _IN_ATTRIB, _IN_CLOSE_WRITE, _IN_MOVE_SELF = 0x2, 0x4, 0x8, 0x800
_IN_Q_OVERFLOW = 0x4000
_MASK = _IN_MODIFY | _IN_ATTRIB | _IN_CLOSE_WRITE | _IN_MOVE_SELF
_EVENT = struct.Struct("iIII")
_READ_BYTES = 64 << 10

# When a process dies, the kernel reports its closed file just before it releases the lock on it (``__fput``
# in fs/file_table.c), and does not report the lock. So the file is checked once more after a close.
_LOOK_AGAIN_S = 0.1


class Inotify:
    """Calls back when watched files change, by Linux's inotify. It belongs to the running loop.

    Raises:
        OSError: The user has too many of these (``fs.inotify.max_user_instances``), or this is not Linux.
    """

    def __init__(self) -> None:
        if not has_linux():
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        self._number = _checked(_libc().inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        self._changed: dict[int, Callable[[], None]] = {}
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._number, self._receive)

    def close(self) -> None:
        self._loop.remove_reader(self._number)
        os.close(self._number)

    @contextmanager
    def watch(self, number: int, changed: Callable[[], None]) -> Iterator[None]:
        """Call ``changed`` whenever the open file was written to, closed by a writer, renamed or unlinked.

        Raises:
            OSError: The user watches too many files (``fs.inotify.max_user_watches``), or there is no /proc.
        """
        # By its descriptor: the name may mean another file by now.
        path = f"/proc/self/fd/{number}".encode()
        watch = _checked(_libc().inotify_add_watch(self._number, path, _MASK))
        self._changed[watch] = changed
        try:
            yield
        finally:
            del self._changed[watch]
            _libc().inotify_rm_watch(self._number, watch)

    def _receive(self) -> None:
        events = b""
        with suppress(BlockingIOError):
            events = os.read(self._number, _READ_BYTES)
        changed, closed, offset = set(), set(), 0
        while offset < len(events):
            watch, mask, _, name_bytes = _EVENT.unpack_from(events, offset)
            offset += _EVENT.size + name_bytes
            changed |= set(self._changed) if mask & _IN_Q_OVERFLOW else {watch}
            if mask & _IN_CLOSE_WRITE:
                closed.add(watch)
        for watch in changed:
            self._call(watch)
        for watch in closed:
            self._loop.call_later(_LOOK_AGAIN_S, self._call, watch)

    def _call(self, watch: int) -> None:
        if watch in self._changed:
            self._changed[watch]()


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.inotify_init1.argtypes = [ctypes.c_int]
    libc.inotify_add_watch.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32]
    libc.inotify_rm_watch.argtypes = [ctypes.c_int, ctypes.c_int]
    return libc


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


async def follow(
    file: Descriptor, url: str, inotify: Inotify, patience_s: float, opened: Callable[[Copy], None]
) -> bool:
    """Read along with another process's download until the file is whole or does not grow any more.

    Args:
        file: Open, and locked by another process.
        url: For messages.
        inotify: Reports changes.
        patience_s: How long the file may stay unchanged: the process that fills it may be stopped.
        opened: Called once with its copy, as soon as the header says what the file will contain.

    Returns:
        Whether the download ended; False if the file stayed unchanged for too long.

    Raises:
        OSError: It cannot be watched or read.
    """
    changed = asyncio.Event()
    copy: Copy | None = None
    seen: Progress | None = None
    with inotify.watch(file.number, changed.set):
        try:
            while True:
                changed.clear()
                progress = await file.run(look, file.number)
                if copy is None and progress.state in (CopyState.FILLING, CopyState.COMPLETE):
                    assert progress.header is not None, "a state comes from a header"
                    copy = Copy(file.share(), progress.header)
                    opened(copy)
                if copy is not None:
                    _tell(copy, progress, url)
                if progress.ended:
                    return True
                grown = progress != seen
                seen = progress
                if grown:
                    deadline_s = asyncio.get_running_loop().time() + patience_s
                try:
                    async with asyncio.timeout_at(deadline_s):
                        await changed.wait()
                except TimeoutError:
                    return False
        finally:
            if copy is not None:
                copy.end()
                copy.close()


def _tell(copy: Copy, progress: Progress, url: str) -> None:
    """Pass the progress on to the readers of the copy."""
    copy.grow(progress.filled)
    if progress.state is CopyState.COMPLETE:
        copy.end(whole=True)
    if progress.state is CopyState.REJECTED:
        what = "another process has just downloaded the object, and its digest was not the promised one"
        copy.end(error=StoreError(what, shard=redact(url)))
