"""Which store serves which URL, what is wrapped around it, and how long its client lives."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from urllib.parse import urlsplit

from ..progress import NetworkCounts
from .access import Access
from .local import LocalStore
from .network.hedging import Hedges
from .network.pacing import Pace, PacedStore
from .network.renewing import RenewingStore
from .network.resuming import ResumingStore
from .network.retries import RetryBudget
from .network.timed import TimedStore
from .store import Store
from .urls import scheme_of

__all__ = ["Stores"]


@dataclass(slots=True)
class _Origin:
    """One server or bucket, and what was learned of it."""

    store: Store
    hedges: Hedges | None = None


class Stores:
    """The stores of one engine, each made when first needed and closed with the engine.

    Clients are never shared between processes or loops: a session inherited through a fork gives one
    reader another's bytes.

    Args:
        resources: The engine's; it closes what is opened here.
        access: How the stores are reached.
        counts: Told of each request.
    """

    def __init__(self, resources: AsyncExitStack, access: Access, counts: NetworkCounts) -> None:
        self._resources = resources
        self._access = access
        self._counts = counts
        self._budget = RetryBudget()
        self._origins: dict[tuple[str, str], _Origin] = {}
        self._clients: dict[str, Store] = {}
        self._opening = asyncio.Lock()

    async def of(self, url: str) -> Store:
        """The store that serves ``url``."""
        key = _origin_of(url)
        async with self._opening:
            if key not in self._origins:
                self._origins[key] = await self._open(*key)
            return self._origins[key].store

    def hedges_of(self, url: str) -> Hedges | None:
        """What decides on hedges for ``url``, once its store was opened; None for local files."""
        origin = self._origins.get(_origin_of(url))
        return None if origin is None else origin.hedges

    async def _open(self, scheme: str, place: str) -> _Origin:
        if scheme == "file":
            return _Origin(LocalStore())
        network = self._access.network
        hedges = Hedges(self._counts, network.hedge)
        client = await self._client(scheme, place)
        if self._access.renew is not None:
            client = RenewingStore(client, self._access.renew, self._counts)
        timed = TimedStore(client, network, hedges)
        paced = PacedStore(timed, Pace(network.deadline_s), hedges, self._counts)
        return _Origin(ResumingStore(paced, network, self._budget, self._counts), hedges)

    async def _client(self, scheme: str, place: str) -> Store:
        # Each client library is imported by those who need it: together they cost a quarter second.
        if scheme in ("http", "https"):
            return await self._shared("http", self._http)
        if scheme == "hf":
            return await self._shared("hf", self._hub)
        from .objects.store import ObjectStore

        return ObjectStore(scheme, place, self._access.options)

    async def _shared(
        self, name: str, open_client: Callable[[], AbstractAsyncContextManager[Store]]
    ) -> Store:
        """A client that serves all origins."""
        if name not in self._clients:
            self._clients[name] = await self._resources.enter_async_context(open_client())
        return self._clients[name]

    def _http(self) -> AbstractAsyncContextManager[Store]:
        from .http.client import HttpStore

        headers = self._access.options.get("headers", {})
        return HttpStore.open(connect_s=self._access.network.connect_s, headers=headers)

    def _hub(self) -> AbstractAsyncContextManager[Store]:
        from .hub.client import HubStore
        from .hub.urls import hub_of

        hub = hub_of(self._access.options, os.environ)
        return HubStore.open(hub, connect_s=self._access.network.connect_s)


def _origin_of(url: str) -> tuple[str, str]:
    """The scheme, and the server or bucket."""
    scheme = scheme_of(url)
    return scheme, "" if scheme == "file" else urlsplit(url).netloc
