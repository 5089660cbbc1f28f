"""``.shuffle``: the order of shards, and the order of samples within windows.

A window is ``n`` consecutive samples of a lane. It is filled, permuted by a draw keyed with (seed,
epoch, repetition, lane, window), and handed on; so a position needs only where the window began and how
many of it were delivered, and resuming reads at most the open window again. A reservoir that refills
with every sample mixes a little better, but its content depends on everything read before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from ..plan.counts import Counter, Deal
from ..plan.order import permutation
from ..types import Block, Position
from .op import PIECE_SAMPLES, START, Blocks, Lane, Opener

__all__ = ["Shuffle"]


@dataclass(frozen=True)
class Shuffle:
    """Permute the samples within windows of ``window`` samples.

    Args:
        window: Samples per window. A lane holds one window in memory, and a second while it fills.
        seed: Names the draw. The epoch is mixed in, so each epoch has another order.
    """

    window: int
    seed: int = 0

    def open(self, upstream: Opener, start: Position, lane: Lane) -> Blocks:
        number, skip, begins = start.get("window", 0), start.get("emitted", 0), start.get("from", START)
        with closing(upstream(begins, lane)) as blocks:
            samples: list[Any] = []
            for block in blocks:
                taken = 0
                while taken < len(block):
                    part = block.samples[taken : taken + self.window - len(samples)]
                    samples += part
                    taken += len(part)
                    if len(samples) == self.window:
                        ends = block.trail.after(taken - 1)
                        yield from self._emit(samples, number, skip, begins, ends, lane)
                        samples, number, skip, begins = [], number + 1, 0, ends
            if samples:
                yield from self._emit(samples, number, skip, begins, None, lane)

    def count_samples(self, upstream: Counter, deal: Deal) -> list[float]:
        return upstream(deal)

    def describe(self) -> Mapping[str, Any]:
        return {"op": "shuffle", "window": self.window, "seed": self.seed}

    def _emit(
        self, samples: list[Any], number: int, skip: int, begins: Position, ends: Position | None, lane: Lane
    ) -> Iterator[Block]:
        order = permutation(len(samples), *lane.draw_key(self.seed), lane.topology.lane, number)
        for first in range(skip, len(order), PIECE_SAMPLES):
            picked = [samples[index] for index in order[first : first + PIECE_SAMPLES]]
            yield Block(picked, _WindowTrail(number, first, len(order), begins, ends))


@dataclass(slots=True)
class _WindowTrail:
    """Positions inside one window.

    Args:
        number: Of the window, counted in its lane.
        first: How many of the window's samples came before this block.
        size: Samples of the window.
        begins: Upstream position before the window's first sample.
        ends: Upstream position after its last, None if the stream ends there.
    """

    number: int
    first: int
    size: int
    begins: Position
    ends: Position | None

    def after(self, index: int) -> Position:
        emitted = self.first + index + 1
        if emitted == self.size and self.ends is not None:
            return {"window": self.number + 1, "emitted": 0, "from": self.ends}
        return {"window": self.number, "emitted": emitted, "from": self.begins}
