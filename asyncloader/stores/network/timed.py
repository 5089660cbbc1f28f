"""A store that is not waited for without end: time-outs for the first byte, and for progress."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import replace

from ..._flow.clock import Alarm
from ...types import Buffer
from ..failures import TransientError
from ..policy import NetworkPolicy
from ..store import Body, Store
from ..urls import redact
from .hedging import Hedges

__all__ = ["TimedStore"]


class TimedStore:
    """Ends requests that make no progress.

    Args:
        inner: Where the bytes come from; its clients have no time-outs of their own but to connect.
        policy: How long to wait.
        hedges: Told how long each first byte took.
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
        progress = _Progress(self._policy)
        offset = body.start
        try:
            while True:
                try:
                    async with progress.waiting():
                        chunk = await anext(body.chunks)
                except StopAsyncIteration:
                    return
                except TimeoutError:
                    raise TransientError(
                        f"fewer than {self._policy.stall_bytes} bytes came in {self._policy.stall_s:g} s",
                        shard=redact(url),
                        offset=offset,
                    ) from None
                progress.received(len(chunk))
                offset += len(chunk)
                yield chunk
        finally:
            progress.close()


class _Progress:
    """Measures the time that is spent waiting for bytes, and cuts a wait short when too few have come."""

    def __init__(self, policy: NetworkPolicy) -> None:
        self._stall_s = policy.stall_s
        self._stall_bytes = policy.stall_bytes
        self._clock = asyncio.get_running_loop().time
        self._alarm = Alarm(self._expire)
        self._began_s = 0.0
        self._waited_s = 0.0
        self._bytes = 0
        self._deadline = asyncio.timeout(None)

    def waiting(self) -> asyncio.Timeout:
        """A block in which bytes are waited for; TimeoutError if there was no progress for too long."""
        self._began_s = self._clock()
        self._alarm.begin(max(0.0, self._stall_s - self._waited_s))
        self._deadline = asyncio.timeout(None)
        return self._deadline

    def received(self, size: int) -> None:
        self._alarm.end()
        self._bytes += size
        if self._bytes >= self._stall_bytes:
            self._waited_s, self._bytes = 0.0, 0
        else:
            self._waited_s += self._clock() - self._began_s

    def close(self) -> None:
        self._alarm.close()

    def _expire(self) -> None:
        self._deadline.reschedule(self._clock())
