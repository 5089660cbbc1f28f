"""Batchings by length: ``Buckets`` and ``TokenBatches``, and how long a sample is.

Of columns lengths are taken without making a row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from numbers import Real
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..blocks import Block, Ragged, join
from ..collate.pad import PadLongest
from ..plan.lanes import UnknownCount
from ..quantity import as_count, as_counts
from ..types import Position
from .batching import Batch, Batches
from .calls import UserCodeErrors
from .lane import Lane, Opener
from .op import name_of, note_sample
from .shuffle import cut_pools, draw_pool

Length: TypeAlias = str | Callable[[Any], float]
"""A field, whose own length counts if it is a sequence, and its value if it is a number; or a function."""


class ByLength:
    """A batching for which samples have a length."""

    length: Length
    multiple_of: int

    samples_per_batch = None

    @property
    def collate_fn(self) -> Callable[[Any], Any] | None:
        """Pads ``length``, if that is a field of sequences, and stacks the others."""
        return PadLongest(self.length, self.multiple_of) if isinstance(self.length, str) else None

    def count_batches(self, count_samples: object) -> int:
        raise UnknownCount(
            f"how many batches {type(self).__name__} makes depends on how long the samples are"
        )


# Whose length needs no second look.
_SEQUENCES = frozenset({list, tuple, bytes, str})


@dataclass(frozen=True, slots=True)
class SampleLengths:
    """The lengths of a block's samples.

    Attributes:
        values: ``(n,)``, int64, or float64 where some are not whole numbers.
        failure: Why there are fewer than the block has samples, None if there are not. What comes before a
            bad sample is good, and may complete a batch.
    """

    values: NDArray[Any]
    failure: Exception | None = None

    @classmethod
    def of(cls, block: Block, length: Length, what: str) -> SampleLengths:
        """Measure a block.

        Args:
            block: Of rows or columns.
            length: What counts.
            what: Who asks, for messages.
        """
        if not isinstance(length, str):
            return _each(block, block.rows(), length, what)
        try:
            column = block.column(length)
        except (KeyError, TypeError, IndexError):
            return _each(block, block.rows(), lambda sample: _field_of(sample, length), what)
        if isinstance(column, Ragged):
            return cls(column.lengths)
        if isinstance(column, np.ndarray) and column.ndim > 1:
            return cls(np.full(len(column), column.shape[1], np.int64))
        if isinstance(column, np.ndarray) and column.dtype.kind in "iu":
            values = column.astype(np.int64)
            if len(values) == 0 or values.min() >= 0:
                return cls(values)
        if isinstance(column, list) and {type(value) for value in column} <= _SEQUENCES:
            return cls(np.fromiter(map(len, column), np.int64, len(column)))
        return _each(block, column, _length_of, what)

    def refuse_above(self, most: int, of: Callable[[NDArray[Any]], NDArray[Any]]) -> int | None:
        """The index of the first sample of which ``of(values)`` is above ``most``."""
        above = np.flatnonzero(of(self.values) > most)
        return int(above[0]) if len(above) else None


def _each(block: Block, values: Iterable[Any], length: Callable[[Any], Any], what: str) -> SampleLengths:
    """One by one, up to the first that fails."""
    measured: list[float] = []
    failure: Exception | None = None
    try:
        with UserCodeErrors():
            for value in values:
                measured.append(_checked(length(value)))
    except Exception as error:
        note_sample(error, what, block, len(measured))
        failure = error
    whole = all(isinstance(number, int) for number in measured)
    return SampleLengths(np.array(measured, np.int64 if whole else np.float64), failure)


def _field_of(sample: Any, name: str) -> Any:
    try:
        return _length_of(sample[name])
    except (KeyError, TypeError, IndexError):
        raise ValueError(
            f"expected samples that are mappings with a field {name!r}, whose length counts; give another "
            "name as length=, or a function of a sample"
        ) from None


def _length_of(value: Any) -> Any:
    if isinstance(value, Real | np.number):
        return value
    if getattr(value, "ndim", None) == 0:  # an array or a tensor of one number
        return value.item()
    try:
        return len(value)
    except TypeError:
        raise ValueError(
            f"expected a sequence, whose length counts, or a number, but found {type(value).__name__}"
        ) from None


def _checked(value: Any) -> float:
    """A length as an int, or as a float if it is no whole number."""
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ValueError(f"expected a number as length, but found {type(value).__name__}")
    number = float(value)
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"expected a length of 0 or more, but found {value}")
    return value if isinstance(value, int) else int(number) if number.is_integer() else number


def describe_length(length: Length) -> str:
    """As it stands in a saved state: a function by its name."""
    return length if isinstance(length, str) else f"{name_of(length)}()"


def check_length(length: object) -> None:
    """Refuse what tells no length.

    Raises:
        TypeError: Neither a field's name nor a function.
    """
    if not isinstance(length, str) and not callable(length):
        raise TypeError(
            "length should be the name of a field or a function of one sample, but got "
            f"{type(length).__name__}: {length!r}"
        )


Group: TypeAlias = NDArray[np.int64]
"""Which samples of a pool make a batch, by their indices: ``(n,) int64``."""


def batches_of_pools(
    upstream: Opener,
    start: Position,
    lane: Lane,
    size: int,
    plan: Callable[[Block], tuple[SampleLengths, Sequence[Group]]],
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


# Buckets: batches of samples of like length, of another size for each range of lengths.

# A bucket leaves half a batch over at a pool's end on average. With sixteen batches of each bucket in a pool
# every sixteenth is short, which costs a few per cent of the steps; twice the memory would halve that.
_POOL_BATCHES = 16


@dataclass(frozen=True, kw_only=True)
class Buckets(ByLength):
    """Batches of samples out of one range of lengths each; a number of samples for each range.

    Lengths may be of any unit, seconds too. Give it to ``DataLoader(batching=...)``.

    Args:
        length: What is long: the name of a field, whose length counts if it is a sequence and its value if
            it is a number, or a function of a sample that gives the length.
            A function does not say which field to pad: give ``collate_fn=al.Pad({field: 0})`` too.
        bounds: Rising: bucket ``i`` has the lengths below ``bounds[i]`` that the one before has not; one
            more bucket has those from the last bound on.
        batch_sizes: Samples of a batch, for each bucket; so one more than ``bounds``.
        pool: Batches are made of so many consecutive samples of a lane, which it holds in memory; what a
            bucket has left at a pool's end makes a short batch, so that a position is a place in one pool.
            None: sixteen times the sum of ``batch_sizes``, of which about every sixteenth batch is short.
            Less, if so many samples do not fit the memory.
        multiple_of: What the default ``collate_fn`` rounds widths up to. 1: no rounding.

    Raises:
        TypeError: ``length`` is neither a name nor a function.
        ValueError: Bounds that do not rise, another number of batch sizes, or an option out of range. While
            it runs: a sample without the field or of a length that is no number of 0 or more; a note says
            which.
    """

    length: Length = "tokens"
    bounds: Sequence[float]
    batch_sizes: Sequence[int]
    pool: int | None = None
    multiple_of: int = 1

    def __post_init__(self) -> None:
        check_length(self.length)
        as_counts(self, "multiple_of", "pool")
        # Tuples, so that equal ones are equal and nobody changes them.
        for name in ("bounds", "batch_sizes"):
            try:
                object.__setattr__(self, name, tuple(getattr(self, name)))
            except TypeError:
                raise ValueError(
                    f"{name} should be a list of numbers, but got {getattr(self, name)!r}"
                ) from None
        # Numbers of NumPy as Python's, which a saved state can hold.
        bounds = [bound.item() if isinstance(bound, np.number) else bound for bound in self.bounds]
        object.__setattr__(self, "bounds", tuple(bounds))
        if (
            not self.bounds
            or not all(isinstance(bound, Real) and math.isfinite(bound) for bound in self.bounds)
            or any(low >= high for low, high in pairwise((0, *self.bounds)))
        ):
            raise ValueError(
                f"bounds should be numbers that rise from above 0, but got bounds={self.bounds!r}"
            )
        if len(self.batch_sizes) != len(self.bounds) + 1:
            raise ValueError(
                f"batch_sizes should be one more than bounds, for the lengths from {self.bounds[-1]} on, so "
                f"{len(self.bounds) + 1}, but got {len(self.batch_sizes)}: {self.batch_sizes!r}"
            )
        sizes = tuple(as_count("batch_sizes", size) for size in self.batch_sizes)
        object.__setattr__(self, "batch_sizes", sizes)

    def open(self, upstream: Opener, start: Position, lane: Lane) -> Batches:
        return batches_of_pools(upstream, start, lane, self._pool_samples, self._plan)

    def describe(self) -> Mapping[str, Any]:
        return {
            "batching": {
                "kind": "buckets",
                "length": describe_length(self.length),
                "bounds": list(self.bounds),
                "batch_sizes": list(self.batch_sizes),
                "pool": self._pool_samples,
                "multiple_of": self.multiple_of,
            }
        }

    @property
    def _pool_samples(self) -> int:
        return self.pool or _POOL_BATCHES * sum(self.batch_sizes)

    def _plan(self, samples: Block) -> tuple[SampleLengths, Sequence[Group]]:
        lengths = SampleLengths.of(samples, self.length, "Buckets")
        if lengths.failure is not None:
            raise lengths.failure
        bucket_of = np.searchsorted(np.asarray(self.bounds), lengths.values, side="right")
        groups: list[Group] = []
        for bucket, size in enumerate(self.batch_sizes):
            inside = np.flatnonzero(bucket_of == bucket)
            groups += [inside[first : first + size] for first in range(0, len(inside), size)]
        return lengths, groups


# Batches by tokens: as many samples as fit when all are padded to the longest of them.

_WHAT = "TokenBatches"


@dataclass(frozen=True, kw_only=True)
class TokenBatches(ByLength):
    """Batches of as many samples as fit ``max_tokens`` once they are padded to one length.

    The size of a batch is its number of samples times its longest length, rounded up to ``multiple_of``: what
    a model computes and stores for it, which so is nearly the same for every batch. Give it to
    ``DataLoader(batching=...)``.

    Args:
        length: What is long: the name of a field, whose length counts if it is a sequence and its value if
            it is a whole number, or a function of a sample that gives the length.
            A function does not say which field to pad: give ``collate_fn=al.Pad({field: 0})`` too.
        max_tokens: The most that a batch may have, padding included. Required: it is what the memory of the
            device decides.
        max_samples: The most samples of a batch. None: any number; then a batch of very short samples has
            many. A sample of length 0 takes as much room as one of 1.
        multiple_of: Widths are rounded up to a multiple of this; 8 to 64 fills the tiles of tensor cores.
            1: no rounding.
        pool: Put samples of like length together: so many consecutive samples of a lane are sorted by length
            and cut into batches, which come in an order drawn by (seed, epoch, lane, pool). A lane holds
            one pool in memory. A hundred batches' worth pads some per cent; that is the reason to take
            one. None: the samples stay in the order in which they come.
        overlong: What to do with a sample that is longer than ``max_tokens`` by itself. ``"raise"``, since it
            may well not fit the device; ``"alone"`` makes a batch of it.

    Raises:
        TypeError: ``length`` is neither a name nor a function.
        ValueError: An option out of range. While it runs: a sample that is too long, without the field, or of
            a length that is no whole number of 0 or more; a note says which.
    """

    length: Length = "tokens"
    max_tokens: int
    max_samples: int | None = None
    multiple_of: int = 1
    pool: int | None = None
    overlong: Literal["raise", "alone"] = "raise"

    def __post_init__(self) -> None:
        check_length(self.length)
        as_counts(self, "max_tokens", "multiple_of", "max_samples", "pool")
        if self.multiple_of > self.max_tokens:
            raise ValueError(
                f"multiple_of should be at most max_tokens={self.max_tokens}, or no sample fits, but got "
                f"multiple_of={self.multiple_of}"
            )
        if self.overlong not in ("raise", "alone"):
            raise ValueError(f"overlong should be 'raise' or 'alone', but got overlong={self.overlong!r}")

    def open(self, upstream: Opener, start: Position, lane: Lane) -> Batches:
        if self.pool is None:
            return self._in_order(upstream, start, lane)
        return batches_of_pools(upstream, start, lane, self.pool, self._plan)

    def describe(self) -> Mapping[str, Any]:
        return {
            "batching": {
                "kind": "tokens",
                "length": describe_length(self.length),
                "max_tokens": self.max_tokens,
                "max_samples": self.max_samples,
                "multiple_of": self.multiple_of,
                "pool": self.pool,
                "overlong": self.overlong,
            }
        }

    def _in_order(self, upstream: Opener, start: Position, lane: Lane) -> Batches:
        """Batches whose positions are those of their samples: each begins with nothing to remember."""
        batch = _Growing(self.max_tokens, self.max_samples)
        with closing(upstream(start, lane)) as blocks:
            # How many more samples fit is not known before they are there.
            for block in blocks:
                lengths = self._measure(block)
                yield from batch.feed(block, lengths.values.tolist(), self._widths(lengths.values).tolist())
                if lengths.failure is not None:
                    raise lengths.failure
                del block
            yield from batch.finish()

    def _plan(self, samples: Block) -> tuple[SampleLengths, Sequence[Group]]:
        """A pool sorted by length, longest first, so that the first sample of a batch tells its size."""
        lengths = self._measure(samples)
        if lengths.failure is not None:
            raise lengths.failure
        order = np.argsort(-lengths.values, kind="stable")
        widths = self._widths(lengths.values[order]).tolist()
        groups, first, most = [], 0, self.max_samples or len(order)
        while first < len(order):
            last = first + max(1, min(self.max_tokens // widths[first], most))
            groups.append(order[first:last])
            first = last
        return lengths, groups

    def _measure(self, block: Block) -> SampleLengths:
        """Lengths up to the first sample that cannot be batched."""
        lengths = SampleLengths.of(block, self.length, _WHAT)
        if lengths.values.dtype.kind != "i":
            at = int(np.flatnonzero(lengths.values % 1)[0])
            error = ValueError(
                f"expected a length that is a whole number, but found {lengths.values[at]}; count in smaller "
                "units, such as frames for seconds, with a function as length="
            )
            note_sample(error, _WHAT, block, at)
            lengths = SampleLengths(lengths.values[:at].astype(np.int64), error)
        if self.overlong == "alone":
            return lengths
        above = lengths.refuse_above(self.max_tokens, self._widths)
        if above is None:
            return lengths
        error = ValueError(
            f"expected a length of at most max_tokens={self.max_tokens}, but found {lengths.values[above]}"
            + (f", rounded up to a multiple of {self.multiple_of}" if self.multiple_of > 1 else "")
            + "; filter such samples out, raise max_tokens, or make batches of them with overlong='alone'"
        )
        note_sample(error, _WHAT, block, above)
        return SampleLengths(lengths.values[:above], error)

    def _widths(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """What samples of these lengths take when they are alone."""
        rounded: NDArray[np.int64] = -(-np.maximum(lengths, 1) // self.multiple_of) * self.multiple_of
        return rounded


@dataclass(slots=True)
class _Growing:
    """The batch that is being filled, in stream order.

    Args:
        max_tokens: Of a batch, padded.
        max_samples: Of a batch; None for any number.
    """

    max_tokens: int
    max_samples: int | None
    parts: list[Block] = field(default_factory=list)
    count: int = 0
    width: int = 0
    tokens: int = 0

    def feed(self, block: Block, lengths: list[int], widths: list[int]) -> Iterator[Batch]:
        """The batches that these samples of the block complete; as soon as no other sample would fit."""
        first = 0
        for index, (length, width) in enumerate(zip(lengths, widths, strict=True)):
            if self.count and (self.count + 1) * max(self.width, width) > self.max_tokens:
                yield self._cut(block, first, index)
                first = index
            self.count += 1
            self.width = max(self.width, width)
            self.tokens += length
            if self.count == self.max_samples or (self.count + 1) * self.width > self.max_tokens:
                yield self._cut(block, first, index + 1)
                first = index + 1
        if first < len(lengths):
            self.parts.append(block.part(first, len(lengths)))

    def finish(self) -> Iterator[Batch]:
        """The last batch, if there is one."""
        if self.parts:
            yield self._batch()

    def _cut(self, block: Block, first: int, stop: int) -> Batch:
        if first < stop:
            self.parts.append(block.part(first, stop))
        return self._batch()

    def _batch(self) -> Batch:
        block = join(self.parts)
        tokens, count = self.tokens, self.count
        self.parts, self.count, self.width, self.tokens = [], 0, 0, 0
        return Batch(block, block.trail.after(len(block) - 1), count, tokens)
