"""The stores behind the schemes: how each is opened, checked and listed.

To add a store, write its file, as ``Backend`` says, add it here, and its schemes to ``schemes``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from .http import backend as http
from .hub import backend as hub
from .objects import backend as objects
from .policy import NetworkPolicy
from .schemes import Scheme
from .store import Store

__all__ = ["BACKENDS", "Backend", "Lister", "backend_of", "open_lister"]


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
    from .hub.client import HubLister

    return HubLister(root, options)


_LISTERS: Mapping[str, Callable[[str, Mapping[str, Any]], Lister]] = {
    "objects": _list_objects,
    "hub": _list_hub,
}
