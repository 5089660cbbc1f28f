"""Chunks: pools of a lane's samples that a function of the user's is given at once.

Where a chunk begins and ends is part of what it means: a function may look at all of its samples. So a
position within one says where the chunk began and how many samples of it were handed on, and whoever is
opened there has the function called for the same chunk again.
"""

from __future__ import annotations

from collections.abc import Generator

from ..blocks import Block
from ..types import Position
from .op import Blocks, Lane, Opener
from .pools import Pool, SpanTrail, cut_pools

__all__ = ["hand_on", "open_chunks"]


def open_chunks(upstream: Opener, start: Position, size: int, lane: Lane) -> Generator[Pool, None, None]:
    """The chunks of a lane from a position on; the last one may be short. Closing it closes the upstream."""
    return cut_pools(upstream, start, lane.for_columns(True), size, "chunk")


def hand_on(chunk: Pool, made: Block) -> Blocks:
    """What was made of a chunk and is not handed on yet.

    Args:
        chunk: Where it lies, and how much of it was.
        made: As many samples as were made of it, on trails of the samples that they were made of.
    """
    count = len(made)
    if chunk.emitted < count:
        yield made.follow(SpanTrail(made.trail, chunk.span, 0, count)).part(chunk.emitted, count)
