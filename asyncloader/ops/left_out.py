"""What operators leave out, told for an audit: a sample that was lost is not taken for one of these.

An operator that looks at each sample and lets some go says which these were. What is never read, as behind
the last sample of a ``take``, nobody has looked at, and nobody can say.
"""

from __future__ import annotations

from collections import deque

from ..audit.rows import LeftSamples
from ..blocks import Indices, Provenance, Trail

__all__ = ["LeavesOut"]


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
