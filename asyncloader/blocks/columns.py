"""Columns: one field of many samples, without an object for each of them. Pure.

A column is an array ``(n, ...)``, a list of objects, or an object of a kind with three methods: ``take``,
``join`` and ``settle``. ``take_of``, ``join_columns`` and ``settled`` do the same for any column. A slice of
any column is a part over the same memory. ``column_of`` makes a column of values. The kind of column for
sequences depends on their type, not on their lengths; otherwise a function would get another kind if the
sequences of a chunk have equal lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, Self, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

Column: TypeAlias = "NDArray[Any] | Ragged | list[Any]"
"""One field of ``n`` samples: an array ``(n, ...)``, sequences of unequal length, or a list of objects."""

# Sequences longer than this on average are copied faster one by one than by an index for each value: with 64
# int32 the index took two thirds of the time, with 200 a third more.
_LONG = 96

# Beyond this, not every integer is a float64.
_MOST_EXACT = 1 << 53


# --- any column ---


def take_of(column: Column, indices: NDArray[np.int64]) -> Column:
    """The entries at these indices, copied in this order."""
    if isinstance(column, np.ndarray):
        return column[indices]
    if isinstance(column, _KINDS):
        return column.take(indices)
    return [column[index] for index in indices.tolist()]


def join_columns(columns: Sequence[Column]) -> Column | None:
    """One column of several; None if they differ in kind, dtype or trailing dimensions."""
    # A column with nulls keeps the type that columns without nulls have.
    first = next((column for column in columns if isinstance(column, WithNulls)), columns[0])
    if isinstance(first, _KINDS):
        return first.join(columns)
    if isinstance(first, np.ndarray):
        arrays = [column for column in columns if isinstance(column, np.ndarray)]
        alike = len(arrays) == len(columns) and len({(each.dtype, each.shape[1:]) for each in arrays}) == 1
        return np.concatenate(arrays) if alike else None
    return list(chain.from_iterable(columns)) if {*map(type, columns)} == {list} else None


def settled(column: Column) -> Column:
    """The column of a block as a user's function gets it."""
    return column.settle() if isinstance(column, _KINDS) else column


# --- sequences ---


