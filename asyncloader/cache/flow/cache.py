"""The disk cache as one engine uses it: which shards are there, and which are on their way."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeAlias

from ..._flow.channel import Channel
from ..._flow.engine import Work
from ...errors import StoreError
from ...stores.access import CacheSetting
from ...stores.policy import NetworkPolicy
from ..folder.checksums import Marks, touch
from ..folder.identity import Identity
from ..folder.layout import Folder, Found
from .complaints import Complaints
from .copy import Arrival, Copy
from .descriptor import Descriptor
from .download import NotKeptError
from .intake import Intake, Wanted

__all__ = ["Cache", "Start"]

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
        ValueError: The private folder is not private any more; see ``Folder``.
        OSError: It cannot be opened.
    """

    def __init__(self, setting: CacheSetting, start: Start, network: NetworkPolicy) -> None:
        self._setting = setting
        self._start = start
        self._folder = Folder(setting.folder)
        self._root = Descriptor(self._folder.number)
        self._complaints = Complaints()
        self._marks = Marks(setting.run)
        self._intake = Intake(setting, network, self._folder, self._root, self._complaints, self._marks)
        self._arrivals: dict[Identity, Arrival] = {}

    @property
    def has_evicted(self) -> bool:
        """Whether shards had to go for those that were downloaded here."""
        return self._folder.evicted > 0

    @classmethod
    @asynccontextmanager
    async def open(cls, setting: CacheSetting, start: Start, network: NetworkPolicy) -> AsyncIterator[Cache]:
        """A cache for the running loop; to be left when nothing reads from it any more."""
        cache = cls(setting, start, network)
        try:
            yield cache
        finally:
            cache._intake.close()
            cache._root.close()

    async def copy_of(self, wanted: Wanted) -> Copy | None:
        """The shard's copy, complete or growing, to be closed by the caller; None if there is none.

        Raises:
            StoreError: The shard was to be downloaded or verified, and its server does not give it.
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
            # Only the arrival tells how it went; the channel is there for the task to have an owner.
            self._start(partial(self._bring, wanted, arrival), Channel[None](1))
            self._arrivals[wanted.identity] = arrival
        return await arrival.join()

    def disk_failed(self, error: OSError) -> None:
        """Tell the user once, since reading goes on without the disk."""
        self._complaints.disk_failed(error)

    async def put_aside(self, url: str, identity: Identity, copy: Copy) -> None:
        """Take a copy out of use whose file does not hold any more what was put into it.

        Those who have it open go on with what of it is right.
        """
        path = self._folder.final_path(identity, copy.etag, copy.size)
        try:
            name = await copy.file.run(self._folder.quarantine, path, copy.file.number)
        except OSError as error:
            self._complaints.disk_failed(error)
            return
        if name is not None:
            self._complaints.bad_file(url, name)

    async def _trusted(self, wanted: Wanted) -> Copy | None:
        """The copy of a complete file, if this run has verified it before."""
        bad: list[str] = []
        try:
            kept = await self._root.acquire(partial(self._open_trusted, wanted, bad))
        except OSError as error:
            self._complaints.disk_failed(error)
            return None
        for name in bad:
            self._complaints.bad_file(wanted.url, name)
        if kept is None or kept.header is None:
            return None
        return Copy(Descriptor(kept.number, self._root), kept.header)

    def _open_trusted(self, wanted: Wanted, bad: list[str]) -> Found | None:
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
            await self._intake.bring(wanted, arrival)
        except NotKeptError as error:
            if error.args:
                self._complaints.not_kept(error)
        except StoreError as error:
            failure = error
        except OSError as error:
            self._complaints.disk_failed(error)
        except Exception as error:  # whatever it is, the readers have to hear of it
            failure = error
        finally:
            del self._arrivals[wanted.identity]
            arrival.close(failure)
