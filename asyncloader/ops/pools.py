"""Pools: runs of consecutive samples of a lane that are worked on together, as a shuffle's windows are.

What is made of a pool depends on its samples and its number alone. So a position needs only where the pool
began and how much of it was handed on; resuming reads at most the open pool again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..blocks import Block, Gather, OuterTrail
from ..plan.order import permutation
from ..types import Position
from .batching import Batch, Batches
from .lengths import Lengths
from .op import START, Lane, Opener

__all__ = ["Group", "Pool", "Span", "SpanTrail", "batches_of_pools", "cut_pools", "draw_pool"]

Group: TypeAlias = NDArray[np.int64]
"""Which samples of a pool make a batch, by their indices: ``(n,) int64``."""

# Keeps the draw apart from that of a shuffle's window of the same number.
_DRAW = 0x706F6F6C


@dataclass(frozen=True, slots=True)
class Span:
    """Where a pool lies in its lane's stream.

    Attributes:
        name: Of the pool's number in positions.
        number: Counted in its lane.
        begins: Upstream position before its first sample.
        ends: Upstream position after its last, None if the stream ends there.
    """

    name: str
    number: int
    begins: Position
    ends: Position | None

    def after(self, emitted: int, count: int) -> Position:
        """The position after so many of the ``count`` parts that the pool makes."""
        if emitted == count and self.ends is not None:
            return {self.name: self.number + 1, "emitted": 0, "from": self.ends}
        return {self.name: self.number, "emitted": emitted, "from": self.begins}


@dataclass(slots=True)
class SpanTrail(OuterTrail):
    """Positions of some of the samples that a pool makes.

    Args:
        span: Where the pool lies.
        first: How many of its samples came before these.
        count: How many it makes.
    """

    span: Span
    first: int
    count: int

    def after(self, index: int) -> Position:
        return self.span.after(self.first + index + 1, self.count)


@dataclass(slots=True)
class Pool:
    """One pool.

    Attributes:
        samples: Of it.
        span: Where it lies; holds none of them.
        emitted: How many parts of it were handed on before the pass began.
    """

    samples: Block
    span: Span
    emitted: int


def cut_pools(
    upstream: Opener, start: Position, lane: Lane, size: int, name: str = "pool"
) -> Generator[Pool, None, None]:
    """The pools of a lane from ``start`` on, each of ``size`` samples but the last.

    Nothing here holds a pool while it is made use of: whoever lets go of it holds none while the next fills.

    Args:
        upstream, start, lane: As of ``Op.open``.
        size: Samples of a pool.
        name: Of its number in positions.
    """
    number, emitted, begins = start.get(name, 0), start.get("emitted", 0), start.get("from", START)
    gather = Gather(size)
    with closing(upstream(begins, lane)) as blocks:
        for block in blocks:
            for samples in gather.feed(block):
                ends = samples.trail.after(len(samples) - 1)
                made = [Pool(samples, Span(name, number, begins, ends), emitted)]
                del samples
                yield made.pop()
                number, emitted, begins = number + 1, 0, ends
            del block
        if (rest := gather.finish()) is not None:
            made = [Pool(rest, Span(name, number, begins, None), emitted)]
            del rest
            yield made.pop()


def draw_pool(pool: Pool, count: int, lane: Lane) -> list[int]:
    """The order of the ``count`` parts of a pool: drawn, so that it says nothing of their lengths."""
    return permutation(
        count, *lane.draw_key(lane.order_seed or 0), lane.topology.lane, pool.span.number, _DRAW
    )


def batches_of_pools(
    upstream: Opener,
    start: Position,
    lane: Lane,
    size: int,
    plan: Callable[[Block], tuple[Lengths, Sequence[Group]]],
) -> Batches:
    """The batches of all pools, those of a pool in an order drawn for it.

    Args:
        upstream, start, lane: As of ``Batching.open``.
        size: Samples of a pool.
        plan: Says of a pool how long its samples are, and which of them make the batches.
    """
    with closing(cut_pools(upstream, start, lane, size)) as pools:
        for pool in pools:
            lengths, groups = plan(pool.samples)
            counts_tokens = lengths.values.dtype.kind == "i"
            order = draw_pool(pool, len(groups), lane)
            for emitted, nth in enumerate(order[pool.emitted :], pool.emitted + 1):
                group = groups[nth]
                tokens = int(lengths.values[group].sum()) if counts_tokens else 0
                block = pool.samples.take(group.tolist())
                yield Batch(block, pool.span.after(emitted, len(order)), len(group), tokens)
                del block
            del pool, lengths, groups
