"""Which store serves which URL, and how long its client lives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol, cast

from ..observe.statistics import NetworkCounts
from ..observe.tracing import Recorder
from .local import LocalStore
from .network import NetworkStore
from .pacing import RetryBudget
from .store import Access, Body, NetworkPolicy, Store
from .urls import SCHEMES, Scheme, origin_of, scheme_of


class Backend(Protocol):
    """The file of a store, as the table of schemes names it. It is light: it imports its client late."""

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


class ListedBackend(Backend, Protocol):
    """The file of a store whose scheme is listed."""

    def list_pages(
        self,
        root: str,
        folder: str,
        options: Mapping[str, Any],
        network: NetworkPolicy,
        after: str | None = None,
    ) -> AsyncGenerator[list[tuple[str, int]], None]:
        """Keys and sizes of all objects below a folder, some at a time, in order.

        Args:
            root: ``scheme://bucket/``.
            folder: Whole segments; empty for all.
            options: Checked ones.
            network: How long a page may take.
            after: Only keys behind this one, for going on where a listing broke off.

        Raises:
            TransientError: A retry, from the last key on, may help.
            StoreError: It would not.
        """
        ...


def backend_of(scheme: Scheme) -> Backend:
    """The file of the store of a scheme other than ``file``."""
    assert scheme.backend is not None, "local files have no server"
    return cast("Backend", import_module(f".{scheme.backend}", __package__))


def lister_of(scheme: Scheme) -> ListedBackend:
    """The file of the store of a scheme that is listed."""
    assert scheme.is_listed, "a pattern is of what can be listed"
    return cast("ListedBackend", backend_of(scheme))


def check_storage_options(schemes: Iterable[Scheme], options: Mapping[str, Any]) -> None:
    """Refuse options that one of the stores in use does not have.

    Stores ignore what belongs to another store alone (the ``headers`` of web servers), so that a dataset may
    mix web servers and a bucket.

    Raises:
        ValueError: An unknown name, or a wrong value.
        TypeError: A value of a wrong type. No message shows a value.
    """
    # http and https are one store, s3 and gs have each their own options.
    used = {row.is_web or row.name: row for row in schemes if not row.is_local}
    apart = frozenset[str]().union(*(row.own_options for row in used.values()))
    for row in used.values():
        if row.own_options and len(used) > 1:
            mine = {name: value for name, value in options.items() if name in row.own_options}
        else:
            mine = {name: value for name, value in options.items() if name not in apart - row.own_options}
        backend_of(row).check_options(row.name, mine)
    if options and not used:
        raise ValueError(f"local files have no storage options, but got {', '.join(sorted(options))}")


def options_of(scheme: Scheme, options: Mapping[str, Any]) -> dict[str, Any]:
    """The checked options that concern a scheme: all but those of another store alone."""
    foreign = frozenset[str]().union(*(row.own_options for row in SCHEMES.values())) - scheme.own_options
    return {name: value for name, value in options.items() if name not in foreign}


@dataclass(eq=False, repr=False)
class Stores:
    """The stores of one engine as one, each made when first needed and closed with the engine.

    Clients are never shared between processes or loops: a session inherited through a fork would give one
    reader another reader's bytes.

    Args:
        resources: The engine's; it closes what is opened here.
        access: How the stores are reached.
        counts: Counts each request.
        recorder: Records each retry; None where the pass is not traced.
    """

    resources: AsyncExitStack
    access: Access
    counts: NetworkCounts
    recorder: Recorder | None = None

    def __post_init__(self) -> None:
        self._budget = RetryBudget()
        self._stores: dict[tuple[Scheme, str], LocalStore | NetworkStore] = {}
        self._clients: dict[tuple[str | None, str], Store] = {}
        self._opening = asyncio.Lock()

    @asynccontextmanager
    async def read(self, url: str, start: int, stop: int, *, etag: str | None = None) -> AsyncIterator[Body]:
        """See ``Store.read``."""
        async with (await self.of(url)).read(url, start, stop, etag=etag) as body:
            yield body

    async def of(self, url: str) -> Store:
        """The store that serves ``url``."""
        key = (scheme_of(url), origin_of(url))
        async with self._opening:
            if key not in self._stores:
                self._stores[key] = await self._open(*key)
            return self._stores[key]

    async def _open(self, scheme: Scheme, place: str) -> LocalStore | NetworkStore:
        if scheme.is_local:
            return LocalStore()
        access, key = self.access, (scheme.backend, "" if scheme.has_one_client else place)
        if key not in self._clients:
            options = options_of(scheme, access.options)
            opening = backend_of(scheme).open_store(scheme.name, place, options, access.network)
            self._clients[key] = await self.resources.enter_async_context(opening)
        client = self._clients[key]
        return NetworkStore(client, access.network, self._budget, self.counts, self.recorder, access.renew)
