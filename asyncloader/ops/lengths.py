"""How long samples are, as batchings that go by length ask it, and what these have in common.

Of columns lengths are taken without making a row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from numbers import Real
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..blocks import Block, Ragged
from ..collate.pad import PadLongest
from ..plan.counts import UnknownCount
from .calls import UserCodeErrors
from .op import name_of, note_sample

__all__ = ["ByLength", "Length", "Lengths", "check_length", "describe_length"]

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
class Lengths:
    """The lengths of a block's samples.

    Attributes:
        values: ``(n,)``, int64, or float64 where some are not whole numbers.
        failure: Why there are fewer than the block has samples, None if there are not. What comes before a
            bad sample is good, and may complete a batch.
    """

    values: NDArray[Any]
    failure: Exception | None = None

    @classmethod
    def of(cls, block: Block, length: Length, what: str) -> Lengths:
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


def _each(block: Block, values: Iterable[Any], length: Callable[[Any], Any], what: str) -> Lengths:
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
    return Lengths(np.array(measured, np.int64 if whole else np.float64), failure)


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
