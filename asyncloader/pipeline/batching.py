"""Batching: the last operator of a dataset, which makes batches of blocks.

Two laws hold for every batching. The batches of a stream are the same however the stream was cut into blocks.
And a batching that is opened at the position of a batch continues with the same batches that came after it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, fields
from itertools import pairwise
from numbers import Real
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..blocks import Block, Gather, Origins, Ragged, Trail, join, origins_of
from ..collate.pad import PadLongest
from ..plan.lanes import UnknownCount, batch_count
from ..quantity import as_count, as_counts
from ..types import Position
from .calls import UserCodeErrors
from .lane import Lane, Opener
from .op import name_of, note_sample
from .shuffle import cut_pools, draw_pool


class Batch:
    """What is collated at once.

    Args:
        block: The rows of the batch. A row is a sample, unless the batching says otherwise.
        tokens: How many tokens it has, without padding; 0 if its batching does not count them.
        position: Where the lane continues after the batch; None if that is after its last row.
        ended: The samples that end in it, each as its trail and its index there; None if they are the rows.

    Attributes:
        samples: How many samples end in it. Each sample is counted once over all batches.
    """

    __slots__ = ("block", "ended", "position", "samples", "tokens")

    def __init__(
        self,
        block: Block,
        tokens: int = 0,
        position: Position | None = None,
        ended: Sequence[tuple[Trail, int]] | None = None,
    ) -> None:
        self.block, self.tokens, self.ended = block, tokens, ended
        self.position: Position = block.trail.after(len(block) - 1) if position is None else position
        self.samples = len(block if ended is None else ended)

    def origins(self) -> Origins:
        """Where the samples came from that end in it."""
        if self.ended is None:
            return self.block.trail.origins.of(range(len(self.block)))
        return origins_of(self.ended)


Batches: TypeAlias = Generator[Batch, None, None]


class Batching:
    """Makes batches of one lane's stream."""

    kind: ClassVar[str]
    """Its name in a saved state."""

    @property
    def collate_fn(self) -> Callable[[Any], Any] | None:
        """The ``collate_fn`` if the user gives none; None for the loader's default."""
        return None

    @property
    def samples_per_batch(self) -> int | None:
        """The number of samples in each batch except the last; None if it varies."""
        return None

    def open(self, upstream: Opener, start: Position, lane: Lane) -> Batches:
        """Make the batches of a lane from ``start`` on. The loader calls it.

        Args:
            upstream: Opens the blocks of samples at a position.
            start: The position after the last batch.
            lane: The lane that is read.

        Yields:
            Each batch with its position. Closing the generator closes the upstream.
        """
        raise NotImplementedError

    def count_batches(self, count_samples: Callable[[], Iterable[float]]) -> int:
        """Return how many batches the lanes make together, for ``len(loader)``.

        Args:
            count_samples: A function that returns how many samples each lane has; see ``Op.count_samples``.

        Raises:
            UnknownCount: The number is not known beforehand, or depends on the samples.
        """
        raise UnknownCount(
            f"how many batches {type(self).__name__} makes depends on how long the samples are"
        )

    def describe(self) -> Mapping[str, Any]:
        """Return the options as JSON values. A saved state only fits a loader with the same ones."""
        options = {option.name: getattr(self, option.name) for option in fields(self) if option.init}  # type: ignore[arg-type]  # all are dataclasses
        return {"batching": {"kind": self.kind, **options, **self._converted()}}

    def _converted(self) -> Mapping[str, Any]:
        """The options whose values are no JSON values, as JSON values."""
        return {}


@dataclass(frozen=True)
class FixedSize(Batching):
    """Batches of ``batch_size`` samples, in the order in which they come.

    Its positions are those of its samples: it has nothing to remember between two batches.

    Args:
        batch_size: Samples per batch.
        drop_last: Leave out the last batch of a lane if it is short. False, as in torch, so that no sample is
            lost by default.
    """

    batch_size: int
    drop_last: bool = False

    @property
    def samples_per_batch(self) -> int:
        return self.batch_size

    def open(self, upstream: Opener, start: Position, lane: Lane) -> Batches:
        gather = Gather(self.batch_size)
        with closing(upstream(start, lane)) as blocks:
            for block in blocks:
                yield from map(Batch, gather.feed(block))
                del block
            rest = gather.finish()
            if rest is not None and not self.drop_last:
                yield Batch(rest)
            elif rest is not None:
                lane.leave_out("drop_last", rest, range(len(rest)))

    def count_batches(self, count_samples: Callable[[], Iterable[float]]) -> int:
        return batch_count(count_samples(), self.batch_size, self.drop_last)

    def describe(self) -> Mapping[str, Any]:
        return {"batch_size": self.batch_size, "drop_last": self.drop_last}


