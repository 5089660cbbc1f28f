"""Who stands in a channel's line: a blocked thread, or a suspended coroutine."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from time import monotonic
from typing import Protocol, TypeVar

__all__ = ["LoopWaiter", "ThreadWaiter", "W", "Waiter"]


class Waiter(Protocol):
    """Somebody in line. All but the waiting itself happens under the lock of whoever keeps that line."""

    cost: int
    is_awake: bool

    def wake(self) -> bool:
        """Let it look again, once until it waits anew; says whether there still is somebody to do so."""
        ...

    def wait_anew(self) -> None:
        """It has looked, and waits anew."""
        ...


class ThreadWaiter:
    """One blocked thread.

    Args:
        cost: Of what it waits to send.
    """

    def __init__(self, cost: int) -> None:
        self.cost = cost
        # Held until somebody wakes it. A threading.Event would make two more, and takes three times as long.
        self._asleep = threading.Lock()
        self._asleep.acquire()
        self.is_awake = False

    def wake(self) -> bool:
        if not self.is_awake:
            with suppress(RuntimeError):  # released before, by a wake that was interrupted
                self._asleep.release()
            self.is_awake = True
        return True

    def wait_anew(self) -> None:
        self.is_awake = False

    def wait(self, deadline: float | None = None) -> bool:
        return self._asleep.acquire(timeout=-1 if deadline is None else max(0.0, deadline - monotonic()))


class LoopWaiter:
    """One suspended coroutine, woken from any thread."""

    def __init__(self, cost: int) -> None:
        self.cost = cost
        self._loop = asyncio.get_running_loop()
        self.is_awake = False
        self._future: asyncio.Future[None] = self._loop.create_future()

    def wake(self) -> bool:
        if self.is_awake:
            return not self._loop.is_closed()
        # From its own loop at once: the way for other threads costs twice as much.
        if asyncio._get_running_loop() is self._loop:
            self._settle()
        else:
            try:
                self._loop.call_soon_threadsafe(self._settle)
            except RuntimeError:
                # The loop was closed with this waiter still in line: nobody is left to wake.
                if not self._loop.is_closed():
                    raise
                return False
        self.is_awake = True
        return True

    def wait_anew(self) -> None:
        self._future = self._loop.create_future()
        self.is_awake = False

    def _settle(self) -> None:
        if not self._future.done():
            self._future.set_result(None)

    async def wait(self) -> None:
        await self._future


W = TypeVar("W", ThreadWaiter, LoopWaiter)
