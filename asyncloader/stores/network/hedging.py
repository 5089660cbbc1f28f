"""When to ask a second time for bytes that are late; pure.

After Dean and Barroso, "The Tail at Scale" (2013): a second request after the 95th percentile of the time
that requests take cuts the tail for a few percent more load.
"""

from __future__ import annotations

from collections import deque

from ...statistics import NetworkCounts

__all__ = ["Hedges"]

# Enough that one in twenty is a number, few enough to follow a network that changes.
_REMEMBERED = 100
_FEWEST = 20

# Below this a second request costs more than the wait: a loaded machine alone is late by as much.
_SHORTEST_S = 0.02

_MOST_SHARE = 0.05


class Hedges:
    """Decides on the hedges of one origin.

    Args:
        counts: Told of each hedge.
        enabled: False never hedges.
    """

    def __init__(self, counts: NetworkCounts, enabled: bool) -> None:
        self._counts = counts
        self._enabled = enabled
        self._times_s: deque[float] = deque(maxlen=_REMEMBERED)
        self._late_s: float | None = None
        self._answers = 0
        self._hedges = 0

    def answered(self, first_byte_s: float) -> None:
        """A first byte took so long."""
        self._answers += 1
        self._times_s.append(first_byte_s)
        self._late_s = None

    def throttled(self) -> None:
        """The origin has too much to do already: what was learned of its times holds no longer."""
        self._times_s.clear()
        self._late_s = None

    @property
    def late_s(self) -> float | None:
        """How long a consumer waits before its request is late; None while that is not known."""
        if not self._enabled or len(self._times_s) < _FEWEST:
            return None
        if self._late_s is None:
            ordered = sorted(self._times_s)
            self._late_s = max(ordered[len(ordered) * 95 // 100], _SHORTEST_S)
        return self._late_s

    def take(self) -> bool:
        """Whether one more hedge may be sent; counts it."""
        if self._hedges + 1 > self._answers * _MOST_SHARE:
            return False
        self._hedges += 1
        self._counts.hedges += 1
        return True
