"""What operators leave out, told for an audit: a sample that was lost is not taken for one of these.

An operator that looks at each sample and lets some go says which these were. What is never read, as behind
the last sample of a ``take``, nobody has looked at, and nobody can say.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from ..audit.rows import LeftSamples
from ..blocks import Indices, Provenance, Trail


class LeavesOut:
    """Gathers what operators of a lane leave out, until it rides out beside the lane's next batch.

    It is told of whole blocks, by whichever thread an operator runs on, and costs nothing where no sample
    goes. What comes again after a restart is left out again, and told again.
    """

    def __init__(self) -> None:
        self._told: deque[tuple[str, tuple[int, ...], Provenance]] = deque()

    def __bool__(self) -> bool:
        return bool(self._told)

    def add(self, by: str, component: tuple[int, ...], trail: Trail, indices: Indices) -> None:
        """These samples of a block go no further.

        Args:
            by: What leaves them out, as the recipe's description calls it.
            component: Of the lane; what ``trail`` says is told from there on.
            trail: Of the block.
            indices: Of the samples in it.
        """
        if len(indices):
            self._told.append((by, component, trail.provenance(indices)))

    def take(self) -> tuple[LeftSamples, ...]:
        """What was told since the last time."""
        found: list[LeftSamples] = []
        while self._told:
            by, component, provenance = self._told.popleft()
            for origin, samples in provenance.by_origin():
                found.append((by, origin._replace(component=(*component, *origin.component)), samples))
        return tuple(found)


# What a ``take`` lacked: lanes say it to the pass, and the pass to the user.

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
