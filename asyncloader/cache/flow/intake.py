"""How a shard gets into the cache: found and verified, downloaded, or read along with another process."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from functools import partial

from ...stores.access import CacheSetting
from ...stores.policy import NetworkPolicy
from ...stores.store import Store
from ..folder.checksums import Check, Marks, touch
from ..folder.eviction import make_room
from ..folder.header import ABANDONED, Header, State
from ..folder.identity import Identity
from ..folder.layout import Folder, Found, read_header
from ..folder.locks import claim, give_up
from .complaints import Complaints
from .copy import Arrival, Copy
from .descriptor import Descriptor
from .download import Download, Target
from .follow import follow
from .inotify import Inotify
from .turns import Turns

__all__ = ["Intake", "Wanted"]

# Shared by the downloads: what is requested and not yet written.
_BUDGET_BYTES = 64 << 20

# The share of each. Large shards come with many requests each, so that four at once fill a line (four parts
# of 4 MiB bring some 100 MB/s at 50 ms and 40 MB/s a connection), and those that are needed first stay ahead
# of those that are needed later. Small ones have little to request: of these many are needed at once.
_MOST_SHARE, _LEAST_SHARE = 16 << 20, 4 << 20

# More than can be stopped at once; beyond it, the next reader finds out anew.
_MOST_STOPPED = 1024


@dataclass(frozen=True, slots=True)
class Wanted:
    """A shard that is to be read.

    Attributes:
        url: As the store takes it.
        identity: What it means.
        remote: The store.
        opens: Whether this is its reader's first read of it.
        loads: Whether it should be downloaded if it is not there.
        sha256: What an index promises of it, if there is one.
        lane: Whose it is.
    """

    url: str
    identity: Identity
    remote: Store
    opens: bool
    loads: bool
    sha256: bytes | None
    lane: int


class Intake:
    """Brings shards, at most sixteen at once, and four large ones.

    Args:
        setting: How much may be kept, and for which run.
        network: Its ``stall_s``, twice, is how long another process's download may stand still: time enough
            for that process's own time-outs.
        folder: Where to.
        root: Its descriptor.
        complaints: Told what goes wrong and is no error.
        marks: Which files the run has verified.
    """

    def __init__(
        self,
        setting: CacheSetting,
        network: NetworkPolicy,
        folder: Folder,
        root: Descriptor,
        complaints: Complaints,
        marks: Marks,
    ) -> None:
        self._setting = setting
        self._patience_s = 2 * network.stall_s
        self._folder = folder
        self._root = root
        self._complaints = complaints
        self._marks = marks
        self._turns = Turns(_BUDGET_BYTES)
        # Of the latest shard. Those of one dataset are much alike, and how long one is, is only known once
        # its server has answered.
        self._usual_bytes = _MOST_SHARE
        # One at a time: of two that count at once, each could find that there is no room for both.
        self._admitting = asyncio.Lock()
        self._inotify: Inotify | None = None
        # Files that did not grow, by inode and length: whoever fills them may be stopped.
        self._stopped: dict[Identity, tuple[int, int]] = {}

    def close(self) -> None:
        if self._inotify is not None:
            self._inotify.close()

    async def bring(self, wanted: Wanted, arrival: Arrival) -> None:
        """Give ``arrival`` a copy as soon as there is one, and stay until it is whole.

        Raises:
            NotKeptError: The shard cannot be kept.
            StoreError: Its server does not give it.
            OSError: The disk fails.
        """
        share = min(max(self._usual_bytes, _LEAST_SHARE), _MOST_SHARE)
        async with self._turns.take(wanted.lane, share):
            # Its readers may have gone while it stood in line.
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

    # --- what is there ---

    async def _bring_kept(self, wanted: Wanted, arrival: Arrival) -> bool:
        """Serve a complete file, once it is known to be right."""
        bad: list[str] = []
        found = await self._root.acquire(partial(self._folder.find, wanted.identity, bad, wanted.sha256))
        for name in bad:
            self._complaints.bad_file(wanted.url, name)
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

    async def _verify(self, wanted: Wanted, found: Found, header: Header, file: Descriptor) -> bool:
        """Hold what another run has left against the server and its digest; if it is wrong, it goes."""
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
                self._complaints.bad_file(wanted.url, name)
        return right

    # --- what is not ---

    async def _download(
        self, wanted: Wanted, arrival: Arrival, found: Found, file: Descriptor, budget_bytes: int
    ) -> None:
        target = Target(self._folder, wanted.identity, found, file, self._setting.run)
        missing = False
        try:
            # Before we had the lock, another process may have had it and finished.
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
            self._complaints.cannot_follow(error)
            return
        if await follow(file, wanted.url, self._inotify, self._patience_s, arrival.opened):
            self._stopped.pop(wanted.identity, None)
            header = await file.run(read_header, file.number)
            if header is not None and header.state is State.COMPLETE:
                # Its digest was worked out a moment ago, from bytes of a moment ago.
                await file.run(self._marks.add, file.number, header)
        else:
            if len(self._stopped) >= _MOST_STOPPED:
                self._stopped.clear()
            self._stopped[wanted.identity] = await self._state_of(file)

    async def _state_of(self, file: Descriptor) -> tuple[int, int]:
        found = await file.run(os.fstat, file.number)
        return found.st_ino, found.st_size