class Ragged:
    """A column of ``n`` sequences of unequal length: all their values in one array, and where each begins.

    ``len(ragged)`` is ``n``. ``ragged[i]`` and iteration return sequences, as views if the values are an
    array; ``ragged[i:j]`` is a ``Ragged`` over the same values. ``np.asarray(ragged)`` is ``(n, T, ...)`` if
    all sequences have the length ``T``, and raises ``ValueError`` otherwise. Do not change the values: parts
    share them, and they may be read-only.

    Example:
        ```python
        import asyncloader as al

        words = al.Ragged.of([[1, 2, 3], [4], [5, 6]])
        print(words.lengths, words[2], words.flat)  # [3 1 2] [5 6] [1 2 3 4 5 6]
        ```

    Args:
        values: All values: an array ``(m, ...)``, a ``Ragged`` for sequences of sequences, or a list of
            objects. There may be more values before the first sequence and after the last.
        offsets: ``(n + 1,) int64``, rising: sequence ``i`` is ``values[offsets[i]:offsets[i + 1]]``.

    Raises:
        ValueError: ``offsets`` is empty, falls, or points outside ``values``.
    """

    __slots__ = ("offsets", "values")

    values: Column
    offsets: NDArray[np.int64]

    def __init__(self, values: Column, offsets: NDArray[np.int64] | Sequence[int]) -> None:
        self.values = values
        self.offsets = _checked(np.asarray(offsets), len(values))

    @classmethod
    def over(cls, values: Column, offsets: NDArray[np.int64]) -> Self:
        """Make sequences like the constructor, without a check of the offsets.

        Args:
            values: All values, as for the constructor.
            offsets: ``(n + 1,) int64``, which the caller knows to be right.
        """
        ragged = cls.__new__(cls)
        ragged.values = values
        ragged.offsets = offsets
        return ragged

    @classmethod
    def of(cls, sequences: Sequence[Any] | NDArray[Any] | Ragged) -> Ragged:
        """Make a column of sequences, copied end to end.

        NumPy promotes different dtypes to a common one. An empty list or array ``(0,)`` takes the dtype of
        the others; empty lists alone are int64.

        Args:
            sequences: ``n`` arrays or lists of numbers, with the same trailing shape. An array
                ``(n, T, ...)`` is used as ``n`` sequences, and a ``Ragged`` as it is, without a copy.

        Raises:
            ValueError: An entry is not a sequence, or has a null or another value that is not a number; or
                the trailing shapes differ.
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

    @overload
    def __getitem__(self, index: int) -> Column: ...

    @overload
    def __getitem__(self, index: slice) -> Self: ...

    def __getitem__(self, index: int | slice) -> Column:
        """Sequence ``index``, a view of the values, or the sequences of a slice over the same values."""
        count = len(self)
        if isinstance(index, slice):
            start, stop, step = index.indices(count)
            if step != 1:
                return self.take(range(start, stop, step))
            return self.over(self.values, self.offsets[start : max(start, stop) + 1])
        if not -count <= index < count:
            raise IndexError(f"sequence {index} of {count}")
        index %= count
        return self.values[int(self.offsets[index]) : int(self.offsets[index + 1])]

    def __iter__(self) -> Iterator[Column]:
        values = self.values
        return (values[start:stop] for start, stop in pairwise(self.offsets.tolist()))

    def __repr__(self) -> str:
        kind = getattr(self.values, "dtype", type(self.values).__name__)
        return f"Ragged({len(self)} sequences of {int(self.offsets[-1] - self.offsets[0])} values, {kind})"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            hint = "; write ragged[i:j]" if name == "part" else ""
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}")

    def __reduce__(self) -> tuple[Callable[..., Self], tuple[Column, NDArray[np.int64]]]:
        # A part shares the values of all sequences; only its own are pickled.
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
        return np.array(flat.reshape(len(lengths), width, *flat.shape[1:]), dtype, copy=copy)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The lengths of the sequences, ``(n,) int64``."""
        return self.offsets[1:] - self.offsets[:-1]

    @property
    def flat(self) -> Column:
        """The values of all sequences, end to end; a view."""
        return self.values[int(self.offsets[0]) : int(self.offsets[-1])]

    def take(self, indices: Sequence[int] | NDArray[np.int64]) -> Self:
        """Return a copy of some sequences.

        Args:
            indices: ``(k,)`` indices of sequences, in the order of the result.
        """
        picked = np.asarray(indices, np.int64)
        starts, stops = self.offsets[:-1][picked], self.offsets[1:][picked]
        lengths = stops - starts
        offsets = offsets_of(lengths)
        values = self.values
        if not len(picked):
            return self.over(values[:0], offsets)
        if isinstance(values, Ragged):
            return self.over(values.take(_places(starts, lengths, offsets)), offsets)
        edges = zip(starts.tolist(), stops.tolist(), strict=True)
        if isinstance(values, list):
            return self.over(list(chain.from_iterable(values[start:stop] for start, stop in edges)), offsets)
        if offsets[-1] > _LONG * len(picked):
            return self.over(np.concatenate([values[start:stop] for start, stop in edges]), offsets)
        return self.over(values[_places(starts, lengths, offsets)], offsets)

    def join(self, columns: Sequence[Column]) -> Self | None:
        """Join columns to one.

        Args:
            columns: Columns in the order of the result, with this one among them.

        Returns:
            The column; None if one of them is not a ``Ragged``, or if their values cannot be joined.
        """
        ragged = [column for column in columns if type(column) is type(self)]
        values = join_columns([column.flat for column in ragged]) if len(ragged) == len(columns) else None
        lengths = [column.lengths for column in ragged]
        return None if values is None else self.over(values, offsets_of(np.concatenate(lengths)))

    def settle(self) -> Column:
        """Return the column as a user's function gets it: this one."""
        return self

    def tolist(self) -> list[Any]:
        """Return a list of lists of Python values."""
        return [sequence if isinstance(sequence, list) else sequence.tolist() for sequence in self]


