"""Which store serves which URL, what is wrapped around it, and how long its client lives."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass

from ..statistics import NetworkCounts
from ..trace.recording import Traffic
from .access import Access
from .backends import backend_of
from .local import LocalStore
from .network.hedging import Hedges
from .network.pacing import Pace, PacedStore
from .network.renewing import RenewingStore
from .network.resuming import ResumingStore
from .network.retries import RetryBudget
from .network.timed import TimedStore
from .options import options_of
from .schemes import Scheme
from .store import Store
from .urls import origin_of, scheme_of

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
        traffic: Told of those that are repeated.
    """

    def __init__(
        self,
        resources: AsyncExitStack,
        access: Access,
        counts: NetworkCounts,
        traffic: Traffic | None = None,
    ) -> None:
        self._resources = resources
        self._access = access
        self._counts = counts
        self._traffic = traffic
        self._budget = RetryBudget()
        self._origins: dict[tuple[Scheme, str], _Origin] = {}
        self._clients: dict[tuple[object, str], Store] = {}
        self._opening = asyncio.Lock()

    async def of(self, url: str) -> Store:
        """The store that serves ``url``."""
        key = (scheme_of(url), origin_of(url))
        async with self._opening:
            if key not in self._origins:
                self._origins[key] = await self._open(*key)
            return self._origins[key].store

    def hedges_of(self, url: str) -> Hedges | None:
        """What decides on hedges for ``url``, once its store was opened; None for local files."""
        origin = self._origins.get((scheme_of(url), origin_of(url)))
        return None if origin is None else origin.hedges

    async def _open(self, scheme: Scheme, place: str) -> _Origin:
        if scheme.is_local:
            return _Origin(LocalStore())
        network = self._access.network
        hedges = Hedges(self._counts, network.hedge)
        client = await self._client(scheme, place)
        if self._access.renew is not None:
            client = RenewingStore(client, self._access.renew, self._counts)
        timed = TimedStore(client, network, hedges)
        paced = PacedStore(timed, Pace(network.deadline_s), hedges, self._counts)
        resuming = ResumingStore(paced, network, self._budget, self._counts, self._traffic)
        return _Origin(resuming, hedges)

    async def _client(self, scheme: Scheme, place: str) -> Store:
        backend = backend_of(scheme)
        key = scheme.store, "" if backend.ONE_CLIENT else place
        if key not in self._clients:
            options, network = options_of(scheme, self._access.options), self._access.network
            client = backend.open_store(scheme.name, place, options, network)
            self._clients[key] = await self._resources.enter_async_context(client)
        return self._clients[key]
