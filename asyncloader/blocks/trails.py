"""Trails: where the samples of a block came from, and where to reopen their stream behind each of them.

A trail is evaluated lazily, since most samples are never looked up. An audit needs the provenance of whole
batches. Naming each sample would cost more than some batches take to make. So what many batches share, a
decoded block or a shuffled window, is sent once, as a table of its samples; a batch then refers to runs of
it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..types import Position

# --- provenance of many samples ---


Indices: TypeAlias = range | NDArray[np.int64]
"""Some samples of a block, or of a shard: neighbours as a range with a step of 1, others as ``(n,)``."""


class Origin(NamedTuple):
    """A shard, in one repetition of the data.

    Attributes:
        component: Which component of which mixture, the outermost first; empty outside of any.
        number: Number of the shard in the dataset; without shards, of the lane.
        repetition: Repetition of the data within the epoch.
    """

    component: tuple[int, ...] = ()
    number: int = 0
    repetition: int = 0


class Provenance(NamedTuple):
    """Where samples came from, in their order.

    Attributes:
        origins: Their shards.
        which: The index in ``origins`` for each sample; None if all have the only one.
        samples: The index of each sample in the shard; without shards, in the lane's iterable.
    """

    origins: Sequence[Origin]
    which: NDArray[np.int64] | None
    samples: Indices

    def of(self, indices: Indices) -> Provenance:
        """The provenance of some of the samples."""
        which = None if self.which is None else _index_array(_picked(self.which, indices))
        return Provenance(self.origins, which, _picked(self.samples, indices))

    def by_origin(self) -> Iterator[tuple[Origin, Indices]]:
        """The samples of each shard, with repetitions."""
        if self.which is None:
            yield self.origins[0], self.samples
            return
        order = self.which.argsort(kind="stable")
        labels, samples = self.which[order], _index_array(self.samples)[order]
        starts = np.flatnonzero(np.diff(labels)) + 1
        for part, label in zip(np.split(samples, starts), labels[[0, *starts]].tolist(), strict=True):
            yield self.origins[label], part


def joined(parts: Sequence[Provenance]) -> Provenance:
    """The provenance of all parts, one after another; there is at least one."""
    if len(parts) == 1:
        return parts[0]
    numbers: dict[Origin, int] = {}
    of_parts = [[numbers.setdefault(origin, len(numbers)) for origin in part.origins] for part in parts]
    samples = np.concatenate([_index_array(part.samples) for part in parts])
    if len(numbers) == 1:
        return Provenance([*numbers], None, samples)
    which = [
        np.full(len(part.samples), mine[0]) if part.which is None else np.array(mine)[part.which]
        for part, mine in zip(parts, of_parts, strict=True)
    ]
    return Provenance([*numbers], np.concatenate(which), samples)


def _picked(of: Sequence[int] | NDArray[np.int64], indices: Indices) -> Indices:
    """``of[index]`` for each of the indices."""
    if isinstance(indices, range):
        cut = of[indices.start : indices.stop]
        return cut if isinstance(cut, range) else np.asarray(cut, np.int64)
    if isinstance(of, range):
        return indices + of.start
    return np.asarray(of, np.int64)[indices]


def _index_array(indices: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    """Indices as ``(n,) int64``."""
    if isinstance(indices, range):
        return np.arange(indices.start, indices.stop, indices.step)
    return np.asarray(indices, np.int64)


# --- trails ---

# More samples than any shard has, for the table of a block whose end is unknown.
_ENDLESS = 1 << 62

_NOWHERE = (Origin(),)
"""The origins of samples whose source is unknown."""


Referred: TypeAlias = "tuple[Trail, int, int]"
"""A run of samples: their trail, and the start and stop on it."""


class Place(NamedTuple):
    """Where a sample came from. It does not depend on the number of workers, nor on shuffling.

    Attributes:
        shard: URL or path of its shard, without query and user info; None for a source without shards.
        sample: Its index in the shard; without shards, in its lane's iterable.
        number: Number of the shard in the dataset; without shards, of the lane.
        repetition: Repetition of the data within the epoch.
        line: Its line in the shard, from 1; None if that is unknown, or it is not a line.
        component: The component of each mixture, the outermost first; empty outside of any.
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
    """The positions and places of one block's samples, computed only on request."""

    __slots__ = ()

    def after(self, index: int) -> Position:
        """The position at which the stream continues after sample ``index`` of the block."""
        ...

    def place(self, index: int) -> Place:
        """Where sample ``index`` of the block came from."""
        ...

    def components(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """The component of the outermost mixture for each of these samples; 0 outside of any."""
        ...

    def provenance(self, indices: Indices) -> Provenance:
        """Where these samples came from, at least one of them: their places, for an audit."""
        ...

    def bases(self, start: int, stop: int) -> list[Referred]:
        """Samples ``start`` up to ``stop`` as runs on trails that are shared, in any order.

        By default on this trail; a trail that only adds to another one uses that.
        """
        return [(self, start, stop)]

    def table(self) -> tuple[Provenance, tuple[int, ...]]:
        """The provenance of all samples of a base, and the numbers that draw their order if it is another."""
        ...


@dataclass(slots=True)
class OffsetTrail(Trail):
    """Positions within one shard: sample index, and the byte offset to reopen it at.

    Args:
        first: Index in the shard of the block's first sample.
        ends: For each sample the offset, in the decoder's input, of the first byte that is not
            needed any more once the sample was returned; a decoder started there continues with the
            next sample. None if the format cannot restart in its middle.
        line: Line of the shard, from 1, after the block before; None if samples are no lines.
        blanks: How many lines without a sample come right before a sample, by its index in the block.
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
        # Mixtures add the component later, as far as they draw from several.
        origin = Origin((), self.number, self.repetition)
        return Provenance((origin,), None, self.trail.provenance(indices).samples)

    def table(self) -> tuple[Provenance, tuple[int, ...]]:
        found, order = self.trail.table()
        return Provenance((Origin((), self.number, self.repetition),), None, found.samples), order


@dataclass(slots=True)
class OuterTrail(Trail):
    """A trail with other positions, and everything else of another trail.

    Args:
        trail: The trail of the same samples.
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


# --- samples that were picked out of other blocks, or joined from several ---


@dataclass(slots=True)
class PickedTrail:
    """The positions of some samples of another block, by their indices there.

    Attributes:
        known: The provenance of all samples, after the first request.
    """

    trail: Trail
    indices: Sequence[int]
    known: Provenance | None = field(default=None, init=False, compare=False)

    def after(self, index: int) -> Position:
        return self.trail.after(int(self.indices[index]))  # an int also of an array, since positions are JSON

    def place(self, index: int) -> Place:
        return self.trail.place(int(self.indices[index]))

    def components(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.trail.components(_index_array(self.indices)[indices])

    def provenance(self, indices: Indices) -> Provenance:
        if isinstance(self.indices, range):
            return self.trail.provenance(_picked(self.indices, indices))
        if self.known is None:  # the samples of a window are requested in pieces
            self.known = self.trail.provenance(_index_array(self.indices))
        return self.known.of(indices)

    def bases(self, start: int, stop: int) -> list[Referred]:
        if isinstance(self.indices, range):
            return self.trail.bases(start + self.indices.start, stop + self.indices.start)
        return runs_on(self.trail, self.indices[start:stop])

    def table(self) -> tuple[Provenance, tuple[int, ...]]:
        return self.provenance(range(len(self.indices))), ()


class JoinedTrail:
    """The positions of samples of several blocks, one after another.

    Args:
        parts: For each block its trail, and which of its samples they are.
    """

    __slots__ = ("_ends", "_parts", "_provenance")

    def __init__(self, parts: Sequence[tuple[Trail, range]]) -> None:
        self._parts = parts
        # The number of samples up to the end of each part; computed on the first request.
        self._ends: list[int] | None = None
        # The provenance of all samples; likewise.
        self._provenance: Provenance | None = None

    def after(self, index: int) -> Position:
        trail, inside = self._find(index)
        return trail.after(inside)

    def place(self, index: int) -> Place:
        trail, inside = self._find(index)
        return trail.place(inside)

    def components(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        of_parts = [trail.components(_index_array(inside)) for trail, inside in self._parts]
        return np.concatenate(of_parts)[indices]

    def provenance(self, indices: Indices) -> Provenance:
        if self._provenance is None:
            self._provenance = joined([trail.provenance(inside) for trail, inside in self._parts])
        return self._provenance.of(indices)

    def bases(self, start: int, stop: int) -> list[Referred]:
        found: list[Referred] = []
        for trail, inside in self._parts:
            low, high = max(start, 0), min(stop, len(inside))
            if low < high:
                found += trail.bases(inside.start + low, inside.start + high)
            start, stop = start - len(inside), stop - len(inside)
        return found

    def table(self) -> tuple[Provenance, tuple[int, ...]]:
        return joined([trail.provenance(inside) for trail, inside in self._parts]), ()

    def _find(self, index: int) -> tuple[Trail, int]:
        if self._ends is None:
            self._ends = list(accumulate(len(indices) for _, indices in self._parts))
        nth = bisect_right(self._ends, index)
        if nth == len(self._parts):
            raise IndexError("behind the last sample of the last block")
        trail, indices = self._parts[nth]
        return trail, indices[index - self._ends[nth] + len(indices)]


def runs_on(trail: Trail, indices: Sequence[int]) -> list[Referred]:
    """The ``bases`` of these samples, with neighbours in one run."""
    found: list[Referred] = []
    first = 0
    for at in range(1, len(indices) + 1):
        if at == len(indices) or indices[at] != indices[at - 1] + 1:
            found += trail.bases(indices[first], indices[at - 1] + 1)
            first = at
    return found


# --- the form that is sent ---

# Blocks and windows that batches are made of at the same time: some for each component of a mixture.
MOST_TABLES = 64


class OriginTable(NamedTuple):
    """The provenance of all samples of a trail, as it is sent: arrays as the bytes of ``int64``.

    Attributes:
        origins: See ``Provenance``, as plain tuples.
        which: Likewise.
        samples: Likewise.
        order: The numbers that draw the order of delivery; empty for this order.
    """

    origins: Sequence[tuple[Any, ...]]
    which: bytes | None
    samples: range | bytes
    order: tuple[int, ...]


class References(NamedTuple):
    """Where the samples of a batch came from.

    Attributes:
        tables: The tables that are sent with this batch, by number.
        runs: The runs of its samples, in any order: a table, and a start and a stop in it.
    """

    tables: Sequence[tuple[int, OriginTable]]
    runs: Sequence[tuple[int, int, int]]


class Tables:
    """Numbers the tables of a lane, and sends each with the first batch that refers to it.

    Args:
        first: The number of the first table. A worker that replaces another one must not use its numbers
            again; the time works.
    """

    def __init__(self, first: int) -> None:
        # Keeps the trails, so that no other one gets the same identity.
        self._known: dict[int, tuple[Trail, int]] = {}
        self._next = first

    def refer(self, referred: Iterable[Referred]) -> References:
        """What to send beside a batch of these samples."""
        tables: list[tuple[int, OriginTable]] = []
        runs: list[tuple[int, int, int]] = []
        for trail, start, stop in referred:
            known = self._known.get(id(trail))
            if known is None:
                known = self._number(trail)
                tables.append((known[1], _table_of(trail)))
            runs.append((known[1], start, stop))
        return References(tables, runs)

    def _number(self, trail: Trail) -> tuple[Trail, int]:
        while len(self._known) >= MOST_TABLES:
            del self._known[next(iter(self._known))]
        self._next += 1
        known = self._known[id(trail)] = (trail, self._next)
        return known


def _table_of(trail: Trail) -> OriginTable:
    (origins, which, samples), order = trail.table()
    return OriginTable(
        [tuple(origin) for origin in origins],
        None if which is None else which.tobytes(),
        samples if isinstance(samples, range) else samples.tobytes(),
        order,
    )


def resolve(
    table: OriginTable, runs: Sequence[tuple[int, int]], draw: Callable[..., NDArray[np.int64]]
) -> Iterator[tuple[Origin, Indices]]:
    """The samples of runs of a table, by their shards.

    Args:
        table: The table that they refer to.
        runs: A start and a stop each, in order.
        draw: Draws an order, from a count and the numbers of ``OriginTable.order``.
    """
    samples = table.samples if isinstance(table.samples, range) else np.frombuffer(table.samples, np.int64)
    which = None if table.which is None else np.frombuffer(table.which, np.int64)
    whole = Provenance([Origin(*origin) for origin in table.origins], which, samples)
    if table.order and list(runs) != [(0, len(samples))]:
        # If all of a window was delivered, the order does not matter.
        order = draw(len(samples), *table.order)
        yield from whole.of(np.concatenate([order[start:stop] for start, stop in runs])).by_origin()
        return
    for start, stop in runs:
        yield from whole.of(range(start, stop)).by_origin()
