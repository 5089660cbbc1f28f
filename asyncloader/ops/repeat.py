"""``.repeat``: the data several times over within one epoch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from typing import Any

from ..blocks import NestedTrail
from ..plan.counts import Counter, Deal, UnknownCount
from ..types import Position
from .checks import check_count
from .op import START, Blocks, Lane, Opener

__all__ = ["Repeat"]

# Each repetition of shuffled shards is dealt anew, and so is worked out for itself.
_MOST_COUNTED = 1000


@dataclass(frozen=True)
class Repeat:
    """Run the stream before it ``times`` times, each time shuffled anew; None: for ever."""

    times: int | None

    def __post_init__(self) -> None:
        if self.times is not None:
            check_count("times", self.times)

    def open(self, upstream: Opener, start: Position, lane: Lane) -> Blocks:
        first: int = start.get("repetition", 0)
        begins = start.get("from", START)
        for number in count(first) if self.times is None else range(first, self.times):
            # Repeats nest, and each nesting needs numbers of its own.
            inner = lane.repeated(lane.repetition * (self.times or 1) + number)
            came = False
            with closing(upstream(begins, inner)) as blocks:
                for block in blocks:
                    came = True
                    yield block.follow(NestedTrail(block.trail, {"repetition": number}))
            if not came and begins is START:
                return  # an empty lane repeated for ever would spin for ever
            begins = START

    def count_samples(self, upstream: Counter, deal: Deal) -> list[float]:
        if self.times is None or deal.order_seed is None:
            times = self.times or math.inf
            return [times * had if had else 0 for had in upstream(deal.repeated(deal.repetition))]
        if self.times > _MOST_COUNTED:
            raise UnknownCount(f"the lanes of repeat({self.times}) are dealt other shards in each repetition")
        totals: list[float] = [0] * len(deal.lanes)
        ended = [False] * len(deal.lanes)
        for number in range(self.times):
            had = upstream(deal.repeated(deal.repetition * self.times + number))
            ended = [before or not now for before, now in zip(ended, had, strict=True)]
            totals = [a if over else a + b for a, b, over in zip(totals, had, ended, strict=True)]
        return totals

    def describe(self) -> Mapping[str, Any]:
        return {"op": "repeat", "times": self.times}
