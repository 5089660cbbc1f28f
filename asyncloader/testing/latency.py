"""How long a server takes to begin an answer."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

__all__ = ["Latency"]


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds before the first byte: lognormal, with an occasional stall.

    Object stores answer most requests near the median and a few very much later; a lognormal body
    and a rare stall is the smallest model that has both, and a client that only meets constant
    latency has never been tested for what hedging is for.

    Args:
        median_s: Half of the requests are faster than this.
        sigma: Spread of the logarithm; 0 makes every request take ``median_s``, 0.5 puts the 95th
            percentile at 2.3 times the median.
        stall_probability: Share of the requests that take ``stall_s`` instead.
        stall_s: How long those take.
    """

    median_s: float
    sigma: float = 0.0
    stall_probability: float = 0.0
    stall_s: float = 10.0

    def __post_init__(self) -> None:
        if self.median_s < 0 or self.sigma < 0 or self.stall_s < 0:
            raise ValueError(f"latency cannot be negative: {self}")
        if not 0 <= self.stall_probability <= 1:
            raise ValueError(f"stall_probability must be between 0 and 1, not {self.stall_probability}")

    def __call__(self, rng: random.Random) -> float:
        """Draw the seconds of one request."""
        if rng.random() < self.stall_probability:
            return self.stall_s
        return self.median_s * math.exp(rng.gauss(0.0, self.sigma))
