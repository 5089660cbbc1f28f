"""Makes columns of rows. Pure.

What sequences become goes by their type, not by their lengths: a function that works on columns would else
get another kind wherever the sequences of a chunk happen to be of one length, or there is only one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .block import Block, Column
from .columns import Columns
from .joining import join_columns
from .nulls import WithNulls
from .parsed import IntegerLists, Objects
from .ragged import Ragged, offsets_of, read_only

__all__ = ["array_of", "column_of", "columns_of"]

# Beyond it not every integer is a float64.
_MOST_EXACT = 1 << 53


def columns_of(block: Block) -> dict[str, Column]:
    """The columns of a block, to be given to a function: of rows they are made, see ``column_of``.

    The dict is the function's own. The memory is not, where the block is of columns: other blocks may be over
    it. So arrays are read-only, and those made of rows too, lest a function that writes be found out by some
    formats only.

    Raises:
        TypeError: A sample is no mapping.
        ValueError: The samples have no fields, or not all the same.
    """
    if isinstance(block, Columns):
        return {name: read_only(_settled(column)) for name, column in block.fields.items()}
    rows = block.rows()
    for index, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise TypeError(
                f"expected samples that are mappings, found {type(row).__qualname__} at "
                f"{block.trail.place(index)}; make them dicts with .map"
            )
        if row.keys() != rows[0].keys() or not row:
            raise ValueError(
                f"expected the same fields in all samples, found {list(rows[0])} in {block.trail.place(0)} "
                f"and {list(row)} in {block.trail.place(index)}; make them alike with .select or .map"
            )
    return {name: read_only(column_of([row[name] for row in rows])) for name in rows[0]}


def _settled(column: Column) -> Column:
    """The column that a function is given of one in a block."""
    if isinstance(column, WithNulls | IntegerLists):
        return column.settle()
    return column_of(column) if isinstance(column, Objects) else column


def column_of(values: Sequence[Any]) -> Column:
    """One field of some samples as a column.

    - Python bools, ints and floats: an array of bool, int64 and float64; ints among floats are float64.
      NumPy scalars keep their dtype.
    - Lists and tuples, arrays and tensors of one dimension: a ``Ragged``, also where they are of equal
      length; of lists of lists a nested one. Empty ones take the dtype of the others; of lists without any
      value it is int64.
    - Arrays and tensors of several dimensions: stacked if their shapes are equal, a ``Ragged`` if they differ
      in the first dimension alone.
    - Whatever else there is, and what is mixed or too large: a list.
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
    """An array, or a CPU tensor as one over its memory; None for whatever else, and what NumPy has not."""
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
