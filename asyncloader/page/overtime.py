"""The numbers of a pass over time, in bins as wide as they can be read. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from .units import seconds_text, ticks

__all__ = ["OverTime"]

# As many as the width of a card shows apart, and as few batches in each as make a rate.
_MOST_BINS = 96
_BATCHES_OF_BIN = 3
_FEWEST_BINS = 8

_STAGE = "stage/"


class OverTime:
    """The rows of ``series``, put together to fewer bins.

    Args:
        series: As a pass has them.
        elapsed_s: How long it took.
        batches: How many it had.
    """

    def __init__(self, series: Mapping[str, Any], elapsed_s: float, batches: int) -> None:
        self._rows: Mapping[str, Sequence[float]] = series["rows"]
        self.elapsed_s = max(elapsed_s, 1e-9)
        there = max(1, math.ceil(self.elapsed_s / series["bin_s"] - 1e-9))
        wanted = max(_FEWEST_BINS, min(_MOST_BINS, batches // _BATCHES_OF_BIN))
        self._factor = math.ceil(there / wanted)
        self.bin_s = series["bin_s"] * self._factor
        count = max(1, math.ceil(self.elapsed_s / self.bin_s - 1e-9))
        # A last bin of hardly any time has no rate: it is part of the one before.
        self._folds = count > 1 and self.elapsed_s - (count - 1) * self.bin_s < self.bin_s / 2
        self.count = count - self._folds
        last_s = self.elapsed_s - (self.count - 1) * self.bin_s
        self.seconds = [self.bin_s] * (self.count - 1) + [last_s]

    def row(self, name: str) -> list[float]:
        """The sums of a name."""
        row, factor = self._rows.get(name, ()), self._factor
        sums = [0.0] * self.count
        for place, value in enumerate(row):
            sums[min(place // factor, self.count - 1)] += value
        return sums

    def rate(self, name: str) -> list[float]:
        """The sums for a second."""
        return [value / seconds for value, seconds in zip(self.row(name), self.seconds, strict=True)]

    @property
    def names(self) -> list[str]:
        """All there are."""
        return list(self._rows)

    @property
    def stages(self) -> list[str]:
        """Those of the ones who make batches, the one with the most time first."""
        named = [name for name in self._rows if name.startswith(_STAGE)]
        return [name.removeprefix(_STAGE) for name in sorted(named, key=lambda name: -sum(self._rows[name]))]

    def stage(self, name: str) -> list[float]:
        """Seconds of the ones who make batches at a stage."""
        return self.row(_STAGE + name)

    @property
    def x_ticks(self) -> list[tuple[float, str]]:
        """Round times below the axis."""
        steps = [step for step in ticks(self.elapsed_s, 5) if step <= self.elapsed_s]
        return [(step / self.elapsed_s, seconds_text(step)) for step in steps]

    def times(self) -> list[str]:
        """When each bin begins."""
        return [seconds_text(place * self.bin_s) for place in range(self.count)]
