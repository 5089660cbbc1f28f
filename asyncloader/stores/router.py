"""Which store serves which URL, and how long its client lives."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any
from urllib.parse import urlsplit

from .local import LocalStore
from .store import Store
from .urls import scheme_of

__all__ = ["Stores"]


class Stores:
    """The stores of one engine, each made when first needed and closed with the engine.

    Clients are never shared between processes or loops: a session inherited through a fork gives one
    reader another's bytes.

    Args:
        resources: The engine's; it closes what is opened here.
        options: Passed to object stores, such as ``{"endpoint": ..., "access_key_id": ...}``.
    """

    def __init__(self, resources: AsyncExitStack, options: Mapping[str, Any]) -> None:
        self._resources = resources
        self._options = options
        self._stores: dict[tuple[str, str], Store] = {}
        self._opening = asyncio.Lock()

    async def of(self, url: str) -> Store:
        """The store that serves ``url``."""
        scheme = scheme_of(url)
        # One HTTP session serves all origins; an object store's client is bound to its bucket.
        origin = urlsplit(url).netloc if scheme in ("s3", "gs", "az") else ""
        key = ("http" if scheme == "https" else scheme, origin)
        async with self._opening:
            if key not in self._stores:
                opened = self._open(scheme, origin)
                self._stores[key] = (
                    await self._resources.enter_async_context(opened)
                    if isinstance(opened, AbstractAsyncContextManager)
                    else opened
                )
            return self._stores[key]

    def _open(self, scheme: str, origin: str) -> Store | AbstractAsyncContextManager[Store]:
        # Each client library is imported by those who need it: together they cost a quarter second.
        if scheme == "file":
            return LocalStore()
        if scheme in ("http", "https"):
            from .http import HttpStore

            return HttpStore.open()
        from .objects import ObjectStore

        return ObjectStore(scheme, origin, self._options)
