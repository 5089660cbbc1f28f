"""A store that asks again: a range is opened anew where it broke off, at the same version."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import replace

from ..._flow.clock import pause
from ...statistics import NetworkCounts
from ...trace.recording import Traffic
from ...types import Buffer
from ..failures import ThrottledError, TransientError, check_same
from ..policy import NetworkPolicy
from ..store import NO_END, Body, Store, clip
from ..urls import redact
from .notices import Notices
from .retries import Attempts, RetryBudget

__all__ = ["ResumingStore"]


class ResumingStore:
    """Hides whatever goes away when asked again.

    Args:
        inner: Where the bytes come from.
        policy: How often, and for how long.
        budget: Shared by all stores of the process.
        counts: Told of each retry.
        traffic: Likewise, with the reason.
    """

    def __init__(
        self,
        inner: Store,
        policy: NetworkPolicy,
        budget: RetryBudget,
        counts: NetworkCounts,
        traffic: Traffic | None = None,
    ) -> None:
        self._inner = inner
        self._policy = policy
        self._budget = budget
        self._counts = counts
        self._traffic = traffic or Traffic()
        self._draw = random.Random()
        self._notices = Notices()

    @asynccontextmanager
    async def read(self, url: str, start: int, stop: int, *, etag: str | None = None) -> AsyncIterator[Body]:
        self._budget.request()
        attempts = Attempts(self._policy, self._budget, self._draw)
        async with AsyncExitStack() as request:
            body = await self._open(request, attempts, url, start, stop, etag)
            async with aclosing(self._chunks(request, attempts, url, stop, body, etag)) as chunks:
                yield replace(body, chunks=chunks)

    async def _open(
        self, request: AsyncExitStack, attempts: Attempts, url: str, start: int, stop: int, etag: str | None
    ) -> Body:
        while True:
            try:
                return await request.enter_async_context(self._inner.read(url, start, stop, etag=etag))
            except TransientError as error:
                await self._wait_turn(attempts, error)

    async def _wait_turn(self, attempts: Attempts, error: TransientError) -> None:
        wait_s = self._notices.pause_s(attempts, error, time.monotonic())
        self._counts.retries += 1
        self._mark(error, wait_s)
        await pause(wait_s)

    def _mark(self, error: TransientError, wait_s: float) -> None:
        kind = "throttled" if isinstance(error, ThrottledError) else "retry"
        self._traffic.mark(kind, error.shard or "", reason=error.args[0], status=error.status, wait_s=wait_s)

    async def _chunks(
        self, request: AsyncExitStack, attempts: Attempts, url: str, asked: int, first: Body, etag: str | None
    ) -> AsyncGenerator[Buffer, None]:
        body, offset, version = first, first.start, first.etag or etag
        stop = max(asked, _end(first))
        while True:
            if stop > asked:
                # The range was ignored. A body that goes on into other parts waits for its consumer, and to
                # count it meanwhile could keep out the request that the consumer waits for.
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
                    # Only the word that it was all did not come, such as the last chunk; the range has said
                    # it, and behind it there may be nothing to ask for.
                    return
                failure = error
            await request.aclose()
            await self._wait_turn(attempts, failure)
            # Nobody knows whether a body of unknown length was already at its end, and behind the end there
            # is nothing to ask for; with the byte before it there always is something.
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
