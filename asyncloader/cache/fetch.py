"""How a shard gets into the cache: found and verified, downloaded, or awaited from another process."""

from __future__ import annotations

import asyncio
import hashlib
import os
import warnings
from bisect import insort
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager, closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import count

from ..errors import StoreError
from ..flow.budget import Budget, claim_alone
from ..flow.channel import Channel, EndOfChannel
from ..flow.engine import Engine, Scope
from ..formats.digest import Verifier
from ..observe.statistics import NetworkCounts
from ..stores.local import FileSpan
from ..stores.reading import ShardChunks, read_shards
from ..stores.store import BUFFER_BYTES, Access, Body, Store
from ..stores.urls import redact
from ..types import Buffer
from .copy import Copy, Descriptor, Marks, Sums, check_steps, has_crc32c, touch
from .folder import CachedFile, CacheFolder, Header, Identity, identity_of, read_header
from .locks import claim, give_up, make_room, publish, withdraw
from .waiting import Inotify, wait_filled


class Turns:
    """Shares memory among downloads. The first shard of each lane gets some before the second of any lane.

    Every lane reads ahead, and the consumer takes a batch from each in turn. First come, first served would
    make it wait for later shards of one lane before the first shard of another.

    Args:
        budget_bytes: For all; no share may be larger.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._free = budget_bytes
        self._asked: Counter[int] = Counter()
        self._arrivals = count()
        #: The places in line, the first one first.
        self._waiting: list[tuple[int, int]] = []
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def take(self, lane: int, share: int) -> AsyncIterator[None]:
        """A block in which so many bytes are reserved for the lane of this number."""
        place = self._asked[lane], next(self._arrivals)
        self._asked[lane] += 1
        insort(self._waiting, place)
        try:
            while self._waiting[0] != place or self._free < share:
                await self._changed.wait()
            self._free -= share
        finally:
            self._waiting.remove(place)
            self._wake()
        try:
            yield
        finally:
            self._free += share
            self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


# For the downloads of a process: bytes that are requested and not yet written. They are set aside from its
# budget, which leaves reading the other half at least. Reading could not lend them: what has been read may
# wait for a consumer that waits for a download.
_MOST_BYTES = 64 << 20

# Large shards take many requests each, so four at once fill a link (four parts of 4 MiB reach some 100 MB/s
# at 50 ms and 40 MB/s a connection), and shards that are needed first stay ahead of later ones. Small shards
# need few requests, so four times as many of them may be under way at once.
_LARGE_AT_ONCE, _SMALL_AT_ONCE = 4, 16


class NotKeptError(Exception):
    """The shard cannot be cached, and is read from the network. The text may say why."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A shard that is to be read.

    Attributes:
        url: As the store takes it.
        identity: Which object that is.
        remote: The store.
        loads: Whether it should be downloaded if it is missing.
        sha256: Its digest by an index, if there is one.
        lane: That reads it.
    """

    url: str
    identity: Identity
    remote: Store
    loads: bool
    sha256: bytes | None
    lane: int


@dataclass(eq=False, repr=False)
class Download:
    """Writes a shard to its file; for ``read_shards``, it is the store of this shard.

    Args:
        remote: The store to read from, which retries and resumes.
        file: Where to write it.
        copy: Opened once there is room for the shard, and grows with the file.
        has_room: Called with the length once the file announces it.
    """

    remote: Store
    file: Descriptor
    copy: Copy
    has_room: Callable[[int], Awaitable[bool]]

    async def run(self, url: str, share: int) -> None:
        """Read the shard and write it.

        Args:
            url: What to read.
            share: The most bytes that are requested and not yet written.

        Raises:
            NotKeptError: It cannot be kept; no reader has got any of it.
            StoreError: The store cannot read it.
            OSError: The disk cannot write it.
        """
        piece_bytes = min(BUFFER_BYTES, share // 4)
        budget, out = claim_alone(share - piece_bytes), Channel[ShardChunks](1)
        async with Scope() as scope:
            scope.start(partial(read_shards, self, [(url, 0)], budget, out), out)
            with closing(out):
                await self._write(await out.receive_async(), piece_bytes)

    async def _write(self, chunks: ShardChunks, piece_bytes: int) -> None:
        """Write chunks as they come: many together if they come fast, each at once if they do not."""
        ended = False
        while not ended:
            piece: list[Buffer] = []
            try:
                while not piece or (len(chunks) and sum(map(len, piece)) < piece_bytes):
                    chunk = await chunks.receive_async()
                    assert not isinstance(chunk, FileSpan), "local files are not cached"
                    piece.append(chunk)
            except EndOfChannel:
                ended = True
            if piece:
                await self.file.run(self._write_piece, piece)
                self.copy.grow(self._written)

    def _write_piece(self, piece: Sequence[Buffer]) -> None:
        for chunk in piece:
            self.sha256.update(chunk)
            self.verifier.update(chunk)
            self._sums.add(self.file.number, chunk)
            rest = memoryview(chunk)
            while rest:
                written = os.pwrite(self.file.number, rest, self.header.begin + self._written)
                rest = rest[written:]
                self._written += written

    @asynccontextmanager
    async def read(self, url: str, start: int, stop: int, *, etag: str | None = None) -> AsyncIterator[Body]:
        """The answer of the remote store; the first one waits until there is room for the shard."""
        async with self.remote.read(url, start, stop, etag=etag) as body:
            if self.copy.header is None:
                await self._admit(body)
            yield body

    async def _admit(self, body: Body) -> None:
        if body.total == 0:
            raise NotKeptError
        if body.etag is None or not Header.fits(body.etag):
            raise NotKeptError("its server names no version of it (ETag), so a change could not be seen")
        if body.total is None:
            raise NotKeptError("its server does not say how long it is")
        header = Header(body.etag, body.total, crc32c=has_crc32c())
        await self.file.run(os.pwrite, self.file.number, header.encode(), 0)
        if not await self.has_room(header.size):
            raise NotKeptError(
                "there is no room for it; give cache_limit= more, or cache_dir= on a disk with more room"
            )
        self.header, self._sums, self.verifier = header, Sums(header), Verifier(body.digests)
        self.sha256, self._written = hashlib.sha256(), 0
        self.copy.open(self.file, header)


class Cache:
    """The disk cache, as one engine uses it; its folder is opened for the first shard.

    Args:
        access: Where the cache is, how much it keeps, and how the stores are reached. An endpoint among the
            options is part of a shard's identity. Another process's download may stand still for twice
            ``stall_s``, so that its own time-outs come first.
        engine: Runs the downloads, and closes the cache before the clients that it reads from.
        counts: Counts each shard that is read while it is being downloaded.
        budget: Of the process, for downloads.
        shares: Whether lanes share shards, so that one is kept too if it is first opened in its middle.
    """

    _folder: CacheFolder
    _root: Descriptor
    _turns: Turns

    def __init__(
        self,
        access: Access,
        engine: Engine,
        counts: NetworkCounts,
        budget: Budget,
        shares: bool = False,
    ) -> None:
        assert access.cache is not None, "there is a cache"
        self._setting, self._access, self._shares = access.cache, access, shares
        self._engine = engine
        self._counts = counts
        self._budget = budget
        self._budget_bytes = 0
        #: What an index promises of shards that are read now or soon.
        self._sha256s: dict[str, bytes] = {}
        self._marks = Marks(access.cache.run)
        self._arriving: dict[Identity, Copy] = {}
        # Of the latest shard. Those of one dataset are much alike, and how long one is, is only known once
        # its server has answered.
        self._usual_bytes = _MOST_BYTES
        # One at a time: of two that count at once, each could find that there is no room for both.
        self._admitting = asyncio.Lock()
        self._inotify: Inotify | None = None
        # Inodes and lengths of files that did not grow: the processes that fill them may be stopped.
        self._stopped: set[tuple[int, int]] = set()
        self._warned: set[str] = set()

    def promise(self, url: str, sha256: bytes | None) -> None:
        """Store what an index promises of a shard before it is read; storing all digests would be large."""
        if sha256 is not None:
            self._sha256s[url] = sha256

    def _open(self) -> None:
        """Open the folder, if it is not open."""
        if not self._budget_bytes:
            self._folder = CacheFolder(self._setting.folder)
            self._root = Descriptor(self._folder.number)
            self._budget_bytes = min(_MOST_BYTES, self._budget.left_bytes // 2)
            self._budget.set_aside(self._budget_bytes)
            self._turns = Turns(self._budget_bytes)
            self._engine.resources.callback(self._close)

    def _close(self) -> None:
        if self._inotify is not None:
            self._inotify.close()
        self._root.close()
        self._budget.put_back(self._budget_bytes)

    async def copy_of(self, url: str, remote: Store, lane: int, start: int, etag: str | None) -> Copy | None:
        """The shard's copy, complete or growing, to be closed by the caller; None if there is none.

        Args:
            url: As the store takes it.
            remote: The store.
            lane: That reads it: lanes take turns where shards have to be downloaded.
            start: From where on.
            etag: Of the version that is wanted; None opens the shard.

        Raises:
            StoreError: The shard had to be downloaded or verified, and its server cannot read it.
            ValueError: The private folder is not private any more; see ``CacheFolder``.
            OSError: It cannot be opened.
        """
        self._open()
        opens = etag is None
        wanted = Wanted(
            url,
            self._identity_of(url),
            remote,
            loads=opens and (start == 0 or self._shares),
            sha256=self._sha256s.get(url),
            lane=lane,
        )
        copy = self._arriving.get(wanted.identity)
        if copy is None:
            kept = Copy()
            try:
                if await self._open_kept(wanted, kept, verifies=False):
                    return kept
            except OSError as error:
                self.disk_failed(error)
            copy = self._arriving.get(wanted.identity)  # another read may have come first
        if copy is None:
            if not opens:
                return None
            copy = Copy()
            # The copy reports the result; the channel only gives the task an owner.
            self._engine.submit(partial(self._bring, wanted, copy), Channel[None](1))
            self._arriving[wanted.identity] = copy
        copy.share()
        is_there = False
        try:
            is_there = await copy.wait_opened()
        finally:
            if not is_there:
                copy.close()
        if is_there and copy.growing and opens:
            self._counts.cached += not self._folder.evicted
            self._counts.evicting += self._folder.evicted > 0
        return copy if is_there else None

    def _identity_of(self, url: str) -> Identity:
        return identity_of(url, self._access.options, os.environ)

    def disk_failed(self, error: OSError) -> None:
        """Warn the user once, since reading goes on without the disk."""
        self._warn(f"reading without the disk cache where it fails: {error.strerror or type(error).__name__}")

    async def put_aside(self, url: str, copy: Copy) -> None:
        """Take a copy out of use whose file is damaged.

        Readers that have it open go on with its sound stretches.
        """
        assert copy.header is not None, "it was read"
        path = self._folder.final_path(self._identity_of(url), copy.header.etag, copy.header.size)
        try:
            name = await copy.file.run(self._folder.quarantine, path, copy.file.number)
        except OSError as error:
            self.disk_failed(error)
            return
        if name is not None:
            self._report_bad(url, name)

    async def _bring(self, wanted: Wanted, copy: Copy) -> None:
        failure: Exception | None = None
        try:
            await self._fetch(wanted, copy)
        except NotKeptError as error:
            if error.args:
                self._warn(f"reading without the disk cache where a shard cannot be kept: {error}")
        except StoreError as error:
            failure = error
        except OSError as error:
            self.disk_failed(error)
        except Exception as error:  # any error is passed to the readers
            failure = error
        finally:
            del self._arriving[wanted.identity]
            copy.end(error=failure)
            copy.close()

    def _warn(self, message: str) -> None:
        """Warn once with each message; reading goes on."""
        if message not in self._warned:
            self._warned.add(message)
            warnings.warn(message, RuntimeWarning, stacklevel=2)

    def _report_bad(self, url: str, name: str) -> None:
        """Warn of a damaged file, each time."""
        warnings.warn(
            f"the disk cache held a damaged copy of {redact(url)}; it is now {name!r}, and the shard is "
            "downloaded again. If this happens often, check the disk",
            RuntimeWarning,
            stacklevel=2,
        )

    # --- how a shard gets in ---

    async def _fetch(self, wanted: Wanted, copy: Copy) -> None:
        """Open ``copy`` as soon as possible, and stay until it is whole.

        Raises:
            NotKeptError: The shard cannot be kept.
            StoreError: Its server cannot read it.
            OSError: The disk fails.
        """
        share = max(self._usual_bytes, self._budget_bytes // _SMALL_AT_ONCE)
        share = min(share, self._budget_bytes // _LARGE_AT_ONCE)
        with ExitStack() as stack:
            async with self._turns.take(wanted.lane, share):
                # Its readers may have left while it waited.
                if (
                    not copy.is_wanted
                    or await self._open_kept(wanted, copy, verifies=True)
                    or not wanted.loads
                ):
                    return
                found = await self._acquire(partial(claim, self._folder, wanted.identity))
                if found is None:
                    return
                file = stack.enter_context(closing(Descriptor(found.number, self._root)))
                if found.locked:
                    await self._fill(wanted, copy, found, file, share)
                    return
            # Not while holding a turn: a process that is stopped must not keep our own downloads waiting.
            await self._wait_filled(copy, file)

    async def _acquire(self, work: Callable[[], CachedFile | None]) -> CachedFile | None:
        """A file of the folder, which a thread opens; closed if this is cancelled."""
        return await self._root.acquire(work, partial(give_up, self._folder))

    # --- shards on disk ---

    async def _open_kept(self, wanted: Wanted, copy: Copy, *, verifies: bool) -> bool:
        """Open ``copy`` from a complete file; returns whether there is one.

        Args:
            wanted: Which shard.
            copy: Not opened yet.
            verifies: Verify the file if this run has not; otherwise such a file is left alone.
        """
        bad: list[str] = []
        found = await self._acquire(partial(self._find, wanted, bad))
        for name in bad:
            self._report_bad(wanted.url, name)
        if found is None or found.header is None:
            return False
        with closing(Descriptor(found.number, self._root)) as file:
            if not found.is_verified:
                if not verifies or not await self._verify(wanted, found, found.header, file):
                    return False
                await file.run(self._marks.add, found.number, found.header)
                await file.run(touch, found.number)
            self._usual_bytes = found.header.size
            copy.open(file, found.header)
        return True

    def _find(self, wanted: Wanted, bad: list[str]) -> CachedFile | None:
        """The complete file, in a thread; it is noted as used if this run has verified it."""
        found = self._folder.find(wanted.identity, bad, wanted.sha256)
        if found is not None and found.header is not None:
            try:
                found.is_verified = self._marks.has(found.number, found.header)
                if found.is_verified:
                    touch(found.number)
            except OSError:
                found.close()
                raise
        return found

    async def _verify(self, wanted: Wanted, found: CachedFile, header: Header, file: Descriptor) -> bool:
        """Compare another run's file with the server and with its digest; a wrong one is removed."""
        async with wanted.remote.read(wanted.url, 0, 1) as body:
            current = (body.etag, body.total) == (header.etag, header.size)
        if not current:
            await file.run(self._folder.remove, found.path)
            return False
        steps = check_steps(found.number, header)
        while (right := await file.run(next, steps)) is None:
            pass
        if not right:
            name = await file.run(self._folder.quarantine, found.path, found.number)
            if name is not None:
                self._report_bad(wanted.url, name)
        return right

    # --- shards to be downloaded ---

    async def _fill(
        self, wanted: Wanted, copy: Copy, found: CachedFile, file: Descriptor, share: int
    ) -> None:
        """Fill a file that this process has locked, until it is whole and has its final name."""
        is_given_up = True
        try:
            # Another process may have had the lock before, and finished.
            if await self._open_kept(wanted, copy, verifies=True):
                return
            download = Download(wanted.remote, file, copy, self._has_room)
            await download.run(wanted.url, share)
            download.verifier.check(redact(wanted.url))
            whole = replace(download.header, sha256=download.sha256.digest())
            is_given_up = False  # from here on the thread does that, also if this is cancelled
            await file.run(self._publish, wanted.identity, found, whole)
            copy.end(whole=True)
        finally:
            if is_given_up:
                # If cancelled a second time, the lock goes with the descriptor, the file with the next scan.
                await file.run(withdraw, self._folder, found)

    def _publish(self, identity: Identity, found: CachedFile, whole: Header) -> None:
        """Give the file its final name, in a thread; if that fails, withdraw it."""
        try:
            self._marks.add(found.number, whole)
            publish(self._folder, found, identity, whole)
        except OSError:
            withdraw(self._folder, found)
            raise

    async def _has_room(self, size: int) -> bool:
        """Make room on the disk for a shard of that size, which its file announces; says whether there is."""
        self._usual_bytes = size
        async with self._admitting:
            evicted = self._folder.evicted
            has_room = await self._root.run(make_room, self._folder, self._setting.limit_bytes)
            self._counts.evicting += not has_room and self._folder.evicted > evicted
        return has_room

    async def _wait_filled(self, copy: Copy, file: Descriptor) -> None:
        """Open ``copy`` once another process has filled the file, unless that has been stopped."""
        if await self._progress_of(file) in self._stopped:
            return
        try:
            self._inotify = self._inotify or Inotify()
        except OSError as error:
            self._warn(
                "reading without the disk cache what another process is just downloading, since its file "
                f"cannot be watched: {error.strerror} (see fs.inotify.max_user_instances)"
            )
            return
        if not await wait_filled(file, self._inotify, 2 * self._access.network.stall_s):
            self._stopped.add(await self._progress_of(file))
            return
        header = await file.run(read_header, file.number)
        if header is not None and header.is_complete:
            # Its digest was computed a moment ago, from bytes that were just downloaded.
            await file.run(self._marks.add, file.number, header)
            copy.open(file, header)
            self._counts.cached += 1  # a consumer had to wait for the download

    async def _progress_of(self, file: Descriptor) -> tuple[int, int]:
        found = await file.run(os.fstat, file.number)
        return found.st_ino, found.st_size
