"""Trails: where the samples of a block came from, and where their stream continues after each of them.

Positions are computed on request, since a batch needs only the one after its last sample. Where samples came
from is kept in integer columns, 12 bytes a sample at most, which are cut, picked and joined as the samples
are.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, groupby, pairwise
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..types import Position, with_entry

Indices: TypeAlias = range | NDArray[np.int64]
"""Some samples of a block, or of a shard: neighbours as a range with a step of 1, others as ``(n,)``."""

# More samples than any shard has, for a trail that does not know how many its block has.
_ENDLESS = 1 << 62

# Shifts the number of a shard to the left of a sample's index, to sort by both at once.
_SAMPLE_BITS = 40


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


class Origins(NamedTuple):
    """Where samples came from, in their order, as columns.

    Attributes:
        shards: Of each shard the place that its sample 0 has, or would have if no line was blank.
        which: The index in ``shards`` for each sample, ``(n,) int32``; None if all have the only one.
        samples: The index of each sample in its shard.
    """

    shards: Sequence[Place]
    which: NDArray[np.int32] | None
    samples: Indices

    def place(self, index: int) -> Place:
        """The place of one sample."""
        shard = self.shards[0 if self.which is None else self.which[index]]
        sample = int(self.samples[index])
        return shard._replace(sample=sample, line=None if shard.line is None else shard.line + sample)

    def of(self, indices: Indices) -> Origins:
        """Those of some of the samples."""
        shards, which, samples = self
        if isinstance(indices, range):
            cut = slice(indices.start, indices.stop)
            return Origins(shards, None if which is None else which[cut], samples[cut])
        picked = indices + samples.start if isinstance(samples, range) else samples[indices]
        if which is None:
            return Origins(shards, None, picked)
        which = which[indices]
        if len(shards) > len(which):  # only the shards that are left, or each join would go through all
            left, inverse = np.unique(which, return_inverse=True)
            return Origins([shards[number] for number in left.tolist()], inverse.astype(np.int32), picked)
        return Origins(shards, which, picked)

    def count_components(self, count: int) -> list[int]:
        """How many of the samples are of each of the ``count`` components of the outermost mixture."""
        samples = [len(self.samples)] if self.which is None else np.bincount(self.which).tolist()
        counts = [0] * count
        for shard, of_shard in zip(self.shards, samples, strict=False):
            counts[shard.component[0]] += of_shard
        return counts

    def by_shard(self) -> Iterator[tuple[Origin, Indices]]:
        """The samples of each shard, in any order and with repetitions; a shard may come more than once."""
        origins = [Origin(shard.component, shard.number, shard.repetition) for shard in self.shards]
        if self.which is None:
            yield from zip(origins, [self.samples], strict=False)  # there is no shard if there is no sample
            return
        keys = (self.which.astype(np.int64) << _SAMPLE_BITS) + _index_array(self.samples)
        keys.sort()
        labels = keys >> _SAMPLE_BITS
        keys -= labels << _SAMPLE_BITS
        starts = np.flatnonzero(np.diff(labels, prepend=-1))
        for start, stop in pairwise([*starts.tolist(), len(keys)]):
            yield origins[labels[start]], keys[start:stop]

    @property
    def is_run(self) -> bool:
        """Whether they are neighbours in one shard."""
        return self.which is None and isinstance(self.samples, range)

    @property
    def size_bytes(self) -> int:
        """How many bytes the columns hold."""
        samples = 0 if isinstance(self.samples, range) else self.samples.nbytes
        return samples if self.which is None else samples + self.which.nbytes

    def __reduce__(self) -> Any:
        # What receives them knows the shards by their numbers. Bytes, since an array may be sent as memory
        # that has to be given back.
        shards = [shard._replace(shard=None, line=None) for shard in self.shards]
        which = None if self.which is None else self.which.tobytes()
        samples = self.samples if isinstance(self.samples, range) else self.samples.tobytes()
        return _received, (shards, which, samples)


def _received(shards: Sequence[Place], which: bytes | None, samples: range | bytes) -> Origins:
    return Origins(
        shards,
        None if which is None else np.frombuffer(which, np.int32),
        samples if isinstance(samples, range) else np.frombuffer(samples, np.int64),
    )


def join_origins(parts: Sequence[Origins]) -> Origins:
    """Those of all parts, one after another."""
    first = parts[0].shards if parts else ()
    if all(part.which is None and part.shards == first for part in parts):
        return Origins(first, None, _joined([part.samples for part in parts]))
    samples = np.concatenate([_index_array(part.samples) for part in parts])
    if all(part.shards is first for part in parts):
        return Origins(first, np.concatenate([_which_of(part) for part in parts]), samples)
    numbers: dict[Place, int] = {}
    which = []
    for part in parts:
        mine = np.array([numbers.setdefault(shard, len(numbers)) for shard in part.shards], np.int32)
        which.append(mine[_which_of(part)])
    return Origins([*numbers], np.concatenate(which), samples)


def _which_of(origins: Origins) -> NDArray[np.int32]:
    return np.zeros(len(origins.samples), np.int32) if origins.which is None else origins.which


def _joined(parts: Sequence[Indices]) -> Indices:
    """The indices of all parts; neighbours stay a range."""
    if not parts:
        return range(0)
    start = stop = parts[0].start if isinstance(parts[0], range) else 0
    for part in parts:
        if not isinstance(part, range) or part.start != stop:
            return np.concatenate([_index_array(part) for part in parts])
        stop = part.stop
    return range(start, stop)


def _index_array(indices: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    """Indices as ``(n,) int64``."""
    if isinstance(indices, range):
        return np.arange(indices.start, indices.stop)
    return np.asarray(indices, np.int64)


class Trail:
    """The positions of one block's samples, and where they came from; both are computed on request.

    Args:
        after: Gives the position at which the stream continues after a sample of the block, by its index.
        origins: Gives those of the samples, and perhaps of more than the block has; called once.
    """

    __slots__ = ("_origins", "after")

    def __init__(self, after: Callable[[int], Position], origins: Callable[[], Origins]) -> None:
        self.after = after
        self._origins: Callable[[], Origins] | Origins = origins

    @property
    def origins(self) -> Origins:
        """Where the samples came from."""
        if not isinstance(self._origins, Origins):
            self._origins = self._origins()
        return self._origins

    def place(self, index: int) -> Place:
        """Where sample ``index`` of the block came from."""
        return self.origins.place(index)

    def part(self, start: int, stop: int) -> Trail:
        """That of the samples from ``start`` up to ``stop``."""
        return Trail(lambda index: self.after(start + index), lambda: self.origins.of(range(start, stop)))

    def take(self, indices: Sequence[int] | NDArray[np.int64]) -> Trail:
        """That of the samples of these indices, in this order."""
        # An int also of an array, since positions are JSON.
        return Trail(
            lambda index: self.after(int(indices[index])),
            lambda: self.origins.of(_index_array(indices)),
        )

    def follow(self, after: Callable[[int], Position]) -> Trail:
        """That of the same samples with other positions."""
        return Trail(after, lambda: self.origins)

    def with_entry(self, stage: int, entry: Mapping[str, Any]) -> Trail:
        """The same, with an entry of this stage in all positions."""
        return self.follow(lambda index: with_entry(self.after(index), stage, entry))

    def within(
        self, shard: str | None, number: int, repetition: int, component: tuple[int, ...] = ()
    ) -> Trail:
        """The same for samples that are known to be of this shard; see ``Place``."""

        def origins() -> Origins:
            shards, which, samples = self.origins
            places = [Place(shard, 0, number, repetition, place.line, component) for place in shards]
            return Origins(places, which, samples)

        return Trail(self.after, origins)


class OffsetTrail(Trail):
    """Positions within one shard: sample index, and the byte offset to reopen it at.

    Args:
        first: Index in the shard of the block's first sample.
        ends: For each sample the offset, in the decoder's input, of the first byte that is not
            needed any more once the sample was returned; a decoder started there continues with the
            next sample. None if the format cannot restart in its middle.
        line: Line of the shard, from 1, after the block before; None if samples are no lines.
        blanks: How many lines without a sample come right before a sample, by its index in the block; only
            with ``ends``.
    """

    __slots__ = ("ends", "first")

    def __init__(
        self,
        first: int,
        ends: list[int] | None,
        line: int | None = None,
        blanks: Mapping[int, int] | None = None,
    ) -> None:
        self.first, self.ends = first, ends
        self._origins = partial(_origins_in_shard, first, ends, line, blanks)

    def after(self, index: int) -> Position:
        position = {"sample": self.first + index + 1}
        if self.ends is not None:
            position["byte"] = self.ends[index]
        return [position]


def _origins_in_shard(
    first: int, ends: list[int] | None, line: int | None, blanks: Mapping[int, int] | None
) -> Origins:
    """Those of the samples of an ``OffsetTrail``, made of the same values."""
    lines: list[int] | list[None] = [None] if line is None else [line - first]
    which = None
    if line is not None and blanks and ends:
        at = sorted(blanks)
        lines = [*accumulate((blanks[index] for index in at), initial=line - first)]
        which = np.searchsorted(at, np.arange(len(ends)), side="right").astype(np.int32)
    shards = [Place(None, 0, line=before) for before in lines]
    return Origins(shards, which, range(first, _ENDLESS))


def join_trails(parts: Sequence[tuple[Trail, int]]) -> Trail:
    """That of the samples of several blocks, one after another.

    Args:
        parts: The trail of each, and how many samples it has.
    """
    trails = [trail for trail, _ in parts]
    ends = [*accumulate(count for _, count in parts)]

    def after(index: int) -> Position:
        nth = bisect_right(ends, index)
        return trails[nth].after(index - ends[nth] + parts[nth][1])

    return Trail(after, lambda: join_origins([trail.origins.of(range(count)) for trail, count in parts]))


def origins_of(samples: Iterable[tuple[Trail, int]]) -> Origins:
    """Those of single samples, each given as its trail and its index there."""
    runs = ([*run] for _, run in groupby(samples, key=lambda sample: id(sample[0])))
    return join_origins([run[0][0].origins.of(_index_array([*map(itemgetter(1), run)])) for run in runs])
