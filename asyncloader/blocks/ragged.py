"""Sequences of unequal length, held as one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["Ragged", "offsets_of", "read_only"]

Values: TypeAlias = "NDArray[Any] | Ragged | list[Any]"

# Sequences longer than this on average are copied faster one by one than by an index for each value: of 64
# int32 the index took two thirds of the time, of 200 a third more.
_LONG = 96


class Ragged:
    """``n`` sequences of unequal length: their values end to end, and where each begins.

    ``len(ragged)`` is ``n``, ``ragged[i]`` and iteration give sequences, as views where values are arrays.
    ``np.asarray(ragged)`` is ``(n, T, ...)`` where all sequences have the length ``T``, a ValueError
    elsewhere. What is in one is not to be changed: parts share it, and it may be read-only memory.

    Args:
        values: All values: an array ``(m, ...)``, a ``Ragged`` for sequences of sequences, or a list of
            objects. There may be values before the first sequence and behind the last.
        offsets: ``(n + 1,) int64``, rising: sequence ``i`` is ``values[offsets[i]:offsets[i + 1]]``.

    Raises:
        ValueError: ``offsets`` is empty, falls, or points outside ``values``.
    """

    __slots__ = ("offsets", "values")

    values: Values
    offsets: NDArray[np.int64]

    def __init__(self, values: Values, offsets: NDArray[np.int64] | Sequence[int]) -> None:
        self.values = values
        self.offsets = _checked(np.asarray(offsets), len(values))

    @classmethod
    def over(cls, values: Values, offsets: NDArray[np.int64]) -> Self:
        """Sequences whose offsets are known to be right, as those of a part."""
        ragged = cls.__new__(cls)
        ragged.values = values
        ragged.offsets = offsets
        return ragged

    @classmethod
    def of(cls, sequences: Sequence[Any] | NDArray[Any] | Ragged) -> Ragged:
        """Sequences put end to end: arrays or lists of numbers, with one trailing shape.

        They should be of one dtype; of several it is the one that NumPy promotes them to. An empty list or
        array ``(0,)`` takes that of the others; empty lists alone are int64. An array ``(n, T, ...)`` is
        taken for ``n`` sequences, without a copy.

        Raises:
            ValueError: One is no sequence, or has a null or anything else in it that is no number; or the
                trailing shapes differ.
        """
        if isinstance(sequences, Ragged):
            return sequences
        if isinstance(sequences, np.ndarray) and sequences.ndim > 1:
            count, length, *inner = sequences.shape
            return Ragged.over(sequences.reshape(count * length, *inner), np.arange(count + 1) * length)
        try:
            lengths = list(map(len, sequences))
        except TypeError:
            raise _no_sequence(sequences) from None
        typed = [
            np.asarray(sequence) for sequence in sequences if len(sequence) or hasattr(sequence, "dtype")
        ]
        if any(array.dtype == object for array in typed):
            raise _no_sequence(sequences)
        full = [array for array in typed if array.shape != (0,)]
        values = np.concatenate(full or typed) if typed else np.zeros(0, np.int64)
        return Ragged.over(values, offsets_of(lengths))

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
        values = self.values
        edges = pairwise(self.offsets.tolist())
        if isinstance(values, Ragged):
            return (values.part(start, stop) for start, stop in edges)
        return (values[start:stop] for start, stop in edges)

    def __repr__(self) -> str:
        kind = getattr(self.values, "dtype", type(self.values).__name__)
        return f"Ragged({len(self)} sequences of {int(self.offsets[-1] - self.offsets[0])} values, {kind})"

    def __reduce__(self) -> tuple[Callable[..., Self], tuple[Values, NDArray[np.int64]]]:
        # A part of many shares all their values, which need not travel with it.
        return self.over, (self.flat, self.offsets - self.offsets[0])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        lengths = self.lengths
        if len(lengths) and (lengths != lengths[0]).any():
            raise ValueError(
                f"an array needs sequences of one length, but got lengths from {lengths.min()} to "
                f"{lengths.max()}; pad them with al.Pad, or work on .flat and .offsets"
            )
        width = int(lengths[0]) if len(lengths) else 0
        flat = np.asarray(self.flat)
        dense = flat.reshape(len(lengths), width, *flat.shape[1:])
        return np.array(dense, dtype, copy=copy)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """``(n,) int64``."""
        return self.offsets[1:] - self.offsets[:-1]

    @property
    def flat(self) -> Values:
        """The values of the sequences alone, without any before the first and behind the last; a view."""
        return _slice(self.values, int(self.offsets[0]), int(self.offsets[-1]))

    def part(self, start: int, stop: int) -> Self:
        """The sequences from ``start`` up to ``stop``, over the same values."""
        start, stop, _ = slice(start, stop).indices(len(self))
        return self.over(self.values, self.offsets[start : max(start, stop) + 1])

    def take(self, indices: Sequence[int] | NDArray[np.int64]) -> Self:
        """The sequences of these indices, copied end to end in this order."""
        picked = np.asarray(indices, np.int64)
        starts, stops = self.offsets[:-1][picked], self.offsets[1:][picked]
        lengths = stops - starts
        offsets = offsets_of(lengths)
        values = self.values
        if not len(picked):
            return self.over(_slice(values, 0, 0), offsets)
        if isinstance(values, Ragged):
            return self.over(values.take(_places(starts, lengths, offsets)), offsets)
        edges = zip(starts.tolist(), stops.tolist(), strict=True)
        if isinstance(values, list):
            return self.over(list(chain.from_iterable(values[start:stop] for start, stop in edges)), offsets)
        if offsets[-1] > _LONG * len(picked):
            return self.over(np.concatenate([values[start:stop] for start, stop in edges]), offsets)
        return self.over(values[_places(starts, lengths, offsets)], offsets)

    def tolist(self) -> list[Any]:
        """Lists of lists of Python values."""
        return [sequence if isinstance(sequence, list) else sequence.tolist() for sequence in self]


def _no_sequence(sequences: Sequence[Any] | NDArray[Any]) -> ValueError:
    """Says which of them it is that cannot be put end to end with others."""
    for index, sequence in enumerate(sequences):
        if not hasattr(sequence, "__len__"):
            found = "a null" if sequence is None else type(sequence).__qualname__
        elif len(sequence) and (array := np.asarray(sequence)).dtype == object:
            nulls = [value is None for value in array.tolist()]
            kind = type(sequence).__qualname__
            found = f"a null at place {nulls.index(True)}" if any(nulls) else f"{kind} of objects"
        else:
            continue
        hint = "give a null a value, or leave the sequence out"
        return ValueError(f"sequence {index}: expected numbers, found {found}; {hint}")
    raise AssertionError("all of them are sequences of numbers")


def offsets_of(lengths: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    """``(n + 1,) int64``: where sequences of these lengths begin that are put end to end."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def read_only(values: Values) -> Values:
    """The same values, over memory that cannot be written by way of them; lists are what they are."""
    if isinstance(values, Ragged):
        return values.over(read_only(values.values), _read_only_array(values.offsets))
    return _read_only_array(values) if isinstance(values, np.ndarray) else values


def _read_only_array(array: NDArray[Any]) -> NDArray[Any]:
    if not array.flags.writeable:
        return array
    view = array.view()
    view.flags.writeable = False
    return view


def _checked(offsets: NDArray[Any], count: int) -> NDArray[np.int64]:
    if (
        offsets.dtype.kind not in "iu"
        or offsets.ndim != 1
        or not len(offsets)
        or offsets[0] < 0
        or offsets[-1] > count
        or (offsets[1:] < offsets[:-1]).any()
    ):
        raise ValueError(
            f"offsets should be one more integer than there are sequences, rising from 0 or more up to at "
            f"most the {count} values, but got {offsets!r}"
        )
    return offsets.astype(np.int64, copy=False)


def _slice(values: Values, start: int, stop: int) -> Values:
    return values.part(start, stop) if isinstance(values, Ragged) else values[start:stop]


def _places(
    starts: NDArray[np.int64], lengths: NDArray[np.int64], offsets: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Where each value of the result is: its place there, moved by how far its sequence moved."""
    return np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)
