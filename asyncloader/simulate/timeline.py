"""The time of a simulation: calls in their order, and processes that wait for times and for signals."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator
from typing import Any, TypeAlias

__all__ = ["Process", "Signal", "Timeline"]


class Signal:
    """What processes wait for: all of them go on when it is given, and look for themselves."""

    __slots__ = ("_timeline", "_waiting")

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._waiting: list[Process] = []

    def give(self) -> None:
        """Wake whoever waits now."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            for process in waiting:
                self._timeline.after(0.0, self._timeline.go_on, process)

    def add(self, process: Process) -> None:
        """It waits from now on."""
        self._waiting.append(process)


Process: TypeAlias = Generator["float | Signal", None, None]
"""Yields how many seconds it works, or what it waits for."""


class Timeline:
    """Calls each at its time, those of one time in the order in which they were asked for."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._calls: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._asked = 0
        self._stopped = False

    def clock(self) -> float:
        """The time now."""
        return self.now_s

    def after(self, seconds: float, call: Callable[..., object], *arguments: Any) -> None:
        """Call it so many seconds from now."""
        self._asked += 1
        heapq.heappush(self._calls, (self.now_s + seconds, self._asked, call, arguments))

    def go_on(self, process: Process) -> None:
        """Run a process up to where it waits next."""
        for awaited in process:
            if isinstance(awaited, Signal):
                awaited.add(process)
            else:
                self.after(awaited, self.go_on, process)
            return

    def run(self) -> None:
        """Make all calls, until there are none or somebody stops it."""
        calls = self._calls
        while calls and not self._stopped:
            self.now_s, _, call, arguments = heapq.heappop(calls)
            call(*arguments)

    def stop(self) -> None:
        """Make no more calls."""
        self._stopped = True
