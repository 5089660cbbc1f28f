"""Sequences of one padded field as runs of one array, as they lie in a column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..blocks import Column, Ragged
from .pad_field import PadField
from .ragged import exact_cast, is_number, lay_runs, to_pieces

__all__ = ["Runs"]


@dataclass(frozen=True, slots=True)
class Runs:
    """``B`` sequences of one array.

    Attributes:
        values: ``(m, ...)`` in the dtype that they are to be padded in, contiguous.
        starts: ``(B,) int64``.
        lengths: ``(B,) int64``.
    """

    values: NDArray[Any]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]

    @classmethod
    def of(cls, column: Column, how: PadField) -> Runs:
        """A column's sequences, converted and cut as ``how`` says.

        Raises:
            ValueError: They cannot be padded so.
        """
        sequences = _ragged_of(column)
        values = sequences.flat
        if not isinstance(values, np.ndarray) or not is_number(values.dtype):
            raise ValueError("expected sequences of numbers")
        dtype = values.dtype.newbyteorder("=") if how.dtype is None else how.dtype
        values = np.ascontiguousarray(exact_cast(values, dtype, lambda: "a column"))
        starts, lengths = sequences.offsets[:-1] - sequences.offsets[0], sequences.lengths
        if how.max_length is not None:
            bounded = np.minimum(lengths, how.max_length)
            if how.overflow == "raise" and (bounded < lengths).any():
                raise ValueError("a sequence is too long")
            if how.side == "left":
                starts = starts + lengths - bounded
            lengths = bounded
        return cls(values, starts, lengths)

    def longest_first(self) -> NDArray[np.int64]:
        """``(B,) int64``: the order by length; equal ones keep theirs."""
        return np.argsort(-self.lengths, kind="stable")

    def take(self, order: NDArray[np.int64]) -> Runs:
        """The same sequences in another order."""
        return Runs(self.values, self.starts[order], self.lengths[order])

    def lay(self, how: PadField) -> NDArray[Any]:
        """``(B, T, ...)``; raises ValueError where the filling does not fit."""
        return lay_runs(
            self.values,
            self.starts,
            self.lengths,
            value=how.value,
            side=how.side,
            multiple_of=how.multiple_of,
        )


def _ragged_of(column: Column) -> Ragged:
    if isinstance(column, list) or (isinstance(column, Ragged) and isinstance(column.values, list)):
        return Ragged.of(to_pieces(list(column), None, str))  # such as bytes, which are uint8
    if isinstance(column, Ragged) or column.ndim > 1:
        return Ragged.of(column)
    raise ValueError("expected sequences, found numbers")