@dataclass(frozen=True)
class Single(Batching):
    """No batching: each sample alone, as it is."""

    samples_per_batch = 1

    def open(self, upstream: Opener, start: Position, lane: Lane) -> Batches:
        with closing(upstream(start, lane.for_columns(False))) as blocks:
            for block in blocks:
                yield from (Batch(block.part(index, index + 1)) for index in range(len(block)))

    def count_batches(self, count_samples: Callable[[], Iterable[float]]) -> int:
        return batch_count(count_samples(), 1, False)

    def describe(self) -> Mapping[str, Any]:
        return {"batch_size": None, "drop_last": False}


# --- how long a sample is ---

Length: TypeAlias = str | Callable[[Any], float]
"""A field, whose own length counts if it is a sequence, and its value if it is a number; or a function."""

# The length of these is their number of items, without a further check.
_SEQUENCES = frozenset({list, tuple, bytes, str})


class SampleLengths(NamedTuple):
    """The lengths of a block's samples. Of columns they are taken without making a row.

    Attributes:
        values: ``(n,)``, int64, or float64 if some are not whole numbers.
        failure: The error of the first sample that has no length, None if all have one. The samples before it
            are good, and may complete a batch.
    """

    values: NDArray[Any]
    failure: Exception | None = None

    @classmethod
    def of(cls, block: Block, length: Length, what: str) -> SampleLengths:
        """Measure a block.

        Args:
            block: Of rows or columns.
            length: What counts.
            what: The batching, for messages.
        """
        if not isinstance(length, str):
            return cls._of_each(block, block.rows(), length, what)
        try:
            column = block.column(length)
        except (KeyError, TypeError, IndexError):
            return cls._of_each(block, block.rows(), lambda sample: _field_of(sample, length), what)
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
        return cls._of_each(block, column, _length_of, what)

    @classmethod
    def _of_each(
        cls, block: Block, values: Iterable[Any], length: Callable[[Any], Any], what: str
    ) -> SampleLengths:
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
        return cls(np.array(measured, np.int64 if whole else np.float64), failure)


