"""``.take``: only the first samples."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from ..blocks import NestedTrail
from ..plan.counts import Counter, Deal, UnknownCount, take_share
from ..quantity import as_counts
from ..types import Position
from .op import START, Blocks, Lane, Opener
from .shortfalls import Shortfall

__all__ = ["Take"]


@dataclass(frozen=True)
class Take:
    """Stop after ``count`` samples of the whole dataset.

    Lanes do not talk to each other, so the count is dealt to them beforehand: lane ``l`` of ``L`` takes
    ``count // L`` samples, and one more if ``l < count % L``. A lane that has fewer says so.
    """

    count: int

    def __post_init__(self) -> None:
        as_counts(self, "count")

    def open(self, upstream: Opener, start: Position, lane: Lane) -> Blocks:
        lanes = lane.topology.lanes
        share = take_share(self.count, lane.topology.lane, lanes)
        taken: int = start.get("taken", 0)
        if taken >= share:
            return

        with closing(upstream(start.get("from", START), lane)) as blocks:
            for block in blocks:
                if taken + len(block) > share:
                    count = share - taken
                    block = block.part(0, count)
                yield block.follow(NestedTrail(block.trail, {}, ("taken", taken)))
                taken += len(block)
                if taken == share:
                    return
        lane.shortfalls.append(Shortfall(self.count, lane.topology.lane, lanes, share, taken, lane.component))

    def count_samples(self, upstream: Counter, deal: Deal) -> list[float]:
        shares = [take_share(self.count, lane, deal.lane_count) for lane in deal.lanes]
        try:
            return [min(share, had) for share, had in zip(shares, upstream(deal), strict=True)]
        except UnknownCount:
            return list(shares)  # as the user says; a lane that has fewer warns

    def describe(self) -> Mapping[str, Any]:
        return {"op": "take", "count": self.count}
