"""URLs that expire: renewed by the user's callback when the server refuses them."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from weakref import WeakValueDictionary

from yarl import URL

from ...errors import StoreError
from ...statistics import NetworkCounts
from ..access import Renew
from ..naming import read_as
from ..store import Body, Store
from ..urls import redact

__all__ = ["RenewingStore"]

# What stores answer to a signature that has expired: S3 and Google 403 (400 for an expired token of a
# role), Azure 403, token services 401.
_REFUSALS = frozenset({400, 401, 403})

# Fresh URLs kept. Shards are read one after another, a few at a time; one that was dropped is renewed again.
_MOST_KEPT = 1024


class RenewingStore:
    """Reads a shard whose URL is refused from one that is signed anew.

    A request is authorised when it begins, so that a URL that expires within a body cuts nothing. The
    parts of a shard share its fresh URL, and renew it once however many of them were refused.

    Args:
        inner: Serves the listed URLs and the fresh ones.
        renew: Gets the shard's URL as it was listed. A plain function runs in a thread.
        counts: Told of each request that is sent anew.
    """

    def __init__(self, inner: Store, renew: Renew, counts: NetworkCounts) -> None:
        self._inner = inner
        self._renew = renew
        self._counts = counts
        self._fresh: dict[str, str] = {}
        self._renewing: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def read(self, url: str, start: int, stop: int, *, etag: str | None = None) -> AsyncIterator[Body]:
        target = self._fresh.get(url, url)
        async with AsyncExitStack() as stack:
            body: Body | None = None
            try:
                body = await stack.enter_async_context(
                    read_as(self._inner, target, url, start, stop, etag=etag)
                )
            except StoreError as error:
                if error.status not in _REFUSALS:
                    raise
            if body is None:
                fresh = await self._renewed(url, target)
                body = await self._read_fresh(stack, fresh, url, start, stop, etag)
            yield body

    async def _read_fresh(
        self, stack: AsyncExitStack, fresh: str, url: str, start: int, stop: int, etag: str | None
    ) -> Body:
        self._counts.requests += 1  # the one that was refused was counted by whoever sent it here
        try:
            return await stack.enter_async_context(read_as(self._inner, fresh, url, start, stop, etag=etag))
        except StoreError as error:
            if error.status not in _REFUSALS:
                raise
            status = error.status
        raise StoreError(
            f"the server refused the URL, and answered {status} to the one that renew gave for it too",
            shard=redact(url),
            status=status,
            offset=start,
        )

    async def _renewed(self, url: str, refused: str) -> str:
        """A URL for the shard that is newer than ``refused``."""
        async with self._renewing.setdefault(url, asyncio.Lock()):
            current = self._fresh.get(url, url)
            if current != refused:  # while this read was refused or waited, another one had it renewed
                return current
            try:
                fresh = _checked(await _call(self._renew, url), url)
            except Exception as error:
                error.add_note(f"raised while the URL of shard {redact(url)} was renewed")
                raise
            self._fresh[url] = fresh
            if len(self._fresh) > _MOST_KEPT:
                del self._fresh[next(iter(self._fresh))]
            return fresh


async def _call(renew: Renew, url: str) -> object:
    if inspect.iscoroutinefunction(renew):
        return await renew(url)
    fresh = await asyncio.to_thread(renew, url)
    # Such as of a partial or an object that wraps a coroutine function.
    return await fresh if inspect.isawaitable(fresh) else fresh


def _checked(fresh: object, url: str) -> str:
    if not isinstance(fresh, str):
        raise TypeError(f"renew should return a URL as a string, not {type(fresh).__name__}")
    scheme, wanted = fresh.partition("://")[0].lower(), url.partition("://")[0].lower()
    if scheme != wanted and (wanted, scheme) != ("http", "https"):
        raise ValueError(f"renew should return a {wanted}:// URL for this shard, but returned another scheme")
    try:
        host = URL(fresh).raw_host
    except ValueError:
        host = None  # the client's text quotes the URL
    if not host:
        raise ValueError("renew should return a valid URL, but what it returned is none")
    return fresh