def _no_sequence(sequences: Sequence[Any] | NDArray[Any]) -> ValueError:
    """The error that names the sequence which cannot be put end to end with others."""
    for index, sequence in enumerate(sequences):
        if not hasattr(sequence, "__len__"):
            found = "a null" if sequence is None else type(sequence).__qualname__
        elif len(sequence) and (array := np.asarray(sequence)).dtype == object:
            nulls = [value is None for value in array.tolist()]
            kind = type(sequence).__qualname__
            found = f"a null at place {nulls.index(True)}" if any(nulls) else f"{kind} of objects"
        else:
            continue
        hint = "replace a null by a value, or leave the sequence out"
        return ValueError(f"sequence {index}: expected numbers, found {found}; {hint}")
    raise AssertionError("all of them are sequences of numbers")


def offsets_of(lengths: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    """``(n + 1,) int64``: the offsets of sequences of these lengths, put end to end."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def read_only(values: Column) -> Column:
    """The same values as read-only arrays over the same memory; lists stay as they are."""
    if isinstance(values, Ragged):
        return values.over(read_only(values.values), np.asarray(read_only(values.offsets)))
    if not isinstance(values, np.ndarray) or not values.flags.writeable:
        return values
    view = values.view()
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


def _places(
    starts: NDArray[np.int64], lengths: NDArray[np.int64], offsets: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The source of each value of the result: its place there, shifted as its sequence is."""
    return np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)


# --- typed values with nulls, and parsed text, which has no dtypes ---


class _Entries(list[Any]):
    """A list of which parts are lists of the same kind."""

    __slots__ = ()

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        return self._with(found) if isinstance(index, slice) else found

    def take(self, indices: NDArray[np.int64]) -> Self:
        return self._with(map(super().__getitem__, indices.tolist()))

    def _with(self, entries: Iterable[Any]) -> Self:
        return type(self)(entries)


class WithNulls(_Entries):
    """A list of the values of a typed column that had a null when it was decoded.

    It keeps the type. A part of it without nulls becomes the same column as a part of a block without nulls:
    otherwise what a function gets would depend on where blocks were cut.

    Args:
        values: The entries: None for a null, the others as in the column without nulls.
        like: The column without nulls, with no entries.
    """

    __slots__ = ("like",)

    like: Column

    def __init__(self, values: Iterable[Any], like: Column) -> None:
        super().__init__(values)
        self.like = like

    def __reduce__(self) -> tuple[Callable[..., WithNulls], tuple[list[Any], Column]]:
        return WithNulls, (list(self), self.like)

    def _with(self, entries: Iterable[Any]) -> WithNulls:
        return WithNulls(entries, self.like)

    def join(self, columns: Sequence[Column]) -> WithNulls | None:
        """One column of several, with nulls or without; None if their types differ."""
        kind = _type_of(self.like)
        for column in columns:
            if _type_of(column.like if isinstance(column, WithNulls) else column) != kind:
                return None
        return WithNulls(chain.from_iterable(columns), self.like)

    def settle(self) -> Column:
        """The column without nulls, if no entry is or holds one; otherwise itself."""
        like = self.like
        if isinstance(like, np.ndarray):
            kind: type = like.dtype.type if like.ndim == 1 else np.ndarray
            whole = all(isinstance(entry, kind) for entry in self)
            return np.array(self, like.dtype).reshape(len(self), *like.shape[1:]) if whole else self
        values = like.values if isinstance(like, Ragged) else []
        if not isinstance(like, Ragged) or not all(isinstance(entry, type(values)) for entry in self):
            return self
        joined = join_columns([values[:0], *self])
        return self if joined is None else Ragged(joined, offsets_of(list(map(len, self))))


def _type_of(column: Column) -> object:
    if isinstance(column, Ragged):
        return (type(column), _type_of(column.values))
    return (column.dtype, column.shape[1:]) if isinstance(column, np.ndarray) else list


class IntegerLists(Ragged):
    """Lists of integers that all fit int64, held as one array.

    Indexing and iteration make new lists of ints, as in rows; code that can use an array, such as padding,
    uses ``flat`` and ``offsets``.
    """

    __slots__ = ()

    values: NDArray[np.int64]

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        return found if isinstance(index, slice) else _ints(np.asarray(found))

    def __iter__(self) -> Iterator[list[int]]:
        values = self.values
        return (_ints(values[start:stop]) for start, stop in pairwise(self.offsets.tolist()))

    def settle(self) -> Ragged:
        """The column for such lists."""
        return Ragged.over(self.values, self.offsets)


