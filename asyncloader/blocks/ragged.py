"""Sequences of unequal length, held as one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["Ragged"]

Values: TypeAlias = "NDArray[Any] | Ragged | list[Any]"

# Up to so many sequences a concatenation of their slices is faster than an array of indices.
_FEW = 256


class Ragged:
    """``n`` sequences of unequal length: their values end to end, and where each begins.

    Args:
        values: All values: an array ``(m, ...)``, a ``Ragged`` for sequences of sequences, or a list of
            objects. There may be values before the first sequence and behind the last.
        offsets: ``(n + 1,) int64``, rising: sequence ``i`` is ``values[offsets[i]:offsets[i + 1]]``.

    Raises:
        ValueError: ``offsets`` is empty, falls, or points outside ``values``.
    """

    __slots__ = ("offsets", "values")

    def __init__(self, values: Values, offsets: NDArray[np.int64]) -> None:
        offsets = np.asarray(offsets, np.int64)
        if (
            offsets.ndim != 1
            or not len(offsets)
            or offsets[0] < 0
            or offsets[-1] > len(values)
            or (offsets[1:] < offsets[:-1]).any()
        ):
            raise ValueError(
                f"offsets should be one more number than there are sequences, rising from 0 or more up to at "
                f"most the {len(values)} values, but got {offsets!r}"
            )
        self.values = values
        self.offsets = offsets

    @classmethod
    def of(cls, sequences: Sequence[Any]) -> Ragged:
        """Sequences put end to end: arrays or lists of numbers, of one dtype and trailing shape."""
        arrays = [np.asarray(sequence) for sequence in sequences]
        offsets = np.zeros(len(arrays) + 1, np.int64)
        np.cumsum([len(array) for array in arrays], out=offsets[1:])
        return cls(np.concatenate(arrays) if arrays else np.zeros(0, np.int64), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> Values:
        """Sequence ``index``: a view of the values, not a copy."""
        count = len(self)
        if not -count <= index < count:
            raise IndexError(f"sequence {index} of {count}")
        index %= count
        return _slice(self.values, int(self.offsets[index]), int(self.offsets[index + 1]))

    def __iter__(self) -> Iterator[Values]:
        for start, stop in pairwise(self.offsets.tolist()):
            yield _slice(self.values, start, stop)

    def __repr__(self) -> str:
        kind = getattr(self.values, "dtype", type(self.values).__name__)
        return f"Ragged({len(self)} sequences of {int(self.offsets[-1] - self.offsets[0])} values, {kind})"

    @property
    def lengths(self) -> NDArray[np.int64]:
        """``(n,) int64``."""
        return np.diff(self.offsets)

    def part(self, start: int, stop: int) -> Ragged:
        """The sequences from ``start`` up to ``stop``, over the same values."""
        start, stop, _ = slice(start, stop).indices(len(self))
        return Ragged(self.values, self.offsets[start : max(start, stop) + 1])

    def take(self, indices: Sequence[int] | NDArray[np.int64]) -> Ragged:
        """The sequences of these indices, copied end to end in this order."""
        picked = np.asarray(indices, np.int64)
        starts, lengths = self.offsets[:-1][picked], self.lengths[picked]
        offsets = np.zeros(len(picked) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        if isinstance(self.values, np.ndarray) and len(picked) <= _FEW:
            runs = [self.values[a : a + n] for a, n in zip(starts.tolist(), lengths.tolist(), strict=True)]
            return Ragged(np.concatenate(runs) if runs else self.values[:0], offsets)
        # For each value where it is: its place in the result, moved by how far its sequence moved.
        at = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
        return Ragged(_take(self.values, at), offsets)

    def tolist(self) -> list[Any]:
        """Lists of lists of Python values."""
        return [sequence if isinstance(sequence, list) else sequence.tolist() for sequence in self]


def _slice(values: Values, start: int, stop: int) -> Values:
    return values.part(start, stop) if isinstance(values, Ragged) else values[start:stop]


def _take(values: Values, at: NDArray[np.int64]) -> Values:
    if isinstance(values, Ragged):
        return values.take(at)
    return [values[index] for index in at.tolist()] if isinstance(values, list) else values[at]
