"""``.shuffle``, and the pools that it, batchings and functions of many samples work on.

A pool is a run of consecutive samples of a lane that is worked on as a whole: a window of a shuffle, a
chunk for a function of many samples, or the samples that batches are made of. The result depends on its
samples and its number alone. So a position needs only where the pool began and how much of the result was
passed on; resuming reads at most the open pool again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from ..blocks import Block, Gather, Rows
from ..plan.lanes import draw_order, permutation
from ..quantity import as_counts, as_whole
from ..types import Position, with_entry
from .calls import PIECE_SAMPLES
from .lane import Blocks, Lane, Opener
from .op import Op

# Makes the draw different from that of a shuffle's window of the same number.
_DRAW = 0x706F6F6C


@dataclass(frozen=True, slots=True)
class PoolSpan:
    """Where a pool lies in its lane's stream.

    Attributes:
        stage: Number of the stage that it is a pool of.
        number: Its number in the lane.
        begins: Upstream position before its first sample.
        ends: Upstream position after its last sample, None if the stream ends there.
    """

    stage: int
    number: int
    begins: Position
    ends: Position | None

    def after(self, emitted: int, count: int) -> Position:
        """The position after ``emitted`` of the ``count`` parts that are made of the pool."""
        if emitted == count and self.ends is not None:
            return with_entry(self.ends, self.stage, {"pool": self.number + 1})
        return with_entry(self.begins, self.stage, {"pool": self.number, "emitted": emitted})

    def positions(self, first: int, count: int) -> Callable[[int], Position]:
        """Those after the samples of a result of ``count``, from the one of index ``first`` on."""
        return lambda index: self.after(first + index + 1, count)


@dataclass(slots=True)
class Pool:
    """One pool.

    Attributes:
        samples: Its samples.
        span: Where it lies, without the samples.
        emitted: How many parts of the result were passed on before the pass began.
    """

    samples: Block
    span: PoolSpan
    emitted: int


def cut_pools(upstream: Opener, start: Position, lane: Lane, size: int) -> Generator[Pool, None, None]:
    """The pools of a lane from ``start`` on, each of ``size`` samples but the last.

    A pool is not held here after it was passed on, so the caller decides whether two are in memory at a time.

    Args:
        upstream, start, lane: As of ``Op.open``.
        size: Samples of a pool.
    """
    saved, begins = lane.saved(start), start
    number, emitted = saved.get("pool", 0), saved.get("emitted", 0)
    gather = Gather(size)
    with closing(upstream(start, lane)) as blocks:
        for block in blocks:
            for samples in gather.feed(block):
                ends = samples.trail.after(len(samples) - 1)
                made = [Pool(samples, PoolSpan(lane.stage, number, begins, ends), emitted)]
                del samples
                yield made.pop()
                number, emitted, begins = number + 1, 0, ends
            del block
        if (rest := gather.finish()) is not None:
            made = [Pool(rest, PoolSpan(lane.stage, number, begins, None), emitted)]
            del rest
            yield made.pop()


def draw_pool(pool: Pool, count: int, lane: Lane) -> list[int]:
    """The order of the ``count`` parts of a pool: drawn, so that it does not depend on their lengths."""
    key = lane.deal.draw_key(lane.order_seed or 0)
    return permutation(count, *key, lane.topology.lane, pool.span.number, _DRAW)


# --- ``.shuffle`` ---
#
# A window is ``n`` consecutive samples of a lane. It is filled, permuted by a draw keyed with (seed, epoch,
# repetition, lane, window), and passed on. So a position needs only where the window began and how many of
# its samples were delivered, and resuming reads at most the open window again. A reservoir that is refilled
# with every sample mixes a little better, but its content depends on everything read before.

_COLUMNS_PIECE_SAMPLES = 1024


@dataclass(frozen=True)
class Shuffle(Op):
    """Permute the samples within windows of ``window`` samples.

    Args:
        window: Samples per window. A lane holds one window in memory, and a second while that fills.
        seed: Of the draw, together with the epoch, so each epoch has another order.
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
        with closing(cut_pools(upstream, start, lane, self.window)) as pools:
            for window in pools:
                yield from self._emit(window, lane)
                del window  # there is a second one anyway while that fills

    def describe(self) -> Mapping[str, Any]:
        return {"op": "shuffle", "window": self.window, "seed": self.seed}

    def _emit(self, window: Pool, lane: Lane) -> Iterator[Block]:
        samples, span = window.samples, window.span
        key = *lane.deal.draw_key(self.seed), lane.topology.lane, span.number
        order = draw_order(len(samples), *key)
        drawn = samples.take(order) if isinstance(samples, Rows) else None
        # Samples picked from columns are copied: not all at once, and many, which is cheaper for each.
        piece = _COLUMNS_PIECE_SAMPLES if drawn is None else PIECE_SAMPLES
        for first in range(window.emitted, len(order), piece):
            stop = first + piece
            picked = samples.take(order[first:stop]) if drawn is None else drawn.part(first, stop)
            yield picked.follow(picked.trail.follow(span.positions(first, len(order))))
