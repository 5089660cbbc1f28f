"""``.shuffle``: the order of shards, and the order of samples within windows.

A window is ``n`` consecutive samples of a lane. It is filled, permuted by a draw keyed with (seed,
epoch, repetition, lane, window), and handed on; so a position needs only where the window began and how
many of it were delivered, and resuming reads at most the open window again. A reservoir that refills
with every sample mixes a little better, but its content depends on everything read before.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from ..plan.counts import Counter, Deal
from ..plan.order import permutation
from ..types import Block, Place, Position, Trail
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
            origins = _Origins()
            for block in blocks:
                taken = 0
                while taken < len(block):
                    part = block.samples[taken : taken + self.window - len(samples)]
                    origins.add(len(samples), block.trail, taken)
                    samples += part
                    taken += len(part)
                    if len(samples) == self.window:
                        ends = block.trail.after(taken - 1)
                        window = _Window(number, begins, ends, origins)
                        yield from self._emit(samples, skip, window, lane)
                        samples, number, skip, begins = [], number + 1, 0, ends
                        origins = _Origins()
            if samples:
                yield from self._emit(samples, skip, _Window(number, begins, None, origins), lane)

    def count_samples(self, upstream: Counter, deal: Deal) -> list[float]:
        return upstream(deal)

    def describe(self) -> Mapping[str, Any]:
        return {"op": "shuffle", "window": self.window, "seed": self.seed}

    def _emit(self, samples: list[Any], skip: int, window: _Window, lane: Lane) -> Iterator[Block]:
        order = permutation(len(samples), *lane.draw_key(self.seed), lane.topology.lane, window.number)
        for first in range(skip, len(order), PIECE_SAMPLES):
            picked = [samples[index] for index in order[first : first + PIECE_SAMPLES]]
            yield Block(picked, _WindowTrail(window, first, order))


@dataclass(slots=True)
class _Origins:
    """Which upstream blocks a window's samples came in: an entry a block, none a sample."""

    starts: list[int] = field(default_factory=list)
    trails: list[Trail] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)

    def add(self, start: int, trail: Trail, offset: int) -> None:
        """From ``start`` on the window holds a block's samples, those from ``offset`` on."""
        self.starts.append(start)
        self.trails.append(trail)
        self.offsets.append(offset)

    def place(self, index: int) -> Place:
        nth = bisect_right(self.starts, index) - 1
        return self.trails[nth].place(index - self.starts[nth] + self.offsets[nth])


@dataclass(slots=True)
class _Window:
    """One window.

    Args:
        number: Counted in its lane.
        begins: Upstream position before its first sample.
        ends: Upstream position after its last, None if the stream ends there.
        origins: Where its samples came from.
    """

    number: int
    begins: Position
    ends: Position | None
    origins: _Origins


@dataclass(slots=True)
class _WindowTrail:
    """Positions inside one window.

    Args:
        window: Which.
        first: How many of the window's samples came before this block.
        order: In which they come, by their indices in it.
    """

    window: _Window
    first: int
    order: Sequence[int]

    def after(self, index: int) -> Position:
        window, emitted = self.window, self.first + index + 1
        if emitted == len(self.order) and window.ends is not None:
            return {"window": window.number + 1, "emitted": 0, "from": window.ends}
        return {"window": window.number, "emitted": emitted, "from": window.begins}

    def place(self, index: int) -> Place:
        return self.window.origins.place(self.order[self.first + index])
