"""The cache around all stores of an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass

from ..stores.access import Access, CacheSetting
from ..stores.network.hedging import Hedges
from ..stores.reading.reader import Opener
from ..stores.store import Store
from ..stores.urls import scheme_of
from .cache import Cache, Start
from .store import CachedStore

__all__ = ["CachedStores"]


class CachedStores:
    """Gives stores that keep what they read, to all lanes of an engine.

    Args:
        remote: The stores themselves; local files are left as they are.
        access: How the stores are reached.
        setting: Of the cache.
        resources: The engine's; it closes the cache before the clients that it reads from.
        start: ``Engine.submit``.
        sha256s: What a manifest promises of shards, by URL.
    """

    def __init__(
        self,
        remote: Opener,
        access: Access,
        setting: CacheSetting,
        resources: AsyncExitStack,
        start: Start,
        sha256s: Mapping[str, bytes],
    ) -> None:
        self._remote = remote
        self._access = access
        self._setting = setting
        self._resources = resources
        self._start = start
        self._sha256s = sha256s
        self._cache: Cache | None = None
        self._opening = asyncio.Lock()

    def for_lane(self, lane: int) -> Opener:
        """These stores, as one lane reads from them."""
        return _LaneStores(self, lane)

    async def of(self, url: str, lane: int) -> Store:
        """The store that serves ``url``."""
        store = await self._remote.of(url)
        if scheme_of(url) == "file":
            return store
        async with self._opening:
            if self._cache is None:
                opened = Cache.open(self._setting, self._start, self._access.network)
                self._cache = await self._resources.enter_async_context(opened)
        return CachedStore(store, self._cache, self._access.options, self._sha256s, lane)


@dataclass(frozen=True)
class _LaneStores:
    stores: CachedStores
    lane: int

    async def of(self, url: str) -> Store:
        return await self.stores.of(url, self.lane)

    def hedges_of(self, url: str) -> Hedges | None:
        """None: what is read from disk has nobody to race against."""
        return None