def _ints(array: NDArray[np.int64]) -> list[int]:
    ints: list[int] = array.tolist()
    return ints


class Objects(_Entries):
    """Any objects; the column that is made of them depends on all of them, as for rows."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Callable[..., Objects], tuple[list[Any]]]:
        return Objects, (list(self),)

    def join(self, columns: Sequence[Column]) -> Objects | None:
        alike = all(type(column) is Objects for column in columns)
        return Objects(chain.from_iterable(columns)) if alike else None

    def settle(self) -> Column:
        return column_of(self)


_KINDS = (Ragged, WithNulls, Objects)


# --- columns of values ---


def column_of(values: Sequence[Any]) -> Column:
    """One field of some samples as a column.

    - Python bools, ints and floats: an array of bool, int64 and float64; ints among floats are float64.
      NumPy scalars keep their dtype.
    - Lists and tuples, arrays and tensors of one dimension: a ``Ragged``, also where they are of equal
      length; of lists of lists a nested one. Empty ones take the dtype of the others; of lists without any
      value it is int64.
    - Arrays and tensors of several dimensions: stacked if their shapes are equal, a ``Ragged`` if they differ
      in the first dimension alone.
    - Anything else, and mixed or too large values: a list.
    """
    made: Column | None
    kinds = set(map(type, values))
    if not kinds:
        return np.zeros(0, np.int64)
    if kinds <= {list, tuple}:
        return Ragged(column_of(list(chain.from_iterable(values))), offsets_of(list(map(len, values))))
    if kinds <= {int, float} or kinds == {bool}:
        made = _of_numbers(values, kinds)
    elif kinds == {Ragged}:
        inner = join_columns(values)
        made = None if inner is None else Ragged(inner, offsets_of(list(map(len, values))))
    elif len(kinds) == 1 and issubclass(kind := kinds.pop(), np.number | np.bool_):
        made = np.array(values, kind)
    else:
        made = _of_arrays(values)
    return list(values) if made is None else made


def array_of(value: Any) -> NDArray[Any] | None:
    """An array, or a CPU tensor as an array over its memory; None for anything else, and for other dtypes."""
    if not isinstance(value, np.ndarray):
        numpy = getattr(value, "numpy", None)  # a tensor is known by its method: no torch in this room
        if numpy is None:
            return None
        try:
            value = numpy()
        except (RuntimeError, TypeError):  # gradients, other devices, layouts and dtypes
            return None
    return value if isinstance(value, np.ndarray) and value.dtype.kind in "biufcmM" else None


def _of_numbers(values: Sequence[Any], kinds: set[type]) -> NDArray[Any] | None:
    if kinds == {bool}:
        return np.array(values, np.bool_)
    if kinds == {int}:
        try:
            return np.array(values, np.int64)
        except OverflowError:
            return None
    if all(type(value) is float or abs(value) <= _MOST_EXACT for value in values):
        return np.array(values, np.float64)
    return None


def _of_arrays(values: Sequence[Any]) -> NDArray[Any] | Ragged | None:
    arrays: list[NDArray[Any]] = []
    for value in values:
        array = array_of(value)
        if array is None:
            return None
        arrays.append(array)
    shapes = {array.shape for array in arrays}
    if all(len(shape) == 1 for shape in shapes):
        full = [array for array in arrays if len(array)] or arrays[:1]
        alike = len({array.dtype for array in full}) == 1
        return Ragged(np.concatenate(full), offsets_of(list(map(len, arrays)))) if alike else None
    if len({array.dtype for array in arrays}) > 1 or len({len(shape) for shape in shapes}) > 1:
        return None
    if len(shapes) == 1:
        return np.stack(arrays)
    if len({shape[1:] for shape in shapes}) > 1:
        return None
    return Ragged(np.concatenate(arrays), offsets_of(list(map(len, arrays))))
