"""``.take``: only the first samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..blocks import NestedTrail
from ..plan.counts import Counter, Deal, UnknownCount, take_share
from ..types import Position
from .checks import check_count
from .op import START, Blocks, Lane, Opener

__all__ = ["Shortfall", "Take", "describe_shortfalls"]

# Named in a warning; the others are counted.
_LANES_NAMED = 3


class Shortfall(NamedTuple):
    """A lane that ended before it had given its part of a ``take``.

    Attributes:
        wanted: What the recipe was to take.
        lane: Which lane.
        lanes: Of how many.
        share: What it was to give.
        taken: What it gave.
        component: Which component of a mixture takes, if one does.
    """

    wanted: int
    lane: int
    lanes: int
    share: int
    taken: int
    component: tuple[int, ...] = ()


def describe_shortfalls(found: Iterable[Shortfall]) -> list[str]:
    """A sentence for each ``take`` that fell short, whatever the number of lanes."""
    by_take: dict[tuple[int, tuple[int, ...]], list[Shortfall]] = {}
    for short in sorted(set(found)):
        by_take.setdefault((short.wanted, short.component), []).append(short)
    return [_describe(count, shorts) for (count, _), shorts in by_take.items()]


def _describe(count: int, shorts: list[Shortfall]) -> str:
    lacking = f"take({count}) lacks {sum(short.share - short.taken for short in shorts)} samples: "
    lanes = shorts[0].lanes
    if lanes == 1:
        return f"{lacking}the recipe gave only {shorts[0].taken}"
    named = [
        f"lane {short.lane} ended after {short.taken} of its {short.share}" for short in shorts[:_LANES_NAMED]
    ]
    if more := len(shorts) - len(named):
        named.append(f"and {more} more")
    return (
        f"{lacking}of {lanes} lanes {', '.join(named)}. A take is dealt evenly to the lanes beforehand; use "
        "fewer lanes, or shards of equal length"
    )


@dataclass(frozen=True)
class Take:
    """Stop after ``count`` samples of the whole dataset.

    Lanes do not talk to each other, so the count is dealt to them beforehand: lane ``l`` of ``L`` takes
    ``count // L`` samples, and one more if ``l < count % L``. A lane that has fewer says so.
    """

    count: int

    def __post_init__(self) -> None:
        check_count("count", self.count)

    def open(self, upstream: Opener, start: Position, lane: Lane) -> Blocks:
        lanes = lane.topology.lanes
        share = take_share(self.count, lane.topology.lane, lanes)
        taken: int = start.get("taken", 0)
        if taken >= share:
            return

        def wanted() -> int:
            # Without a bound, a filter in front would slow down the calls before it for the last few.
            return min(lane.want.samples, share - taken) if lane.want.is_bounded else lane.want.samples

        with closing(upstream(start.get("from", START), lane)) as blocks:
            for block in lane.want.pull(blocks, wanted):
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
