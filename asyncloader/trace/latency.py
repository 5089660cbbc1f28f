"""How long answers take, in bins of a logarithmic scale. Pure."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

__all__ = ["Latencies"]

# Twenty for a factor of ten: neighbours differ by an eighth.
BINS_PER_DECADE = 20


class Latencies:
    """Counts times by their order of magnitude."""

    def __init__(self) -> None:
        self._bins: Counter[int] = Counter()

    def add(self, seconds: float) -> None:
        """One more."""
        self._bins[math.floor(math.log10(max(seconds, 1e-6)) * BINS_PER_DECADE)] += 1

    def as_dict(self) -> dict[str, Any]:
        """Counts by bin, number ``n`` of which begins at ``10 ** (n / bins_per_decade)`` s; percentiles."""
        return {
            "bins_per_decade": BINS_PER_DECADE,
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
                return float(10 ** ((number + (wanted - before) / count) / BINS_PER_DECADE))
            before += count
        return None
