"""Where the samples of a block came from, and where to reopen their stream behind each of them.

A trail says nothing until somebody asks: nobody does for most samples.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ..types import Position

__all__ = ["JoinedTrail", "NestedTrail", "OffsetTrail", "PickedTrail", "Place", "SourceTrail", "Trail"]


class Place(NamedTuple):
    """Where a sample came from: the same for any number of workers, however it was shuffled since.

    Attributes:
        shard: URL or path of its shard, without query and user info; None for a source without shards.
        sample: Its index in the shard; without shards, in its lane's iterable.
        number: Of the shard among the recipe's; without shards, of the lane.
        repetition: Of the data within the epoch.
        line: Its line in the shard, from 1; None where that is not known, or it is not a line.
        component: Of a mixture, behind those of the mixtures around it; empty outside of any.
    """

    shard: str | None
    sample: int
    number: int = 0
    repetition: int = 0
    line: int | None = None
    component: tuple[int, ...] = ()

    def __str__(self) -> str:
        shard = "" if self.shard is None else f" of {self.shard}"
        return f"sample {self.sample}{shard}" + ("" if self.line is None else f", line {self.line}")


class Trail(Protocol):
    """The positions and places of one block's samples, worked out only where somebody asks."""

    def after(self, index: int) -> Position:
        """The position at which the stream goes on after sample ``index`` of the block."""
        ...

    def place(self, index: int) -> Place:
        """Where sample ``index`` of the block came from."""
        ...

    def components(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Which component of the outermost mixture these samples came from; 0 outside of any."""
        ...


@dataclass(slots=True)
class OffsetTrail:
    """Positions within one shard: sample index, and the byte offset to reopen it at.

    Args:
        first: Index in the shard of the block's first sample.
        ends: For each sample the offset, in the decoder's input, of the first byte that is not
            needed any more once the sample was handed out; a decoder started there goes on with the
            next sample. None where the format cannot restart in its middle.
        line: Line of the shard, from 1, that comes after the block before; None where that says nothing.
        blanks: How many lines that are no sample come right before a sample, by its index in the block.
    """

    first: int
    ends: list[int] | None
    line: int | None = None
    blanks: Mapping[int, int] = field(default_factory=dict)

    def after(self, index: int) -> Position:
        position = {"sample": self.first + index + 1}
        if self.ends is not None:
            position["byte"] = self.ends[index]
        return position

    def place(self, index: int) -> Place:
        line = self.line
        if line is not None:
            line += index + sum(count for at, count in self.blanks.items() if at <= index)
        return Place(None, self.first + index, line=line)

    def components(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.zeros(len(indices), np.int64)


@dataclass(slots=True)
class SourceTrail:
    """A trail whose places name their source; its positions are those of ``trail``."""

    trail: Trail
    shard: str | None
    number: int
    repetition: int
    component: tuple[int, ...] = ()

    def after(self, index: int) -> Position:
        return self.trail.after(index)

    def place(self, index: int) -> Place:
        return self.trail.place(index)._replace(
            shard=self.shard, number=self.number, repetition=self.repetition, component=self.component
        )

    def components(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.trail.components(indices)


@dataclass(slots=True)
class PickedTrail:
    """The positions of some samples of another block, by their indices there."""

    trail: Trail
    indices: Sequence[int]

    def after(self, index: int) -> Position:
        return self.trail.after(int(self.indices[index]))  # of an array too, since positions are JSON

    def place(self, index: int) -> Place:
        return self.trail.place(int(self.indices[index]))

    def components(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.trail.components(_array_of(self.indices)[indices])


class JoinedTrail:
    """The positions of samples of several blocks, one after another.

    Args:
        parts: For each block its trail, and which of its samples they are.
    """

    __slots__ = ("_ends", "_parts")

    def __init__(self, parts: Sequence[tuple[Trail, range]]) -> None:
        self._parts = parts
        #: For each part how many samples there are up to its end; made for the first who asks.
        self._ends: list[int] | None = None

    def after(self, index: int) -> Position:
        trail, inside = self._find(index)
        return trail.after(inside)

    def place(self, index: int) -> Place:
        trail, inside = self._find(index)
        return trail.place(inside)

    def components(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        of_parts = [trail.components(_array_of(inside)) for trail, inside in self._parts]
        return np.concatenate(of_parts)[indices]

    def _find(self, index: int) -> tuple[Trail, int]:
        if self._ends is None:
            self._ends = list(accumulate(len(indices) for _, indices in self._parts))
        nth = bisect_right(self._ends, index)
        if nth == len(self._parts):
            raise IndexError("behind the last sample of the last block")
        trail, indices = self._parts[nth]
        return trail, indices[index - self._ends[nth] + len(indices)]


@dataclass(slots=True)
class NestedTrail:
    """Positions of an upstream block, with entries of the stage around it.

    Args:
        trail: The upstream block's.
        entries: Entries of this stage that are the same for the whole block.
        counter: Name of an entry that counts this stage's samples, and its value before the block.
    """

    trail: Trail
    entries: Mapping[str, Any]
    counter: tuple[str, int] | None = None

    def after(self, index: int) -> Position:
        position = {**self.entries, "from": self.trail.after(index)}
        if self.counter is not None:
            name, before = self.counter
            position[name] = before + index + 1
        return position

    def place(self, index: int) -> Place:
        return self.trail.place(index)

    def components(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.trail.components(indices)


def _array_of(indices: Sequence[int]) -> NDArray[np.int64]:
    if isinstance(indices, range):
        return np.arange(indices.start, indices.stop, indices.step)
    return np.asarray(indices, np.int64)
