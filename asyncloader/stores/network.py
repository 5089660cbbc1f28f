"""Stores around a store: retries that resume at the same version, time-outs, and URLs that are renewed."""

from __future__ import annotations

import asyncio
import inspect
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, closing
from dataclasses import dataclass, field, replace
from weakref import WeakValueDictionary

from yarl import URL

from ..errors import StoreError
from ..flow.engine import Alarm, pause
from ..observe.statistics import NetworkCounts
from ..observe.tracing import Traffic
from ..types import Buffer
from .failures import ThrottledError, TransientError, check_same
from .pacing import Attempts, Hedges, Notices, RetryBudget
from .store import NO_END, Body, NetworkPolicy, Renew, Store, clip, read_as
from .urls import redact


@dataclass(eq=False, repr=False)
class ResumingStore:
    """Retries transient failures: a range is opened again where it broke off, at the same version.

    Args:
        inner: Where the bytes come from.
        policy: How often, and for how long.
        budget: Shared by all stores of the process.
        counts: Counts each retry.
        traffic: Records each retry with its reason.
    """

    inner: Store
    policy: NetworkPolicy
    budget: RetryBudget
    counts: NetworkCounts
    traffic: Traffic = field(default_factory=Traffic)
    _draw: random.Random = field(default_factory=random.Random, init=False)
    _notices: Notices = field(default_factory=Notices, init=False)

    @asynccontextmanager
    async def read(self, url: str, start: int, stop: int, *, etag: str | None = None) -> AsyncIterator[Body]:
        self.budget.request()
        attempts = Attempts(self.policy, self.budget, self._draw)
        async with AsyncExitStack() as request:
            body = await self._open(request, attempts, url, start, stop, etag)
            async with aclosing(self._chunks(request, attempts, url, stop, body, etag)) as chunks:
                yield replace(body, chunks=chunks)

    async def _open(
        self, request: AsyncExitStack, attempts: Attempts, url: str, start: int, stop: int, etag: str | None
    ) -> Body:
        while True:
            try:
                return await request.enter_async_context(self.inner.read(url, start, stop, etag=etag))
            except TransientError as error:
                await self._wait_turn(attempts, error)

    async def _wait_turn(self, attempts: Attempts, error: TransientError) -> None:
        wait_s = self._notices.pause_s(attempts, error, time.monotonic())
        self.counts.retries += 1
        kind = "throttled" if isinstance(error, ThrottledError) else "retry"
        self.traffic.mark(kind, error.shard or "", reason=error.args[0], status=error.status, wait_s=wait_s)
        await pause(wait_s)

    async def _chunks(
        self, request: AsyncExitStack, attempts: Attempts, url: str, asked: int, first: Body, etag: str | None
    ) -> AsyncGenerator[Buffer, None]:
        body, offset, version = first, first.start, first.etag or etag
        stop = max(asked, _end(first))
        while True:
            if stop > asked:
                # The range was ignored. A body that continues into other parts waits for its consumer. If it
                # still counted as a request, it could keep out the one that the consumer waits for.
                body.give_way()
            try:
                at = body.start
                async for chunk in body.chunks:
                    # A resumed body may begin before the byte wanted and end behind the last one.
                    wanted = chunk if body is first else clip(chunk, offset - at, _end(first) - at)
                    at += len(chunk)
                    if wanted:
                        attempts.received(len(wanted))
                        offset += len(wanted)
                        yield wanted
                _check_whole(body, at, url)
                return
            except TransientError as error:
                if at == body.stop:
                    # Only the end mark is missing, such as the last chunk. The range has stated the end, and
                    # behind it there may be nothing to request.
                    return
                failure = error
            await request.aclose()
            await self._wait_turn(attempts, failure)
            # A body of unknown length may already have been at its end, behind which there is nothing to
            # request. With the byte before it there always is something.
            ask_from = offset if first.stop is not None else max(offset - 1, first.start)
            body = await self._open(request, attempts, url, ask_from, stop, version)
            check_same(body, url, offset, first.etag, first.total)


def _end(first: Body) -> int:
    return NO_END if first.stop is None else first.stop


def _check_whole(body: Body, at: int, url: str) -> None:
    if body.stop is not None and at < body.stop:
        raise TransientError(
            f"the body ended at byte {at}, before byte {body.stop} that the server promised",
            shard=redact(url),
            offset=at,
        )


