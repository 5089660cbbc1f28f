"""Waiting for a time: a pause, and an alarm for waits that last too long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["Alarm", "pause"]


async def pause(seconds: float) -> None:
    """Wait for a time that was computed, such as before another attempt; never in order to look again."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()

    def end() -> None:
        if not over.done():  # the pause may be cancelled in the very moment that it is over
            over.set_result(None)

    timer = loop.call_later(seconds, end)
    try:
        await over
    finally:
        timer.cancel()


class Alarm:
    """Rings when a wait lasts too long, and costs next to nothing for the many waits that do not.

    A timer for each wait would cost more than the wait of a busy stream; here one timer outlives many
    waits, and looks only when it is due whether the present one has lasted.

    Args:
        ring: Called on the loop, once for each wait that is too long.
    """

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._loop = asyncio.get_running_loop()
        self._due_s: float | None = None
        # uvloop's handles of short timers do not tell when they are due.
        self._look_s = 0.0
        self._timer: asyncio.Handle | None = None

    def begin(self, seconds: float) -> None:
        """A wait begins; it may last ``seconds``."""
        self._due_s = self._loop.time() + seconds
        if self._timer is not None and self._look_s > self._due_s:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._set(self._due_s)

    def end(self) -> None:
        """The wait is over."""
        self._due_s = None

    def close(self) -> None:
        """Ring no more."""
        self._due_s = None
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        if self._due_s is None:
            return
        if self._loop.time() < self._due_s:
            self._set(self._due_s)
            return
        self._due_s = None
        self._ring()

    def _set(self, look_s: float) -> None:
        self._look_s = look_s
        self._timer = self._loop.call_at(look_s, self._look)
