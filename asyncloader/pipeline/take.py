"""``.take`` and ``.repeat``: how much of the data an epoch has."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from typing import Any

from ..blocks import Trail
from ..plan.lanes import Counter, Deal, UnknownCount, take_share
from ..quantity import as_counts
from ..types import Position, with_entry
from .lane import START, Blocks, Lane, Opener, Shortfall


@dataclass(frozen=True)
class Take:
    """Stop after ``count`` samples of the whole dataset.

    Lanes do not communicate, so the count is dealt to them beforehand: lane ``l`` of ``L`` takes
    ``count // L`` samples, and one more if ``l < count % L``. A lane that has fewer reports it.
    """

    count: int

    def __post_init__(self) -> None:
        as_counts(self, "count")

    def open(self, upstream: Opener, start: Position, lane: Lane) -> Blocks:
        lanes = lane.topology.lanes
        share = take_share(self.count, lane.topology.lane, lanes)
        taken: int = lane.saved(start).get("taken", 0)
        if taken >= share:
            return

        with closing(upstream(start, lane)) as blocks:
            for block in blocks:
                if taken + len(block) > share:
                    count = share - taken
                    block = block.part(0, count)
                yield block.follow(_counted(block.trail, lane.stage, taken))
                taken += len(block)
                if taken == share:
                    return
        lane.services.shortfalls.append(
            Shortfall(self.count, lane.topology.lane, lanes, share, taken, lane.component)
        )

    def count_samples(self, upstream: Counter, deal: Deal) -> list[float]:
        shares = [take_share(self.count, lane, deal.lane_count) for lane in deal.lanes]
        try:
            return [min(share, had) for share, had in zip(shares, upstream(deal), strict=True)]
        except UnknownCount:
            return list(shares)  # as the user says; a lane that has fewer warns

    def describe(self) -> Mapping[str, Any]:
        return {"op": "take", "count": self.count}


def _counted(trail: Trail, stage: int, before: int) -> Trail:
    """The same with the number of samples taken; ``before`` counts those in earlier blocks."""
    return trail.follow(lambda index: with_entry(trail.after(index), stage, {"taken": before + index + 1}))


# Shuffled shards are dealt again in each repetition, so each is counted separately.
_MOST_COUNTED = 1000

# After so many repetitions without a sample a lane ends, since repeating an empty lane would never end. Many,
# since shards dealt at random may leave a lane without samples a few times in a row.
_MOST_EMPTY = 100


@dataclass(frozen=True)
class Repeat:
    """Repeat the stream before it ``times`` times, in a new order each time if it is shuffled.

    Args:
        times: How often. None: for ever, or until a hundred repetitions in a row had no sample.
    """

    times: int | None

    def __post_init__(self) -> None:
        if self.times is not None:
            as_counts(self, "times")

    def open(self, upstream: Opener, start: Position, lane: Lane) -> Blocks:
        first: int = lane.saved(start).get("repetition", 0)
        empty = 0  # repetitions since the last sample
        for number in count(first) if self.times is None else range(first, self.times):
            # Repeats may be nested, and each repetition needs a number of its own.
            inner = lane.repeated(lane.repetition * (self.times or 1) + number)
            with closing(upstream(start, inner)) as blocks:
                for block in blocks:
                    empty = 0
                    yield block.follow(block.trail.with_entry(lane.stage, {"repetition": number}))
            # If shards are dealt again, or a filter draws, a lane may be empty in one repetition and not in
            # the next.
            empty += 1
            if self.times is None and lane.rounds is not None:
                lane.rounds.end()
            if self.times is None and empty > _MOST_EMPTY:
                return
            start = START

    def count_samples(self, upstream: Counter, deal: Deal) -> list[float]:
        if deal.order_seed is None and not deal.varies:
            times = self.times or math.inf
            return [times * had if had else 0 for had in upstream(deal.repeated(deal.repetition))]
        if self.times is None:
            return [math.inf] * len(deal.lanes)
        if self.times > _MOST_COUNTED:
            raise UnknownCount(f"the lanes of repeat({self.times}) are dealt other shards in each repetition")
        totals: list[float] = [0] * len(deal.lanes)
        for number in range(self.times):
            had = upstream(deal.repeated(deal.repetition * self.times + number))
            totals = [before + now for before, now in zip(totals, had, strict=True)]
        return totals

    def describe(self) -> Mapping[str, Any]:
        return {"op": "repeat", "times": self.times}
