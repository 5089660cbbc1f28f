"""Groups a stream of blocks into batches: blocks again, of a batch each.

Pure: no clock, no I/O, no torch. Two laws hold for every class of the ``Batching`` protocol. Batches
cut from one stream are the same however the stream was cut into blocks. And at the end of a batch a
batching remembers nothing that the position does not say, so a stream reopened there goes on with the
same batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from .types import Block, JoinedTrail, PickedTrail, Trail

__all__ = ["Batcher", "Batching", "check_batch_size"]


class Batching(Protocol):
    """Feed blocks, get batches; ``Batcher`` is the one of fixed size."""

    def feed(self, block: Block) -> Iterator[Block]:
        """The batches that ``block`` completes."""
        ...

    def finish(self) -> Iterator[Block]:
        """What is left at the end of the stream."""
        ...


def check_batch_size(batch_size: int | None, drop_last: bool) -> None:
    """Check the two options together, in torch's order and in torch's words.

    Raises:
        ValueError: ``batch_size`` is neither None nor an int above 0; ``drop_last`` is not a bool; or
            ``batch_size=None`` together with ``drop_last``.
    """
    if batch_size is None:
        if drop_last:
            raise ValueError(
                "batch_size=None option disables auto-batching and is mutually exclusive with drop_last"
            )
        return
    if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size <= 0:
        raise ValueError(f"batch_size should be a positive integer value, but got batch_size={batch_size}")
    if not isinstance(drop_last, bool):
        raise ValueError(f"drop_last should be a boolean value, but got drop_last={drop_last}")


class Batcher:
    """Batches of ``batch_size`` samples, in the order they come.

    Args:
        batch_size: Samples per batch. None: no batching, each sample is a block of its own.
        drop_last: Leave out the last batch if it is short. False as in torch: nobody loses samples
            without having asked for it.

    Raises:
        ValueError: As ``check_batch_size``.
    """

    def __init__(self, batch_size: int | None = 1, drop_last: bool = False) -> None:
        check_batch_size(batch_size, drop_last)
        self.batch_size = batch_size
        self.drop_last = drop_last
        self._held: list[Any] = []  # the open batch; our own list, never one of a block
        self._parts: list[tuple[Trail, range]] = []  # where its samples came from

    @property
    def lacking(self) -> int:
        """How many samples the open batch still lacks."""
        return (self.batch_size or 1) - len(self._held)

    def feed(self, block: Block) -> Iterator[Block]:
        """The batches that ``block`` completes.

        The block is taken in at once; batches are cut as the returned iterator is advanced. So whoever
        stops half-way through it has not upset the batcher.
        """
        samples, trail, size = block.samples, block.trail, self.batch_size
        if not samples:
            return iter(())
        if size is None:
            return _alone(samples, trail)
        head, parts = self._held, self._parts
        first_end = size - len(head)
        if len(samples) < first_end:
            head.extend(samples)
            parts.append((trail, range(len(samples))))
            return iter(())
        ends = range(first_end, len(samples) + 1, size)
        self._held = samples[ends[-1] :]
        self._parts = [(trail, range(ends[-1], len(samples)))]
        return _cut(head, parts, block, ends)

    def finish(self) -> Iterator[Block]:
        """The short last batch, if there is one and ``drop_last`` is off; leaves the batcher empty."""
        held, parts = self._held, self._parts
        self._held, self._parts = [], []
        if not held or self.drop_last:
            return iter(())
        return iter([Block(held, JoinedTrail(parts))])


def _alone(samples: list[Any], trail: Trail) -> Iterator[Block]:
    for index, sample in enumerate(samples):
        yield Block([sample], PickedTrail(trail, (index,)))


def _cut(head: list[Any], parts: list[tuple[Trail, range]], block: Block, ends: range) -> Iterator[Block]:
    """The batches of ``block`` that stop at ``ends``; the first one starts with ``head``."""
    start = 0
    for end in ends:
        yield Block(head + block.samples[start:end], JoinedTrail([*parts, (block.trail, range(start, end))]))
        head, parts, start = [], [], end
