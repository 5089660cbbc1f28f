"""Who is next, of those who wait for a share of the memory."""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

__all__ = ["Turns"]


class Turns:
    """A budget of bytes, of which the first of each lane gets a share before the second of any.

    Every lane reads ahead, and the consumer takes a batch of each in turn: first come, first served would
    have it wait for one lane's far shards before it gets another's first.

    Args:
        budget_bytes: What there is to share; nobody may ask for more.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._free = budget_bytes
        self._asked: Counter[int] = Counter()
        self._arrivals = count()
        self._waiting: list[tuple[int, int, int, asyncio.Future[None]]] = []

    @asynccontextmanager
    async def take(self, lane: int, share: int) -> AsyncIterator[None]:
        """A block in which so many bytes belong to whoever asks, for the lane of this number."""
        nth = self._asked[lane]
        self._asked[lane] += 1
        if self._free >= share and not self._waiting:
            self._free -= share
        else:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiting, (nth, next(self._arrivals), share, turn))
            try:
                await turn
            except asyncio.CancelledError:
                # Either the turn had come, or those behind may fit in.
                self._give_back(0 if turn.cancelled() else share)
                raise
        try:
            yield
        finally:
            self._give_back(share)

    def _give_back(self, share: int) -> None:
        self._free += share
        while self._waiting:
            _, _, wanted, turn = self._waiting[0]
            if not turn.done():
                if wanted > self._free:
                    return
                self._free -= wanted
                turn.set_result(None)
            heapq.heappop(self._waiting)
