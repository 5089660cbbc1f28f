"""How much of the processor's time a loop without workers takes for its batches, beside what consumers do."""

from __future__ import annotations

import math
from random import Random
from time import thread_time

__all__ = ["ProcessorTime"]

# Two readings of the clock in it are a thousandth.
_MEASURE_S = 0.001


class ProcessorTime:
    """That of the waits of the thread that this is called in, by those of them that are measured.

    Its clock is a system call of half a microsecond, and small batches are made in less than a hundred times
    that: so waits that begin soon after a measured one are taken to be like the others. How soon is drawn
    each time, or of batches that are all alike but for each fiftieth, that one might never be measured.

    Attributes:
        waits: Whether a wait has begun and not ended.
    """

    def __init__(self) -> None:
        self.waits = False
        self._draw = Random().random  # the user's own generators stay as they are
        self._since_s = 0.0
        self._due_s = -math.inf
        self._before_s: float | None = None
        self._cpu_s = self._measured_s = self._waits_s = 0.0

    def begin_wait(self, now_s: float) -> None:
        """A wait begins, at a time by ``time.perf_counter()``."""
        self.waits, self._since_s = True, now_s
        if now_s >= self._due_s:
            self._before_s = thread_time()

    def end_wait(self, now_s: float) -> None:
        """It ends."""
        took_s = now_s - self._since_s
        self.waits = False
        self._waits_s += took_s
        if self._before_s is not None:
            self._cpu_s += thread_time() - self._before_s
            self._measured_s += took_s
            self._before_s, self._due_s = None, now_s + 2 * _MEASURE_S * self._draw()

    def take(self) -> float:
        """What all that have ended took since this was asked before, in seconds."""
        cpu_s = self._cpu_s * (self._waits_s / self._measured_s) if self._measured_s else 0.0
        self._cpu_s = self._measured_s = self._waits_s = 0.0
        return cpu_s
