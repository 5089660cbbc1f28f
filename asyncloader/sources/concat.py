"""The source that reads several recipes one after another, in each lane for itself."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..blocks import Indices, Place, Provenance, Trail
from ..ops.op import START, Blocks, Lane
from ..plan.counts import Deal
from ..types import Position
from .components import Composed, of_component
from .feed import Feed

__all__ = ["Concat"]


@dataclass(frozen=True, repr=False)
class Concat(Composed):
    """Samples of several recipes: those that a lane has of the first, then those of the second, and so on."""

    kind = "concat"

    def open(self, start: Position, lane: Lane) -> Blocks:
        first: int = start.get("component", 0)
        for number in range(first, len(self.recipes)):
            saved = start.get("from") if number == first else None
            with closing(Feed(self, number, lane, 1.0, saved)) as feed:
                while feed.pull():
                    block = feed.take(feed.held)
                    yield block.follow(_ConcatTrail(block.trail, number))
                    del block

    def positions_of(self, position: Position) -> dict[int, Position]:
        return {position.get("component", 0): position.get("from", START)}

    def count_samples(self, deal: Deal) -> list[float]:
        return [sum(of_lane) for of_lane in zip(*self.counts_of(deal), strict=True)]


@dataclass(slots=True)
class _ConcatTrail(Trail):
    """Positions inside a block of one component.

    Args:
        trail: Of its samples.
        number: Of the component.
    """

    trail: Trail
    number: int

    def after(self, index: int) -> Position:
        return {"component": self.number, "from": self.trail.after(index)}

    def place(self, index: int) -> Place:
        return self.trail.place(index)

    def components(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.full(len(indices), self.number)

    def provenance(self, indices: Indices) -> Provenance:
        return of_component(self.number, self.trail.provenance(indices))

    def table(self) -> tuple[Provenance, tuple[int, ...]]:
        found, order = self.trail.table()
        return of_component(self.number, found), order
