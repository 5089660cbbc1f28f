"""The schemes that URLs may have, a row each: how a store is opened, checked, listed, and told from others.

To add a store, write its file, as ``Backend`` says, and add its row here.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from .policy import NetworkPolicy
    from .store import Store

__all__ = ["ELSEWHERE", "SCHEMES", "Backend", "Lister", "Scheme"]


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


@dataclass(frozen=True, slots=True)
class Scheme:
    """What is to be known of a scheme.

    Attributes:
        name: What stands before ``://``.
        store: Imports the store's file.
        lister: Gives a lister of a bucket (``scheme://bucket/``) with storage options; None where nobody can
            be asked what there is, so that shards are named one by one.
        is_web: Whether a URL has the parts and escapes of RFC 3986; elsewhere a key is taken as written.
        is_renewed: Whether URLs may be signed for a time, or lead to such.
        is_local: Whether it names files of this machine, which have neither server nor options.
    """

    name: str
    store: Callable[[], Backend]
    lister: Callable[[str, Mapping[str, Any]], Lister] | None = None
    is_web: bool = False
    is_renewed: bool = False
    is_local: bool = False


def _web() -> Backend:
    from .http import backend

    return backend


def _objects() -> Backend:
    from .objects import backend

    return backend


def _hub() -> Backend:
    from .hub import backend

    return backend


def _nobody() -> Backend:
    raise AssertionError("local files have no server")


def _list_objects(root: str, options: Mapping[str, Any]) -> Lister:
    from .objects.store import ObjectStore

    scheme, _, bucket = root.partition("://")
    return ObjectStore(scheme.lower(), bucket.rstrip("/"), options)


def _list_hub(root: str, options: Mapping[str, Any]) -> Lister:
    from .hub.client import HubLister

    return HubLister(root, options)


SCHEMES: Mapping[str, Scheme] = {
    row.name: row
    for row in (
        Scheme("http", _web, is_web=True, is_renewed=True),
        Scheme("https", _web, is_web=True, is_renewed=True),
        Scheme("s3", _objects, _list_objects),
        Scheme("gs", _objects, _list_objects),
        Scheme("az", _objects, _list_objects),
        Scheme("hf", _hub, _list_hub, is_renewed=True),
        Scheme("file", _nobody, is_local=True),
    )
}

_AZURE = "az://container/key, with the account as storage_options={'account_name': ...}"

#: What to write for the schemes of other libraries and services.
ELSEWHERE: Mapping[str, str] = {
    "gcs": "gs://bucket/key",
    "s3a": "s3://bucket/key",
    "s3n": "s3://bucket/key",
    "r2": "s3://bucket/key, with storage_options={'endpoint': 'https://ACCOUNT.r2.cloudflarestorage.com'}",
    "azure": _AZURE,
    "abfs": _AZURE,
    "abfss": _AZURE,
    "wasb": _AZURE,
    "wasbs": _AZURE,
}