class TimedStore:
    """Ends requests that make no progress.

    Args:
        inner: Where the bytes come from. Its clients have no time-outs of their own except to connect.
        policy: How long to wait.
        hedges: Gets the time that each first byte took.
    """

    def __init__(self, inner: Store, policy: NetworkPolicy, hedges: Hedges) -> None:
        self._inner = inner
        self._policy = policy
        self._hedges = hedges

    @asynccontextmanager
    async def read(self, url: str, start: int, stop: int, *, etag: str | None = None) -> AsyncIterator[Body]:
        clock = asyncio.get_running_loop().time
        limit_s = self._policy.answer_s
        began_s = clock()
        deadline = asyncio.timeout(limit_s)
        async with AsyncExitStack() as stack:
            try:
                async with deadline:
                    body = await stack.enter_async_context(self._inner.read(url, start, stop, etag=etag))
            except TimeoutError:
                if not deadline.expired():  # it is the user's own, of a callback that renews URLs
                    raise
                raise TransientError(
                    f"the server did not answer within {limit_s:g} s", shard=redact(url), offset=start
                ) from None
            self._hedges.answered(clock() - began_s)
            async with aclosing(self._chunks(body, url)) as chunks:
                yield replace(body, chunks=chunks)

    async def _chunks(self, body: Body, url: str) -> AsyncGenerator[Buffer, None]:
        policy, clock = self._policy, asyncio.get_running_loop().time
        deadline = asyncio.timeout(None)
        offset = body.start
        # The time spent waiting, and the bytes received, since the last progress.
        waited_s, progress_bytes = 0.0, 0
        with closing(Alarm(lambda: deadline.reschedule(clock()))) as alarm:
            while True:
                began_s = clock()
                alarm.begin(max(0.0, policy.stall_s - waited_s))
                deadline = asyncio.timeout(None)
                try:
                    async with deadline:
                        chunk = await anext(body.chunks)
                except StopAsyncIteration:
                    return
                except TimeoutError:
                    raise TransientError(
                        f"fewer than {policy.stall_bytes} bytes came in {policy.stall_s:g} s",
                        shard=redact(url),
                        offset=offset,
                    ) from None
                alarm.end()
                offset += len(chunk)
                progress_bytes += len(chunk)
                waited_s += clock() - began_s
                if progress_bytes >= policy.stall_bytes:
                    waited_s, progress_bytes = 0.0, 0
                yield chunk


# The statuses of an expired signature: S3 and Google 403 (400 for an expired token of a role), Azure 403,
# token services 401.
_REFUSALS = frozenset({400, 401, 403})

# How many fresh URLs are kept. A few shards are read at a time; a URL that was dropped is renewed again.
_MOST_KEPT = 1024


class RenewingStore:
    """Reads a shard from a newly signed URL when the server refuses its URL.

    A request is authorised when it begins, so a URL that expires within a body cuts nothing. The parts of a
    shard share its fresh URL, and renew it once, however many of them were refused.

    Args:
        inner: Serves the listed URLs and the fresh ones.
        renew: The user's callback; gets the shard's URL as it was listed. A plain function runs in a thread.
        counts: Counts each request that is sent again.
    """

    def __init__(self, inner: Store, renew: Renew, counts: NetworkCounts) -> None:
        self._inner = inner
        self._renew = renew
        self._counts = counts
        self._fresh: dict[str, str] = {}
        self._renewing: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def read(self, url: str, start: int, stop: int, *, etag: str | None = None) -> AsyncIterator[Body]:
        target, is_renewed = self._fresh.get(url, url), False
        async with AsyncExitStack() as stack:
            while True:
                try:
                    opening = read_as(self._inner, target, url, start, stop, etag=etag)
                    body = await stack.enter_async_context(opening)
                    break
                except StoreError as error:
                    if error.status not in _REFUSALS:
                        raise
                    status = error.status
                if is_renewed:
                    raise StoreError(
                        f"the server refused the URL, and answered {status} to the one that renew gave for "
                        "it too",
                        shard=redact(url),
                        status=status,
                        offset=start,
                    )
                target, is_renewed = await self._renewed(url, target), True
                self._counts.requests += 1  # the refused one was counted where it was sent
            yield body

    async def _renewed(self, url: str, refused: str) -> str:
        """A URL for the shard that is newer than ``refused``."""
        async with self._renewing.setdefault(url, asyncio.Lock()):
            current = self._fresh.get(url, url)
            if current != refused:  # another read has renewed it meanwhile
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
    # Such as the result of a partial, or of an object that wraps a coroutine function.
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
