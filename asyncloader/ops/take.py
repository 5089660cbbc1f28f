"""``.take``: only the first samples."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from ..plan.counts import Counter, Deal, UnknownCount, take_share
from ..types import Block, NestedTrail, PickedTrail, Position
from .op import START, Blocks, Lane, Opener

__all__ = ["Take"]


@dataclass(frozen=True)
class Take:
    """Stop after ``count`` samples of the whole dataset.

    Lanes do not talk to each other, so the count is dealt to them beforehand: lane ``l`` of ``L`` takes
    ``count // L`` samples, and one more if ``l < count % L``. A lane that has fewer warns.
    """

    count: int

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
                    block = Block(block.samples[:count], PickedTrail(block.trail, range(count)))
                yield Block(block.samples, NestedTrail(block.trail, {}, ("taken", taken)))
                taken += len(block)
                if taken == share:
                    return
        warnings.warn(
            f"take({self.count}) was to take {share} samples from lane {lane.topology.lane} of {lanes}, "
            f"which ended after {taken}; use fewer lanes, or shards of equal length",
            stacklevel=2,
        )

    def count_samples(self, upstream: Counter, deal: Deal) -> list[float]:
        shares = [take_share(self.count, lane, deal.lane_count) for lane in deal.lanes]
        try:
            return [min(share, had) for share, had in zip(shares, upstream(deal), strict=True)]
        except UnknownCount:
            return list(shares)  # as the user says; a lane that has fewer warns

    def describe(self) -> Mapping[str, Any]:
        return {"op": "take", "count": self.count}
