"""Chunks: runs of consecutive samples of a lane that a function of the user's is given at once.

Where a chunk begins and ends is part of what it means: a function may look at all of its samples. So a
position within one says where the chunk began and how many samples of it were handed on, and whoever is
opened there has the function called for the same chunk again.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from ..blocks import Block, Gather, Place, Trail
from ..types import Position
from .op import START, Blocks, Lane, Opener

__all__ = ["Chunk", "open_chunks"]


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk.

    Attributes:
        block: Its samples.
        begins: Upstream position before the first of them.
        ends: Upstream position after the last.
        skip: How many of the samples that are made of it were handed on before.
    """

    block: Block
    begins: Position
    ends: Position
    skip: int

    def hand_on(self, made: Block) -> Blocks:
        """What was made of it and is not handed on yet.

        Args:
            made: As many samples as were made of it, on trails of the samples that they were made of.
        """
        count = len(made)
        if self.skip < count:
            yield made.follow(_ChunkTrail(self.begins, self.ends, count, made.trail)).part(self.skip, count)


def open_chunks(upstream: Opener, start: Position, size: int, lane: Lane) -> Generator[Chunk, None, None]:
    """The chunks of a lane from a position on; the last one may be short. Closing it closes the upstream."""
    begins, skip = start.get("from", START), start.get("emitted", 0)
    gather = Gather(size)

    def wanted() -> int:
        return gather.lacking if lane.want.is_bounded else lane.want.samples

    blocks = upstream(begins, lane.for_columns(True))
    try:
        for block in lane.want.pull(blocks, wanted):
            for group in gather.feed(block):
                ends = group.trail.after(len(group) - 1)
                yield Chunk(group, begins, ends, skip)
                begins, skip = ends, 0
                del group  # two of them are held as it is
            del block
        if (rest := gather.finish()) is not None:
            yield Chunk(rest, begins, rest.trail.after(len(rest) - 1), skip)
    finally:
        blocks.close()


@dataclass(slots=True)
class _ChunkTrail:
    """Positions of what was made of one chunk.

    Args:
        begins: See ``Chunk``.
        ends: See ``Chunk``.
        count: How many samples were made of it.
        trail: Of the samples that they were made of.
    """

    begins: Position
    ends: Position
    count: int
    trail: Trail

    def after(self, index: int) -> Position:
        if index + 1 == self.count:
            return {"from": self.ends}
        return {"from": self.begins, "emitted": index + 1}

    def place(self, index: int) -> Place:
        return self.trail.place(index)
