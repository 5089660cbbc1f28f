"""How a shard gets into the cache: found and verified, downloaded, or read along with another process."""

from __future__ import annotations

import asyncio
import heapq
import os
import warnings
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, TypeAlias

from ..errors import StoreError
from ..flow.channel import Channel
from ..flow.engine import Work
from ..stores.store import CacheSetting, NetworkPolicy, Store
from ..stores.urls import redact
from .copy import Arrival, Check, Copy, Descriptor, Marks, touch
from .download import Download, DownloadTarget, Inotify, NotKeptError, follow
from .folder import ABANDONED, CachedFile, CacheFolder, CopyState, Header, Identity, read_header
from .locks import claim, give_up, make_room


class Turns:
    """A budget of bytes. The first shard of each lane gets a share before the second of any lane.

    Every lane reads ahead, and the consumer takes a batch from each in turn. First come, first served would
    make it wait for later shards of one lane before the first shard of another.

    Args:
        budget_bytes: For all; no share may be larger.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._free = budget_bytes
        self._asked: Counter[int] = Counter()
        self._arrivals = count()
        self._waiting: list[tuple[int, int, int, asyncio.Future[None]]] = []

    @asynccontextmanager
    async def take(self, lane: int, share: int) -> AsyncIterator[None]:
        """A block in which so many bytes are reserved for the lane of this number."""
        nth = self._asked[lane]
        self._asked[lane] += 1
        if self._free >= share and not self._waiting:
            self._free -= share
        else:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiting, (nth, next(self._arrivals), share, turn))
            try:
                await turn
            except asyncio.CancelledError:
                # Either the share was granted, or shares behind it may fit now.
                self._give_back(0 if turn.cancelled() else share)
                raise
        try:
            yield
        finally:
            self._give_back(share)

    def _give_back(self, share: int) -> None:
        self._free += share
        while self._waiting:
            _, _, wanted, turn = self._waiting[0]
            if not turn.done():
                if wanted > self._free:
                    return
                self._free -= wanted
                turn.set_result(None)
            heapq.heappop(self._waiting)


# Shared by the downloads: what is requested and not yet written.
_BUDGET_BYTES = 64 << 20

# The share of each. Large shards take many requests each, so four at once fill a link (four parts of 4 MiB
# reach some 100 MB/s at 50 ms and 40 MB/s a connection), and shards that are needed first stay ahead of
# later ones. Small shards need few requests, so many of them have to be under way at once.
_MOST_SHARE, _LEAST_SHARE = 16 << 20, 4 << 20

# More than can be stopped at once; beyond it, the next reader has to find out again.
_MOST_STOPPED = 1024


@dataclass(frozen=True, slots=True)
class Wanted:
    """A shard that is to be read.

    Attributes:
        url: As the store takes it.
        identity: Which object that is.
        remote: The store.
        opens: Whether this is its reader's first read of it.
        loads: Whether it should be downloaded if it is missing.
        sha256: Its digest by an index, if there is one.
        lane: That reads it.
    """

    url: str
    identity: Identity
    remote: Store
    opens: bool
    loads: bool
    sha256: bytes | None
    lane: int


Start: TypeAlias = Callable[[Work, Channel[Any]], None]
"""Runs work as a task with an owner: ``Engine.submit``."""


class Cache:
    """The disk cache, as one engine uses it.

    Args:
        setting: Where, how much, and for which run.
        start: ``Engine.submit``; what it starts ends with the engine.
        network: How long another process's download may stand still: twice ``stall_s``, so that its own
            time-outs come first.

    Raises:
        ValueError: The private folder is not private any more; see ``CacheFolder``.
        OSError: It cannot be opened.
    """

    def __init__(self, setting: CacheSetting, start: Start, network: NetworkPolicy) -> None:
        self._setting = setting
        self._start = start
        self._patience_s = 2 * network.stall_s
        self._folder = CacheFolder(setting.folder)
        self._root = Descriptor(self._folder.number)
        self._marks = Marks(setting.run)
        self._arrivals: dict[Identity, Arrival] = {}
        self._turns = Turns(_BUDGET_BYTES)
        # Of the latest shard. Those of one dataset are much alike, and how long one is, is only known once
        # its server has answered.
        self._usual_bytes = _MOST_SHARE
        # One at a time: of two that count at once, each could find that there is no room for both.
        self._admitting = asyncio.Lock()
        self._inotify: Inotify | None = None
        # Files that did not grow, by inode and length: the process that fills them may be stopped.
        self._stopped: dict[Identity, tuple[int, int]] = {}
        self._warned: set[str] = set()

    @property
    def has_evicted(self) -> bool:
        """Whether shards had to go for those that were downloaded here."""
        return self._folder.evicted > 0

    @classmethod
    @asynccontextmanager
    async def open(cls, setting: CacheSetting, start: Start, network: NetworkPolicy) -> AsyncIterator[Cache]:
        """A cache for the running loop; left after its last reader."""
        cache = cls(setting, start, network)
        try:
            yield cache
        finally:
            if cache._inotify is not None:
                cache._inotify.close()
            cache._root.close()

    async def copy_of(self, wanted: Wanted) -> Copy | None:
        """The shard's copy, complete or growing, to be closed by the caller; None if there is none.

        Raises:
            StoreError: The shard had to be downloaded or verified, and its server cannot read it.
        """
        arrival = self._arrivals.get(wanted.identity)
        if arrival is None:
            kept = await self._trusted(wanted)
            if kept is not None:
                return kept
            arrival = self._arrivals.get(wanted.identity)  # another read may have come first
        if arrival is None:
            if not wanted.opens:
                return None
            arrival = Arrival()
            # The arrival reports the result; the channel only gives the task an owner.
            self._start(partial(self._bring, wanted, arrival), Channel[None](1))
            self._arrivals[wanted.identity] = arrival
        return await arrival.join()

    def disk_failed(self, error: OSError) -> None:
        """Warn the user once, since reading goes on without the disk."""
        self._warn(f"reading without the disk cache where it fails: {error.strerror or type(error).__name__}")

    async def put_aside(self, url: str, identity: Identity, copy: Copy) -> None:
        """Take a copy out of use whose file is damaged.

        Readers that have it open go on with its sound stretches.
        """
        path = self._folder.final_path(identity, copy.etag, copy.size)
        try:
            name = await copy.file.run(self._folder.quarantine, path, copy.file.number)
        except OSError as error:
            self.disk_failed(error)
            return
        if name is not None:
            self._report_bad(url, name)

    async def _trusted(self, wanted: Wanted) -> Copy | None:
        """The copy of a complete file, if this run has verified it before."""
        bad: list[str] = []
        try:
            kept = await self._root.acquire(partial(self._open_trusted, wanted, bad))
        except OSError as error:
            self.disk_failed(error)
            return None
        for name in bad:
            self._report_bad(wanted.url, name)
        if kept is None or kept.header is None:
            return None
        return Copy(Descriptor(kept.number, self._root), kept.header)

    def _open_trusted(self, wanted: Wanted, bad: list[str]) -> CachedFile | None:
        """The complete file, if this run has verified it before; in a thread."""
        found = self._folder.find(wanted.identity, bad, wanted.sha256)
        if found is None or found.header is None:
            return None
        try:
            if self._marks.has(found.number, found.header):
                if wanted.opens:
                    touch(found.number)
                return found
        except OSError:
            found.close()
            raise
        found.close()
        return None

    async def _bring(self, wanted: Wanted, arrival: Arrival) -> None:
        failure: Exception | None = None
        try:
            await self._fetch(wanted, arrival)
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
            del self._arrivals[wanted.identity]
            arrival.close(failure)

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

    # --- how a shard gets in: at most sixteen at once, and four large ones ---

    async def _fetch(self, wanted: Wanted, arrival: Arrival) -> None:
        """Give ``arrival`` a copy as soon as there is one, and stay until it is whole.

        Raises:
            NotKeptError: The shard cannot be kept.
            StoreError: Its server cannot read it.
            OSError: The disk fails.
        """
        share = min(max(self._usual_bytes, _LEAST_SHARE), _MOST_SHARE)
        async with self._turns.take(wanted.lane, share):
            # Its readers may have left while it waited.
            if not arrival.is_wanted or await self._bring_kept(wanted, arrival) or not wanted.loads:
                return
            found = await self._root.acquire(
                partial(claim, self._folder, wanted.identity), partial(give_up, self._folder)
            )
            if found is None:
                return
            file = Descriptor(found.number, self._root)
            if found.locked:
                try:
                    await self._download(wanted, arrival, found, file, share)
                finally:
                    file.close()
                return
        # Not while holding a turn: a process that is stopped must not keep our own downloads waiting.
        try:
            await self._follow(wanted, arrival, file)
        finally:
            file.close()

    # --- shards on disk ---

    async def _bring_kept(self, wanted: Wanted, arrival: Arrival) -> bool:
        """Serve a complete file, after verifying it; returns whether there is one."""
        bad: list[str] = []
        found = await self._root.acquire(partial(self._folder.find, wanted.identity, bad, wanted.sha256))
        for name in bad:
            self._report_bad(wanted.url, name)
        if found is None or found.header is None:
            return False
        self._usual_bytes = found.header.size
        copy = Copy(Descriptor(found.number, self._root), found.header)
        try:
            if not await copy.file.run(self._marks.has, found.number, found.header):
                if not await self._verify(wanted, found, found.header, copy.file):
                    return False
                await copy.file.run(self._marks.add, found.number, found.header)
            await copy.file.run(touch, found.number)
            arrival.opened(copy)
            return True
        finally:
            copy.close()

    async def _verify(self, wanted: Wanted, found: CachedFile, header: Header, file: Descriptor) -> bool:
        """Compare another run's file with the server and with its digest; a wrong one is removed."""
        async with wanted.remote.read(wanted.url, 0, 1) as body:
            current = (body.etag, body.total) == (header.etag, header.size)
        if not current:
            await file.run(self._folder.remove, found.path)
            return False
        check = Check(header)
        while (right := await file.run(check.step, found.number)) is None:
            pass
        if not right:
            name = await file.run(self._folder.quarantine, found.path, found.number)
            if name is not None:
                self._report_bad(wanted.url, name)
        return right

    # --- shards to be downloaded ---

    async def _download(
        self, wanted: Wanted, arrival: Arrival, found: CachedFile, file: Descriptor, budget_bytes: int
    ) -> None:
        target = DownloadTarget(self._folder, wanted.identity, found, file, self._setting.run)
        missing = False
        try:
            # Another process may have had the lock before, and finished.
            missing = not await self._bring_kept(wanted, arrival)
        finally:
            if not missing:
                await file.run(target.withdraw, ABANDONED)
        if not missing:
            return

        def opened(copy: Copy) -> None:
            self._usual_bytes = copy.size
            arrival.opened(copy)

        await Download(wanted.url, wanted.remote, budget_bytes, target, self._has_room, opened).run()

    async def _has_room(self) -> bool:
        async with self._admitting:
            return await self._root.run(make_room, self._folder, self._setting.limit_bytes)

    async def _follow(self, wanted: Wanted, arrival: Arrival, file: Descriptor) -> None:
        if await self._state_of(file) == self._stopped.get(wanted.identity):
            return
        try:
            self._inotify = self._inotify or Inotify()
        except OSError as error:
            self._warn(
                "reading without the disk cache what another process is just downloading, since its file "
                f"cannot be watched: {error.strerror} (see fs.inotify.max_user_instances)"
            )
            return
        if await follow(file, wanted.url, self._inotify, self._patience_s, arrival.opened):
            self._stopped.pop(wanted.identity, None)
            header = await file.run(read_header, file.number)
            if header is not None and header.state is CopyState.COMPLETE:
                # Its digest was computed a moment ago, from bytes that were just downloaded.
                await file.run(self._marks.add, file.number, header)
        else:
            if len(self._stopped) >= _MOST_STOPPED:
                self._stopped.clear()
            self._stopped[wanted.identity] = await self._state_of(file)

    async def _state_of(self, file: Descriptor) -> tuple[int, int]:
        found = await file.run(os.fstat, file.number)
        return found.st_ino, found.st_size