def _field_of(sample: Any, name: str) -> Any:
    try:
        return _length_of(sample[name])
    except (KeyError, TypeError, IndexError):
        raise ValueError(
            f"expected samples that are mappings with the field {name!r}, whose length is needed; pass "
            "another name as length=, or a function of a sample"
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
            f"expected a sequence or a number as the length of a sample, but found {type(value).__name__}"
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


# --- batches by length ---

Group: TypeAlias = NDArray[np.int64]
"""Which samples of a pool make a batch, by their indices: ``(n,) int64``."""


class ByLength(Batching):
    """A batching that uses the lengths of samples."""

    length: Length
    multiple_of: int

    @property
    def collate_fn(self) -> Callable[[Any], Any] | None:
        """The ``collate_fn`` by default: it pads the field ``length`` and stacks the other fields.

        None if ``length`` is a function, which does not name a field.
        """
        return PadLongest(self.length, self.multiple_of) if isinstance(self.length, str) else None

    def _converted(self) -> Mapping[str, Any]:
        length = self.length if isinstance(self.length, str) else f"{name_of(self.length)}()"
        return {"length": length}

    def _check_length(self) -> None:
        if not isinstance(self.length, str) and not callable(self.length):
            raise TypeError(
                "length should be the name of a field or a function of one sample, but got "
                f"{type(self.length).__name__}: {self.length!r}"
            )

    def _measure(self, samples: Block) -> SampleLengths:
        """Lengths up to the first sample that cannot be batched."""
        return SampleLengths.of(samples, self.length, type(self).__name__)

    def _plan(self, lengths: NDArray[Any]) -> Sequence[Group]:
        """Which samples of a pool, of these lengths, make the batches."""
        raise NotImplementedError

    def _of_pools(self, upstream: Opener, start: Position, lane: Lane, size: int) -> Batches:
        """The batches of all pools of ``size`` samples, those of a pool in an order drawn for it."""
        with closing(cut_pools(upstream, start, lane, size)) as pools:
            for pool in pools:
                lengths, failure = self._measure(pool.samples)
                if failure is not None:
                    raise failure
                groups = self._plan(lengths)
                order = draw_pool(pool, len(groups), lane)
                for emitted, nth in enumerate(order[pool.emitted :], pool.emitted + 1):
                    group = groups[nth]
                    tokens = int(lengths[group].sum()) if lengths.dtype.kind == "i" else 0
                    block = pool.samples.take(group)
                    yield Batch(block, tokens, pool.span.after(emitted, len(order)))
                    del block
                del pool, lengths, groups


# A bucket has half a batch left over at a pool's end on average. With sixteen batches of each bucket in a
# pool every sixteenth is short, which costs a few per cent of the steps; twice the memory would halve that.
_POOL_BATCHES = 16


@dataclass(frozen=True, kw_only=True)
class Buckets(ByLength):
    """Batches of samples of similar length: each batch is from one bucket, a range of lengths.

    Each bucket has its own batch size. Lengths may have any unit, such as seconds. Pass it as
    ``DataLoader(batching=...)``.

    Example:
        ```python
        import asyncloader as al

        clips = al.from_iterable([{"clip": number, "seconds": number % 15 + 0.5} for number in range(600)])
        buckets = al.Buckets(length="seconds", bounds=[3, 8], batch_sizes=[40, 16, 6])
        for batch in al.DataLoader(clips, batching=buckets):
            print(batch["seconds"].max())  # all under 3 s, from 3 s to under 8 s, or longer
        ```

    Args:
        length: The name of a field, or a function of a sample that returns the length. Of a field, the length
            of a sequence counts, or the value of a number. A function does not name a field to pad, so pass
            ``collate_fn=al.Pad({field: 0})`` too.
        bounds: The bounds between the buckets, in rising order. Bucket ``i`` has the lengths from
            ``bounds[i - 1]`` up to ``bounds[i]``, exclusive. One more bucket has the lengths from the last
            bound on.
        batch_sizes: The number of samples in a batch, for each bucket; one more number than ``bounds``.
        pool: How many consecutive samples a lane collects in memory to make batches of them. The samples that
            remain in a bucket at the end of a pool make a short batch, so that a position is a place in one
            pool. None: sixteen times the sum of ``batch_sizes``; about one batch in sixteen is then short.
            Pass less if so many samples do not fit into memory.
        multiple_of: The default ``collate_fn`` rounds widths up to a multiple of this. 1: no rounding. A
            ``Pad`` of your own has its own ``multiple_of``.

    Raises:
        TypeError: ``length`` is neither a name nor a function.
        ValueError: ``bounds`` do not rise, ``batch_sizes`` has another number of entries, or an option is out
            of range. While iterating: a sample lacks the field, or its length is not a number of 0 or more; a
            note names the sample.
    """

    length: Length = "tokens"
    bounds: Sequence[float]
    batch_sizes: Sequence[int]
    pool: int | None = None
    multiple_of: int = 1

    kind = "buckets"

    def __post_init__(self) -> None:
        self._check_length()
        as_counts(self, "multiple_of", "pool")
        # Tuples, which can be compared and not changed.
        for name in ("bounds", "batch_sizes"):
            try:
                object.__setattr__(self, name, tuple(getattr(self, name)))
            except TypeError:
                raise ValueError(
                    f"{name} should be a list of numbers, but got {getattr(self, name)!r}"
                ) from None
        # Python's numbers, which a saved state can hold.
        bounds = tuple(bound.item() if isinstance(bound, np.number) else bound for bound in self.bounds)
        object.__setattr__(self, "bounds", bounds)
        sizes = tuple(as_count("batch_sizes", size) for size in self.batch_sizes)
        object.__setattr__(self, "batch_sizes", sizes)
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

    def open(self, upstream: Opener, start: Position, lane: Lane) -> Batches:
        return self._of_pools(upstream, start, lane, self._pool_samples)

    def _converted(self) -> Mapping[str, Any]:
        lists = {"bounds": list(self.bounds), "batch_sizes": list(self.batch_sizes)}
        return {**super()._converted(), **lists, "pool": self._pool_samples}

    @property
    def _pool_samples(self) -> int:
        return self.pool or _POOL_BATCHES * sum(self.batch_sizes)

    def _plan(self, lengths: NDArray[Any]) -> Sequence[Group]:
        bucket_of = np.searchsorted(np.asarray(self.bounds), lengths, side="right")
        groups: list[Group] = []
        for bucket, size in enumerate(self.batch_sizes):
            inside = np.flatnonzero(bucket_of == bucket)
            groups += [inside[first : first + size] for first in range(0, len(inside), size)]
        return groups


@dataclass(frozen=True, kw_only=True)
class TokenBatches(ByLength):
    """Batches of as many samples as fit ``max_tokens`` once they are padded to one length.

    The size of a batch is its number of samples times its longest length, rounded up to ``multiple_of``. That
    is the number of positions that a model computes, so batches cost nearly the same. Pass it as
    ``DataLoader(batching=...)``.

    Example:
        ```python
        import asyncloader as al

        texts = al.from_iterable([{"tokens": [1] * (number % 90 + 1)} for number in range(2000)])
        batching = al.TokenBatches(length="tokens", max_tokens=1024, pool=500)
        for batch in al.DataLoader(texts, batching=batching):
            tokens = batch["tokens"]  # (B, T), padded with 0, of at most 1,024 tokens
        ```

    Args:
        length: The name of a field, or a function of a sample that returns the length. Of a field, the length
            of a sequence counts, or the value of a whole number. A function does not name a field to pad, so
            pass ``collate_fn=al.Pad({field: 0})`` too.
        max_tokens: The most tokens of a batch, padding included. Required, since it follows from the memory
            of the device.
        max_samples: The most samples of a batch. None: no limit, so a batch of very short samples has many.
            A sample of length 0 counts as one of length 1.
        multiple_of: Round widths up to a multiple of this; 8 to 64 fills the tiles of tensor cores. 1: no
            rounding. Pass the same number to a ``Pad`` of your own.
        pool: How many consecutive samples a lane collects in memory, to put those of similar length together.
            It sorts them by length, cuts them into batches, and draws the order of these by (seed, epoch,
            lane, pool). With a pool of a hundred batches, a few per cent of the tokens are padding. None:
            samples keep their order.
        overlong: What to do with a sample that is longer than ``max_tokens``. ``"raise"``, the default, since
            it may not fit into the memory of the device. ``"alone"``: make a batch of this sample.

    Raises:
        TypeError: ``length`` is neither a name nor a function.
        ValueError: An option is out of range. While iterating: a sample is too long or lacks the field, or
            its length is not a whole number of 0 or more; a note names the sample.
    """

    length: Length = "tokens"
    max_tokens: int
    max_samples: int | None = None
    multiple_of: int = 1
    pool: int | None = None
    overlong: Literal["raise", "alone"] = "raise"

    kind = "tokens"

    def __post_init__(self) -> None:
        self._check_length()
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
        return self._of_pools(upstream, start, lane, self.pool)

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
            if batch.parts:
                yield batch.finish()

    def _plan(self, lengths: NDArray[Any]) -> Sequence[Group]:
        """A pool sorted by length, longest first, so that its first sample decides the size of a batch."""
        order = np.argsort(-lengths, kind="stable")
        widths = self._widths(lengths[order]).tolist()
        groups, first, most = [], 0, self.max_samples or len(order)
        while first < len(order):
            last = first + max(1, min(self.max_tokens // widths[first], most))
            groups.append(order[first:last])
            first = last
        return groups

    def _measure(self, samples: Block) -> SampleLengths:
        values, failure = super()._measure(samples)
        if values.dtype.kind != "i":
            at = int(np.flatnonzero(values % 1)[0])
            failure = ValueError(
                f"expected a length that is a whole number, but found {values[at]}; count in smaller "
                "units, such as frames for seconds, with a function as length="
            )
            note_sample(failure, "TokenBatches", samples, at)
            values = values[:at].astype(np.int64)
        if (
            self.overlong == "raise"
            and (above := np.flatnonzero(self._widths(values) > self.max_tokens)).size
        ):
            at = int(above[0])
            failure = ValueError(
                f"expected a length of at most max_tokens={self.max_tokens}, but found {values[at]}"
                + (f", rounded up to a multiple of {self.multiple_of}" if self.multiple_of > 1 else "")
                + "; filter such samples out, raise max_tokens, or make batches of them with overlong='alone'"
            )
            note_sample(failure, "TokenBatches", samples, at)
            values = values[:at]
        return SampleLengths(values, failure)

    def _widths(self, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """The padded lengths of samples, each in a batch of its own."""
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

    def finish(self) -> Batch:
        """The batch as it is; the next one is empty."""
        block, tokens = join(self.parts), self.tokens
        self.parts, self.count, self.width, self.tokens = [], 0, 0, 0
        return Batch(block, tokens)

    def _cut(self, block: Block, first: int, stop: int) -> Batch:
        if first < stop:
            self.parts.append(block.part(first, stop))
        return self.finish()
