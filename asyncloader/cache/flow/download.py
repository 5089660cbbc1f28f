"""One download of one shard into its file."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial

from ..._flow.budget import claim_alone
from ..._flow.channel import Channel, EndOfChannel
from ..._flow.engine import Scope
from ...digest import Verifier
from ...errors import StoreError
from ...stores.buffers import BUFFER_BYTES
from ...stores.failures import changed
from ...stores.file_span import FileSpan
from ...stores.reading.chunks import ShardChunks
from ...stores.reading.reader import read_shards
from ...stores.store import Body, Store
from ...stores.urls import redact
from ...types import Buffer
from ..folder.checksums import Sums, has_crc32c, mark
from ..folder.header import ABANDONED, Header, State
from ..folder.identity import Identity
from ..folder.layout import Folder, Found
from ..folder.locks import publish, withdraw
from .copy import Copy
from .descriptor import Descriptor

__all__ = ["Download", "NotKeptError", "Target"]


class NotKeptError(Exception):
    """The shard is not to be cached: its bytes are to be had from the network. The text may say why."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a download goes.

    Attributes:
        folder: The cache's.
        identity: The shard's.
        found: The file, locked by this process.
        file: Its descriptor.
        run: Has verified the file once it is whole.
    """

    folder: Folder
    identity: Identity
    found: Found
    file: Descriptor
    run: str

    def publish(self, whole: Header) -> None:
        """Give the file its final name, in a thread; if that fails, give it up."""
        try:
            mark(self.found.number, whole, self.run)
            publish(self.folder, self.found, self.identity, whole)
        except OSError:
            self.withdraw(ABANDONED)
            raise

    def withdraw(self, last_word: Header) -> None:
        """Give the file up, in a thread."""
        withdraw(self.folder, self.found, last_word)


class Download:
    """Fills a file.

    Args:
        url: What to read.
        remote: Where from: a store that retries and resumes.
        budget_bytes: For ``read_shards``.
        target: Where to.
        has_room: Asked once the file announces what is coming.
        opened: Called with the copy as soon as it grows.
    """

    def __init__(
        self,
        url: str,
        remote: Store,
        budget_bytes: int,
        target: Target,
        has_room: Callable[[], Awaitable[bool]],
        opened: Callable[[Copy], None],
    ) -> None:
        self._url = url
        self._remote = remote
        self._budget = budget_bytes
        self._target = target
        self._file = target.file
        self._has_room = has_room
        self._opened = opened
        self._admitting = asyncio.Lock()
        self._copy: Copy | None = None
        self._header = ABANDONED  # until it is known what is coming
        self._sums = Sums(self._header)
        self._sha256 = hashlib.sha256()
        self._verifier = Verifier({})

    async def run(self) -> None:
        """Read the shard and write it, until it is whole and has its final name.

        Raises:
            NotKeptError: It cannot be kept; nothing of it was given to a reader.
            StoreError: The store cannot give it, or it is not what the store promised.
            OSError: The disk does not take it.
        """
        last_word: Header | None = ABANDONED
        try:
            await self._fill()
            assert self._copy is not None, "a shard that ends has begun"
            last_word = replace(self._header, state=State.REJECTED)  # unless the digest is right
            self._verifier.check(redact(self._url))
            whole = replace(self._header, state=State.COMPLETE, sha256=self._sha256.digest())
            last_word = None  # from here on the thread sees to it, also if nobody waits for it
            await self._file.run(self._target.publish, whole)
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
                await self._file.run(self._target.withdraw, last_word)

    async def _fill(self) -> None:
        out = Channel[ShardChunks](1)
        async with Scope() as scope:
            scope.start(partial(read_shards, self, [(self._url, 0)], claim_alone(self._budget), out), out)
            try:
                await self._write(await out.receive_async())
            finally:
                out.close()

    async def _write(self, chunks: ShardChunks) -> None:
        """Write chunks as they come: many at once where they come fast, each at once where they do not."""
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
            # Before the bytes: by these, others that read along see that a stretch is there.
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
        """No second requests: a download is ahead of its readers."""

    @asynccontextmanager
    async def read(self, url: str, start: int, stop: int, *, etag: str | None = None) -> AsyncIterator[Body]:
        """The remote's answer, the first one held back until there is room for what it promises."""
        async with self._remote.read(url, start, stop, etag=etag) as body:
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
        self._header = Header(State.FILLING, body.etag, body.total, crc32c=has_crc32c())
        self._sums = Sums(self._header)
        await self._file.run(os.pwrite, self._file.number, self._header.encode(), 0)
        if not await self._has_room():
            raise NotKeptError(
                "there is no room for it; give cache_limit= more, or cache_dir= on a disk with more room"
            )
        self._verifier = Verifier(body.digests)
        self._copy = Copy(self._file.share(), self._header)
        self._opened(self._copy)
