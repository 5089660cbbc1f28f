"""Which store serves which URL, what is wrapped around it, and how long its client lives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from typing import Any, Protocol

from ..observe.statistics import NetworkCounts
from ..observe.tracing import Traffic
from . import hub
from .http import backend as http
from .local import LocalStore
from .network import RenewingStore, ResumingStore, TimedStore
from .objects import backend as objects
from .pacing import Hedges, Pace, PacedStore, RetryBudget
from .store import Access, NetworkPolicy, Store
from .urls import Scheme, origin_of, scheme_of

# The stores behind the schemes: how each is opened, checked and listed.
#
# To add a store, write its file, as ``Backend`` says, add it here, and its schemes to ``schemes``.


class Backend(Protocol):
    """The file of a store. It is light: clients are imported where they are opened.

    Attributes:
        OPTIONS_APART: Storage options of this store alone, which others in the same recipe need not know.
        ONE_CLIENT: Whether one client serves all its servers and buckets.
    """

    OPTIONS_APART: frozenset[str]
    ONE_CLIENT: bool

    def check_options(self, scheme: str, options: Mapping[str, Any]) -> None:
        """Refuse options that the store does not have, with a ValueError or TypeError."""
        ...

    def locate(self, url: str, options: Mapping[str, Any], environ: Mapping[str, str]) -> tuple[str, str]:
        """The server and the key there that ``url`` means: two URLs of the same pair mean one object.

        Args:
            url: As the store takes it.
            options: Checked ones; an endpoint among them is another server.
            environ: Where the store looks when the options do not say.
        """
        ...

    def open_store(
        self, scheme: str, place: str, options: Mapping[str, Any], network: NetworkPolicy
    ) -> AbstractAsyncContextManager[Store]:
        """A store with a client of its own, of a server or bucket."""
        ...


class Lister(Protocol):
    """Lists one bucket, or what a store has in its place."""

    def pages(
        self, folder: str, network: NetworkPolicy, after: str | None = None
    ) -> AsyncGenerator[list[tuple[str, int]], None]:
        """Keys and sizes of all objects below ``folder``, some at a time, in order.

        Args:
            folder: Whole segments; empty for all.
            network: How long a page may take.
            after: Only keys behind this one, for going on where a listing broke off.

        Raises:
            TransientError: Asking again, from the last key on, may help.
            StoreError: It would not.
        """
        ...


BACKENDS: Mapping[str, Backend] = {"http": http, "objects": objects, "hub": hub}


def backend_of(scheme: Scheme) -> Backend:
    """The store of a scheme other than ``file``."""
    assert scheme.store is not None, "local files have no server"
    return BACKENDS[scheme.store]


def open_lister(scheme: Scheme, root: str, options: Mapping[str, Any]) -> Lister:
    """A lister of one bucket.

    Args:
        scheme: One that is listed.
        root: ``scheme://bucket/``.
        options: Checked storage options.
    """
    assert scheme.is_listed and scheme.store is not None, "a pattern is of what can be listed"
    return _LISTERS[scheme.store](root, options)


def _list_objects(root: str, options: Mapping[str, Any]) -> Lister:
    from .objects.store import ObjectStore

    scheme, _, bucket = root.partition("://")
    return ObjectStore(scheme.lower(), bucket.rstrip("/"), options)


def _list_hub(root: str, options: Mapping[str, Any]) -> Lister:
    from .hub_client import HubLister

    return HubLister(root, options)


_LISTERS: Mapping[str, Callable[[str, Mapping[str, Any]], Lister]] = {
    "objects": _list_objects,
    "hub": _list_hub,
}


# Storage options of all schemes, checked where they are given.


def check_storage_options(schemes: Iterable[Scheme], options: Mapping[str, Any]) -> None:
    """Refuse options that one of the stores in use does not have.

    What is one store's alone (the ``headers`` of web servers) is no matter to others, so that a recipe may
    mix web servers and a bucket.

    Raises:
        ValueError: An unknown name, or a value that cannot be.
        TypeError: A value of a wrong type. No message shows a value.
    """
    # http and https are one store, s3 and gs have each their own options.
    used = {row.is_web or row.name: row for row in schemes if not row.is_local}
    apart = frozenset[str]().union(*(backend_of(row).OPTIONS_APART for row in used.values()))
    for row in used.values():
        store = backend_of(row)
        if store.OPTIONS_APART and len(used) > 1:
            mine = {name: value for name, value in options.items() if name in store.OPTIONS_APART}
        else:
            mine = {name: value for name, value in options.items() if name not in apart - store.OPTIONS_APART}
        store.check_options(row.name, mine)
    if options and not used:
        raise ValueError(f"local files have no storage options, but got {', '.join(sorted(options))}")


def options_of(scheme: Scheme, options: Mapping[str, Any]) -> dict[str, Any]:
    """Of checked options, what the stores of a scheme are told: all but what is another's alone."""
    others = BACKENDS.keys() - {scheme.store}
    foreign = frozenset[str]().union(*(BACKENDS[store].OPTIONS_APART for store in others))
    return {name: value for name, value in options.items() if name not in foreign}


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
