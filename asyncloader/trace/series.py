"""Numbers over time in a bounded number of bins, whose width doubles as the pass goes on. Pure."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

__all__ = ["Series"]

# As many as a plot is wide, at most: half of that is left when the width doubles.
_MOST_BINS = 240

_FIRST_BIN_S = 0.05


class Series:
    """Sums by name and bin.

    Args:
        start_s: When the first bin begins. What is told of before counts as then.
    """

    def __init__(self, start_s: float) -> None:
        self._start_s = start_s
        self.bin_s = _FIRST_BIN_S
        self._rows: defaultdict[str, list[float]] = defaultdict(list)

    def add(self, name: str, at_s: float, amount: float) -> None:
        """So much at one moment."""
        place = self._place(at_s)
        row = self._row(name, place)
        row[place] += amount

    def spread(self, name: str, start_s: float, end_s: float, amount: float) -> None:
        """So much, evenly from one moment to another."""
        start_s, end_s = max(start_s, self._start_s), max(end_s, self._start_s)
        if end_s <= start_s:
            return self.add(name, end_s, amount)
        last = self._place(end_s)
        first = self._place(start_s)
        row = self._row(name, last)
        for place in range(first, last + 1):
            begin_s = self._start_s + place * self.bin_s
            covered_s = min(end_s, begin_s + self.bin_s) - max(start_s, begin_s)
            row[place] += amount * max(covered_s, 0.0) / (end_s - start_s)
        return None

    def rows(self, end_s: float) -> dict[str, list[float]]:
        """The sums of every name, each with as many bins as there are up to ``end_s``."""
        bins = self._place(end_s) + 1
        return {name: row[:bins] + [0.0] * (bins - len(row)) for name, row in self._rows.items()}

    def as_dict(self, end_s: float) -> dict[str, Any]:
        """The rows, with the width of their bins."""
        rows = self.rows(end_s)  # which may have made them wider
        return {"bin_s": self.bin_s, "rows": rows}

    def _place(self, at_s: float) -> int:
        past_s = max(at_s - self._start_s, 0.0)
        while past_s >= self.bin_s * _MOST_BINS:
            self.bin_s *= 2
            for name, row in self._rows.items():
                self._rows[name] = [sum(row[place : place + 2]) for place in range(0, len(row), 2)]
        return int(past_s / self.bin_s)

    def _row(self, name: str, place: int) -> list[float]:
        row = self._rows[name]
        row += [0.0] * (place + 1 - len(row))
        return row
