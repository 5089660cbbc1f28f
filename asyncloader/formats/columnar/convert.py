"""Columns of Arrow's arrays, over the same memory where that holds what NumPy can see.

Law: what an entry becomes depends on the entry and the type of its column, never on its neighbours. A null is
None, and makes a list of the column; the others stay what they are in a column without nulls: numbers NumPy
scalars of their dtype, sequences arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...blocks import Column, Ragged, WithNulls, read_only
from .buffers import bits, integers, is_null, lengths
from .importing import arrow

__all__ = ["column_of", "field_of", "tensors_of"]


def field_of(array: Any) -> Column:
    """The field of a block that a ``pyarrow.Array`` becomes: its column, typed despite nulls."""
    column = column_of(array)
    if isinstance(column, list) and not isinstance(like := column_of(array.slice(0, 0)), list):
        return WithNulls(column, like)
    return column


def tensors_of(array: Any, shape: tuple[int | None, ...]) -> Column:
    """The field that lists in lists become which are arrays.

    Args:
        array: A ``pyarrow.Array`` of lists of numbers, nested as deep as ``shape`` is long.
        shape: Of each of them; the first length is None where it may be any.

    Raises:
        ValueError: They have another shape, or nulls inside; says what was found.
    """
    array = _plain(array)
    if not array.null_count:
        return read_only(_of_shape(array, shape))
    present, left = array.is_valid().to_pylist(), iter(read_only(_of_shape(array.drop_null(), shape)))
    return WithNulls(
        [next(left) if there else None for there in present], tensors_of(array.slice(0, 0), shape)
    )


def column_of(array: Any) -> Column:
    """The column of a ``pyarrow.Array``; ``docs/reference/formats.md`` has the table of types.

    Arrays are read-only, also where pyarrow's memory could be written: rows of other samples are in it.
    """
    return read_only(_column_of(array))


def _column_of(array: Any) -> Column:
    pa = arrow()
    if getattr(array.type, "extension_name", "") == "arrow.fixed_shape_tensor":
        return _of_tensors(array)
    array = _plain(array)
    kind = array.type
    if (dtype := _dtype_of(kind)) is not None:
        return _numbers(array, dtype)
    if pa.types.is_boolean(kind):
        return _with_nulls(array, bits(array))
    for is_kind, convert in _CONVERTED:
        if getattr(pa.types, is_kind, _is_none)(kind):
            return convert(array)
    # Strings, bytes, decimals, unions, intervals, and a column of nothing but nulls.
    values: list[Any] = array.to_pylist()
    return values


def _is_none(_: Any) -> bool:
    return False  # a type that this version of pyarrow does not know


def _plain(array: Any) -> Any:
    """The same values in an array of their own type."""
    pa = arrow()
    while True:
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        elif isinstance(array, pa.DictionaryArray):
            array = array.dictionary_decode()
        elif isinstance(array, pa.RunEndEncodedArray):
            import pyarrow.compute

            array = pyarrow.compute.run_end_decode(array)
        else:
            return array


def _dtype_of(kind: Any) -> np.dtype[Any] | None:
    """What NumPy calls the numbers in the array's memory; None if it has no name for them."""
    types = arrow().types
    if types.is_integer(kind) or types.is_floating(kind):
        dtype: np.dtype[Any] = np.dtype(kind.to_pandas_dtype())
        return dtype
    if types.is_timestamp(kind):
        return np.dtype(f"datetime64[{kind.unit}]")
    if types.is_date(kind):
        return np.dtype("datetime64[ms]" if kind.bit_width == 64 else "int32")
    if types.is_duration(kind) or types.is_time64(kind):
        return np.dtype(f"timedelta64[{kind.unit}]")
    return np.dtype("int32") if types.is_time32(kind) else None


def _numbers(array: Any, dtype: np.dtype[Any]) -> Column:
    buffer = array.buffers()[1]
    if len(array) == 0 or buffer is None:
        values = np.zeros(len(array), dtype)
    else:
        values = np.frombuffer(buffer, dtype, len(array), array.offset * dtype.itemsize)
    types = arrow().types
    # NumPy's have 64 bits.
    if types.is_date32(array.type):
        values = values.astype("datetime64[D]")
    elif types.is_time32(array.type):
        values = values.astype(f"timedelta64[{array.type.unit}]")
    return _with_nulls(array, values)


def _with_nulls(array: Any, values: Column) -> Column:
    """``values``, and None where the array has a null."""
    if not array.null_count:
        return values
    entries = list(values)
    for index in np.flatnonzero(is_null(array)).tolist():
        entries[index] = None
    return entries


