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

import numpy as np
from numpy.typing import NDArray

from ..blocks import Block, Place, Rows, Trail
from ..plan.counts import Counter, Deal
from ..plan.order import permutation
from ..types import Position
from .checks import check_count
from .op import PIECE_SAMPLES, Blocks, Lane, Opener
from .pools import Pool, Span, cut_pools

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

    def __post_init__(self) -> None:
        check_count("window", self.window)
        if isinstance(self.seed, bool) or not isinstance(self.seed, int):
            raise TypeError(f"seed should be an int, but got seed={self.seed!r}")

    def open(self, upstream: Opener, start: Position, lane: Lane) -> Blocks:
        # Whoever pulls wants no other number of samples than before: those of a window come all the same.
        with closing(
            cut_pools(upstream, start, lane, self.window, "window", lambda blocks, _: blocks)
        ) as pools:
            for window in pools:
                yield from self._emit(window, lane)
                del window  # two of them are held as it is

    def count_samples(self, upstream: Counter, deal: Deal) -> list[float]:
        return upstream(deal)

    def describe(self) -> Mapping[str, Any]:
        return {"op": "shuffle", "window": self.window, "seed": self.seed}

    def _emit(self, window: Pool, lane: Lane) -> Iterator[Block]:
        samples, span = window.samples, window.span
        order = permutation(len(samples), *lane.draw_key(self.seed), lane.topology.lane, span.number)
        # What is picked of columns is copied, which pays for many at once.
        piece = PIECE_SAMPLES if isinstance(samples, Rows) else _COLUMNS_PIECE_SAMPLES
        for first in range(window.emitted, len(order), piece):
            picked = samples.take(order[first : first + piece])
            yield picked.follow(_WindowTrail(span, first, len(order), picked.trail))


@dataclass(slots=True)
class _WindowTrail:
    """Positions inside one window.

    Args:
        span: Where the window lies.
        first: How many of the window's samples came before this block.
        count: How many the window has.
        trail: Of the samples as they came from upstream.
    """

    span: Span
    first: int
    count: int
    trail: Trail

    def after(self, index: int) -> Position:
        return self.span.after(self.first + index + 1, self.count)

    def place(self, index: int) -> Place:
        return self.trail.place(index)

    def components(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.trail.components(indices)
