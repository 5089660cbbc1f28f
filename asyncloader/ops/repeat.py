"""``.repeat``: the data several times over within one epoch."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from typing import Any

from ..types import Block, NestedTrail, Position
from .op import START, Blocks, Lane, Opener

__all__ = ["Repeat"]


@dataclass(frozen=True)
class Repeat:
    """Run the stream before it ``times`` times, each time shuffled anew; None: for ever."""

    times: int | None

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
                    yield Block(block.samples, NestedTrail(block.trail, {"repetition": number}))
            if not came and begins is START:
                return  # an empty lane repeated for ever would spin for ever
            begins = START

    def describe(self) -> Mapping[str, Any]:
        return {"op": "repeat", "times": self.times}