# --- sequences ---


def _of_tensors(array: Any) -> Column:
    whole = array
    if array.null_count:  # whose values are nulls too, which pyarrow makes no tensor of
        whole = arrow().ExtensionArray.from_storage(array.type, array.storage.drop_null())
    tensors: NDArray[Any] = whole.to_numpy_ndarray()
    if not array.null_count:
        return tensors
    present, left = array.is_valid().to_pylist(), iter(tensors)
    return [next(left) if there else None for there in present]


def _of_shape(array: Any, shape: tuple[int | None, ...]) -> Column:
    first, *rest = shape
    inside, counts = array, []
    for size in shape:
        if not hasattr(inside, "value_lengths"):
            raise ValueError("lists that are not nested as deep")
        if inside.null_count:
            raise ValueError("a null within an array")
        counts.append(lengths(inside))
        if size is not None and (counts[-1] != size).any():
            raise ValueError(f"one of length {counts[-1][counts[-1] != size][0]} in place of {size}")
        inside = _plain(inside.flatten())
    values = column_of(inside)
    if not isinstance(values, np.ndarray) or values.ndim > 1:
        raise ValueError("a null within an array" if inside.null_count else f"values of type {inside.type}")
    if first is not None:
        return values.reshape(len(array), *shape)
    return Ragged(values.reshape(-1, *rest), np.append(0, np.cumsum(counts[0])))


def _of_list(array: Any) -> Column:
    if array.null_count:
        return _of_view(array)
    offsets = integers(array.offsets).astype(np.int64)
    start, stop = int(offsets[0]), int(offsets[-1])
    return _sequences(array, array.values.slice(start, stop - start), offsets - start)


def _of_fixed_size_list(array: Any) -> Column:
    if array.null_count:
        return _of_view(array)
    size = array.type.list_size
    inside = array.values.slice(array.offset * size, len(array) * size)
    values = column_of(inside)
    if isinstance(values, np.ndarray):
        return values.reshape(len(array), size, *values.shape[1:])
    return _sequences(array, inside, np.arange(len(array) + 1, dtype=np.int64) * size)


def _of_view(array: Any) -> Column:
    """Of lists whose values may lie in any order, or are not to be looked at where a list is null."""
    return _sequences(array, array.flatten(), np.append(0, np.cumsum(lengths(array))))


def _sequences(array: Any, inside: Any, offsets: NDArray[np.int64]) -> Column:
    """Entry ``i`` is the column of the values inside from ``offsets[i]`` up to ``offsets[i + 1]``."""
    if not _has_nulls_in_arrays(inside):
        return _with_nulls(array, Ragged(column_of(inside), offsets))
    spans = pairwise(offsets.tolist())
    return _with_nulls(array, [column_of(inside.slice(start, stop - start)) for start, stop in spans])


def _has_nulls_in_arrays(array: Any) -> bool:
    """Whether its column is a list only because values are missing; else an array or a ``Ragged``."""
    types = arrow().types
    array = _plain(array)
    if types.is_boolean(array.type) or _dtype_of(array.type) is not None:
        return bool(array.null_count)
    if types.is_struct(array.type) or types.is_map(array.type) or not hasattr(array, "value_lengths"):
        return False
    return bool(array.null_count) or _has_nulls_in_arrays(array.flatten())


# --- records ---


def _of_struct(array: Any) -> Column:
    names = [array.type.field(index).name for index in range(array.type.num_fields)]
    columns = [list(column_of(column)) for column in array.flatten()]
    rows = zip(*columns, strict=True) if columns else [()] * len(array)
    return _with_nulls(array, [dict(zip(names, row, strict=True)) for row in rows])


def _of_map(array: Any) -> Column:
    offsets = integers(array.offsets).astype(np.int64)
    start, stop = int(offsets[0]), int(offsets[-1])
    keys, items = (column_of(each.slice(start, stop - start)) for each in (array.keys, array.items))
    pairs = list(zip(keys, items, strict=True))
    return _with_nulls(array, [pairs[begin:end] for begin, end in pairwise((offsets - start).tolist())])


# By the name of the question that pyarrow.types answers.
_CONVERTED: tuple[tuple[str, Callable[[Any], Column]], ...] = (
    ("is_list", _of_list),
    ("is_large_list", _of_list),
    ("is_fixed_size_list", _of_fixed_size_list),
    ("is_list_view", _of_view),
    ("is_large_list_view", _of_view),
    ("is_struct", _of_struct),
    ("is_map", _of_map),
)
