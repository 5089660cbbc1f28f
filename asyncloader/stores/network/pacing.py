"""How many requests an origin is given at a time: additive increase, multiplicative decrease.

A store says that it has too much to do by answering 429 or 503; how much it can do it never says. The limit
is halved at such an answer, climbs back quickly to nearly what was too much, and from there slowly, as TCP's
CUBIC does (RFC 9438) and for its reason: plain AIMD spends half its time far below what would be possible.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from ...statistics import NetworkCounts
from ..failures import ThrottledError
from ..policy import NetworkPolicy
from ..store import Body, Store
from .hedging import Hedges

__all__ = ["ConcurrencyLimit", "Pace", "PacedStore"]


class ConcurrencyLimit:
    """The limit of concurrent requests; pure."""

    #: Doubled with each round of answers until the first refusal, so it need not be a good guess.
    start = 8.0
    most = 256.0
    #: From this share of the number that was too much, one request more in ``patience`` rounds of answers.
    near = 0.9
    patience = 10.0

    def __init__(self) -> None:
        self.limit = self.start
        self._too_many: float | None = None

    def answered(self, in_use: int) -> None:
        """A request was answered well while so many were under way."""
        if in_use < int(self.limit):
            return  # the limit was not what held us
        quick_to = self.most if self._too_many is None else self.near * self._too_many
        if self.limit < quick_to:
            self.limit = min(self.limit + 1.0, quick_to)
        else:
            self.limit = min(self.limit + 1.0 / (self.patience * self.limit), self.most)

    def throttled(self, in_use: int) -> None:
        """A request was refused while so many were under way."""
        self._too_many = min(float(in_use), self.limit)
        self.limit = max(1.0, self._too_many / 2)


class Pace:
    """The requests of this process to one origin, in the order they came.

    Args:
        longest_rest_s: A server that asks for a longer rest is not heard here. Whoever was refused gives up
            for it, and those who stood in line would wait without end for a pass that has failed.
    """

    def __init__(self, longest_rest_s: float = NetworkPolicy().deadline_s) -> None:
        self._longest_rest_s = longest_rest_s
        self._loop = asyncio.get_running_loop()
        self._limit = ConcurrencyLimit()
        self._in_use = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._resume_s = 0.0
        self._halvings = 0

    async def acquire(self) -> Permit:
        """Wait until there is room for a request."""
        if self._waiting or not self._has_room():
            turn: asyncio.Future[None] = self._loop.create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():  # the turn had come
                    self._release()
                raise
        else:
            self._in_use += 1
        return Permit(self, self._halvings)

    def answered(self) -> None:
        """A request was answered well."""
        self._limit.answered(self._in_use)
        self._admit()

    def throttled(self, permit: Permit, retry_after_s: float | None) -> None:
        """The request in ``permit`` was refused."""
        if permit.halvings == self._halvings:  # else it was sent before the limit was last halved
            self._halvings += 1
            self._limit.throttled(self._in_use)
        if retry_after_s and retry_after_s <= self._longest_rest_s:
            self._resume_s = max(self._resume_s, self._loop.time() + retry_after_s)
            self._loop.call_at(self._resume_s, self._rested, self._resume_s)

    def _rested(self, until_s: float) -> None:
        if until_s == self._resume_s:  # else it was told to rest longer meanwhile
            self._resume_s = 0.0  # not compared with the clock, which a timer may run ahead of
            self._admit()

    def _release(self) -> None:
        self._in_use -= 1
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self._has_room():
            turn = self._waiting.popleft()
            if not turn.done():
                self._in_use += 1
                turn.set_result(None)

    def _has_room(self) -> bool:
        return self._in_use < int(self._limit.limit) and not self._resume_s


class Permit:
    """The place of one request."""

    def __init__(self, pace: Pace, halvings: int) -> None:
        self._pace: Pace | None = pace
        self.halvings = halvings

    def release(self) -> None:
        """Let the next one in. Idempotent."""
        if self._pace is not None:
            self._pace._release()
            self._pace = None


class PacedStore:
    """Sends an origin no more requests at a time than it takes.

    Args:
        inner: Where the bytes come from.
        pace: Of the origin.
        hedges: Of the origin; told when it has too much to do.
        counts: Told of each request.
    """

    def __init__(self, inner: Store, pace: Pace, hedges: Hedges, counts: NetworkCounts) -> None:
        self._inner = inner
        self._pace = pace
        self._hedges = hedges
        self._counts = counts

    @asynccontextmanager
    async def read(self, url: str, start: int, stop: int, *, etag: str | None = None) -> AsyncIterator[Body]:
        permit = await self._pace.acquire()
        try:
            self._counts.requests += 1
            async with self._inner.read(url, start, stop, etag=etag) as body:
                self._pace.answered()
                yield replace(body, give_way=permit.release)
        except ThrottledError as error:
            self._counts.throttled += 1
            self._hedges.throttled()
            self._pace.throttled(permit, error.retry_after_s)
            raise
        finally:
            permit.release()
