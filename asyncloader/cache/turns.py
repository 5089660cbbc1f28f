"""Who is next, of those who wait for one of a few places."""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

__all__ = ["Turns"]


class Turns:
    """A semaphore that lets the first of each lane in before the second of any.

    Every lane reads ahead, and the consumer takes a batch of each in turn: first come, first served would
    have it wait for one lane's far shards before it gets another's first.

    Args:
        most: How many may be in at a time.
    """

    def __init__(self, most: int) -> None:
        self._free = most
        self._asked: Counter[int] = Counter()
        self._arrivals = count()
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []

    @asynccontextmanager
    async def take(self, lane: int) -> AsyncIterator[None]:
        """A block that is entered when it is the turn of whoever asks, for the lane of this number."""
        nth = self._asked[lane]
        self._asked[lane] += 1
        if self._free:
            self._free -= 1
        else:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiting, (nth, next(self._arrivals), turn))
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():  # the turn had come
                    self._leave()
                raise
        try:
            yield
        finally:
            self._leave()

    def _leave(self) -> None:
        while self._waiting:
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
