"""Batches by tokens: as many samples as fit when all are padded to the longest of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..blocks import Block, join
from ..quantity import as_counts
from ..types import Position
from .batching import Batch, Batches
from .lengths import ByLength, Length, Lengths, check_length, describe_length
from .op import Lane, Opener, note_sample
from .pools import Group, batches_of_pools

__all__ = ["TokenBatches"]

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

    def _plan(self, samples: Block) -> tuple[Lengths, Sequence[Group]]:
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

    def _measure(self, block: Block) -> Lengths:
        """Lengths up to the first sample that cannot be batched."""
        lengths = Lengths.of(block, self.length, _WHAT)
        if lengths.values.dtype.kind != "i":
            at = int(np.flatnonzero(lengths.values % 1)[0])
            error = ValueError(
                f"expected a length that is a whole number, but found {lengths.values[at]}; count in smaller "
                "units, such as frames for seconds, with a function as length="
            )
            note_sample(error, _WHAT, block, at)
            lengths = Lengths(lengths.values[:at].astype(np.int64), error)
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
        return Lengths(lengths.values[:above], error)

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
