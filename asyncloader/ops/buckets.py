"""Buckets: batches of samples of like length, of another size for each range of lengths."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from numbers import Real
from typing import Any

import numpy as np

from ..blocks import Block
from ..quantity import as_count, as_counts
from ..types import Position
from .batching import Batches
from .lengths import ByLength, Length, Lengths, check_length, describe_length
from .op import Lane, Opener
from .pools import Group, batches_of_pools

__all__ = ["Buckets"]

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

    def _plan(self, samples: Block) -> tuple[Lengths, Sequence[Group]]:
        lengths = Lengths.of(samples, self.length, "Buckets")
        if lengths.failure is not None:
            raise lengths.failure
        bucket_of = np.searchsorted(np.asarray(self.bounds), lengths.values, side="right")
        groups: list[Group] = []
        for bucket, size in enumerate(self.batch_sizes):
            inside = np.flatnonzero(bucket_of == bucket)
            groups += [inside[first : first + size] for first in range(0, len(inside), size)]
        return lengths, groups
