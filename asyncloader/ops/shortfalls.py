"""What a ``take`` lacked: lanes say it to the pass, and the pass to the user."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["Shortfall", "describe_shortfalls"]

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
        return f"{lacking}the dataset gave only {shorts[0].taken}"
    named = [
        f"lane {short.lane} ended after {short.taken} of its {short.share}" for short in shorts[:_LANES_NAMED]
    ]
    if more := len(shorts) - len(named):
        named.append(f"and {more} more")
    return (
        f"{lacking}of {lanes} lanes {', '.join(named)}. A take is dealt evenly to the lanes beforehand; use "
        "fewer lanes, or shards of equal length"
    )
