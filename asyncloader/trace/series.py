"""What a pass counts in bins: numbers over time, and how long answers take. Pure."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from typing import Any

__all__ = ["Latencies", "Series"]

# As many as a plot is wide, at most: half of that is left when the width doubles.
_MOST_BINS = 240

_FIRST_BIN_S = 0.05

# Twenty for a factor of ten: neighbours differ by an eighth.
_BINS_PER_DECADE = 20


class Series:
    """Sums by name over time, in a bounded number of bins, whose width doubles as the pass goes on.

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


class Latencies:
    """Counts times by their order of magnitude, in bins of a logarithmic scale."""

    def __init__(self) -> None:
        self._bins: Counter[int] = Counter()

    def add(self, seconds: float) -> None:
        """One more."""
        self._bins[math.floor(math.log10(max(seconds, 1e-6)) * _BINS_PER_DECADE)] += 1

    def as_dict(self) -> dict[str, Any]:
        """Counts by bin, number ``n`` of which begins at ``10 ** (n / bins_per_decade)`` s; percentiles."""
        return {
            "bins_per_decade": _BINS_PER_DECADE,
            "bins": {str(number): self._bins[number] for number in sorted(self._bins)},
            "count": self._bins.total(),
            **{f"p{percent}_s": self._percentile(percent / 100) for percent in (50, 95, 99)},
        }

    def _percentile(self, part: float) -> float | None:
        """As if the times of a bin were spread evenly over it."""
        wanted, before = part * self._bins.total(), 0
        for number in sorted(self._bins):
            count = self._bins[number]
            if before + count >= wanted:
                return float(10 ** ((number + (wanted - before) / count) / _BINS_PER_DECADE))
            before += count
        return None
