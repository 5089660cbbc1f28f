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

from ..blocks import Block, PickedTrail, Provenance, Referred, Rows
from ..plan.order import permutation
from ..quantity import as_counts, as_whole
from ..types import Position
from .op import PIECE_SAMPLES, Blocks, Lane, Op, Opener
from .pools import Pool, SpanTrail, cut_pools

__all__ = ["Shuffle"]

_COLUMNS_PIECE_SAMPLES = 1024


@dataclass(frozen=True)
class Shuffle(Op):
    """Permute the samples within windows of ``window`` samples.

    Args:
        window: Samples per window. A lane holds one window in memory, and a second while it fills.
        seed: Names the draw. The epoch is mixed in, so each epoch has another order.
    """

    window: int
    seed: int = 0

    def __post_init__(self) -> None:
        as_counts(self, "window")
        seed = as_whole(self.seed)
        if seed is None:
            raise TypeError(f"seed should be an int, but got seed={self.seed!r}")
        object.__setattr__(self, "seed", seed)

    def open(self, upstream: Opener, start: Position, lane: Lane) -> Blocks:
        with closing(cut_pools(upstream, start, lane, self.window, "window")) as pools:
            for window in pools:
                yield from self._emit(window, lane)
                del window  # two of them are held as it is

    def describe(self) -> Mapping[str, Any]:
        return {"op": "shuffle", "window": self.window, "seed": self.seed}

    def _emit(self, window: Pool, lane: Lane) -> Iterator[Block]:
        samples, span = window.samples, window.span
        key = *lane.draw_key(self.seed), lane.topology.lane, span.number
        order = permutation(len(samples), *key)
        # What is picked of columns is copied, which pays for many at once.
        piece = PIECE_SAMPLES if isinstance(samples, Rows) else _COLUMNS_PIECE_SAMPLES
        drawn = _DrawnTrail(samples.trail, order, key)
        for first in range(window.emitted, len(order), piece):
            picked = samples.take(order[first : first + piece])
            trail = PickedTrail(drawn, range(first, first + len(picked)))
            yield picked.follow(SpanTrail(trail, span, first, len(order)))


@dataclass(slots=True)
class _DrawnTrail(PickedTrail):
    """All samples of a window in their order, which need not be told where the key is."""

    key: tuple[int, ...]

    def bases(self, start: int, stop: int) -> list[Referred]:
        return [(self, start, stop)]

    def table(self) -> tuple[Provenance, tuple[int, ...]]:
        return self.trail.provenance(range(len(self.indices))), self.key
