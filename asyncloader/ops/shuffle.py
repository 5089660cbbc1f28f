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

from ..blocks import Block, Gather, Place, Rows, Trail
from ..plan.counts import Counter, Deal
from ..plan.order import permutation
from ..types import Position
from .op import PIECE_SAMPLES, START, Blocks, Lane, Opener

__all__ = ["Shuffle"]

_COLUMNS_PIECE_SAMPLES = 1024


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
        gather = Gather(self.window)
        with closing(upstream(begins, lane)) as blocks:
            for block in blocks:
                for window in gather.feed(block):
                    ends = window.trail.after(len(window) - 1)
                    yield from self._emit(window, skip, _Window(number, begins, ends), lane)
                    del window  # two of them are held as it is
                    number, skip, begins = number + 1, 0, ends
            if (rest := gather.finish()) is not None:
                yield from self._emit(rest, skip, _Window(number, begins, None), lane)

    def count_samples(self, upstream: Counter, deal: Deal) -> list[float]:
        return upstream(deal)

    def describe(self) -> Mapping[str, Any]:
        return {"op": "shuffle", "window": self.window, "seed": self.seed}

    def _emit(self, samples: Block, skip: int, window: _Window, lane: Lane) -> Iterator[Block]:
        order = permutation(len(samples), *lane.draw_key(self.seed), lane.topology.lane, window.number)
        # What is picked of columns is copied, which pays for many at once.
        piece = PIECE_SAMPLES if isinstance(samples, Rows) else _COLUMNS_PIECE_SAMPLES
        for first in range(skip, len(order), piece):
            picked = samples.take(order[first : first + piece])
            yield picked.follow(_WindowTrail(window, first, len(order), picked.trail))


@dataclass(slots=True)
class _Window:
    """One window.

    Args:
        number: Counted in its lane.
        begins: Upstream position before its first sample.
        ends: Upstream position after its last, None if the stream ends there.
    """

    number: int
    begins: Position
    ends: Position | None


@dataclass(slots=True)
class _WindowTrail:
    """Positions inside one window.

    Args:
        window: Which.
        first: How many of the window's samples came before this block.
        count: How many the window has.
        trail: Of the samples as they came from upstream.
    """

    window: _Window
    first: int
    count: int
    trail: Trail

    def after(self, index: int) -> Position:
        window, emitted = self.window, self.first + index + 1
        if emitted == self.count and window.ends is not None:
            return {"window": window.number + 1, "emitted": 0, "from": window.ends}
        return {"window": window.number, "emitted": emitted, "from": window.begins}

    def place(self, index: int) -> Place:
        return self.trail.place(index)
