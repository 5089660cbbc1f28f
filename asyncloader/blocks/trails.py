"""Where the samples of a block came from, and where to reopen their stream behind each of them.

A trail says nothing until somebody asks: nobody does for most samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..types import Position
from .provenance import Indices, Origin, Provenance

__all__ = [
    "NestedTrail",
    "OffsetTrail",
    "OuterTrail",
    "Place",
    "Referred",
    "SourceTrail",
    "Trail",
]


# More samples than a shard has: what a block's table holds, of which nobody knows the end.
_ENDLESS = 1 << 62

_NOWHERE = (Origin(),)
"""Of samples whose source has not named itself."""


Referred: TypeAlias = "tuple[Trail, int, int]"
"""A run of samples: their trail, and where on it they start and stop."""


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

    __slots__ = ()

    def after(self, index: int) -> Position:
        """The position at which the stream goes on after sample ``index`` of the block."""
        ...

    def place(self, index: int) -> Place:
        """Where sample ``index`` of the block came from."""
        ...

    def components(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Which component of the outermost mixture these samples came from; 0 outside of any."""
        ...

    def provenance(self, indices: Indices) -> Provenance:
        """Where these samples came from, one at least: what their places say, for an audit."""
        ...

    def bases(self, start: int, stop: int) -> list[Referred]:
        """Samples ``start`` up to ``stop`` as runs on trails that others share too, in any order.

        On this one, unless it only says something else of samples that are on another.
        """
        return [(self, start, stop)]

    def table(self) -> tuple[Provenance, tuple[int, ...]]:
        """The provenance of all samples of a base; numbers that draw their order, none where it is this."""
        ...


@dataclass(slots=True)
class OffsetTrail(Trail):
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

    def provenance(self, indices: Indices) -> Provenance:
        if isinstance(indices, range):
            samples: Indices = range(self.first + indices.start, self.first + indices.stop)
        else:
            samples = self.first + indices
        return Provenance(_NOWHERE, None, samples)

    def table(self) -> tuple[Provenance, tuple[int, ...]]:
        return self.provenance(range(_ENDLESS)), ()


@dataclass(slots=True)
class SourceTrail(Trail):
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

    def provenance(self, indices: Indices) -> Provenance:
        # The mixtures around name their components: here they are told apart only as far as they draw.
        origin = Origin((), self.number, self.repetition)
        return Provenance((origin,), None, self.trail.provenance(indices).samples)

    def table(self) -> tuple[Provenance, tuple[int, ...]]:
        found, order = self.trail.table()
        return Provenance((Origin((), self.number, self.repetition),), None, found.samples), order


@dataclass(slots=True)
class OuterTrail(Trail):
    """One that only has positions of its own: in all else it is as ``trail``.

    Args:
        trail: Of the same samples.
    """

    trail: Trail

    def place(self, index: int) -> Place:
        return self.trail.place(index)

    def components(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.trail.components(indices)

    def provenance(self, indices: Indices) -> Provenance:
        return self.trail.provenance(indices)

    def bases(self, start: int, stop: int) -> list[Referred]:
        return self.trail.bases(start, stop)

    def table(self) -> tuple[Provenance, tuple[int, ...]]:
        return self.trail.table()


@dataclass(slots=True)
class NestedTrail(OuterTrail):
    """Positions of an upstream block, with entries of the stage around it.

    Args:
        entries: Entries of this stage that are the same for the whole block.
        counter: Name of an entry that counts this stage's samples, and its value before the block.
    """

    entries: Mapping[str, Any]
    counter: tuple[str, int] | None = None

    def after(self, index: int) -> Position:
        position = {**self.entries, "from": self.trail.after(index)}
        if self.counter is not None:
            name, before = self.counter
            position[name] = before + index + 1
        return position
