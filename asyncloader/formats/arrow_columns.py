"""Columns of Arrow's arrays, over the same memory where that holds what NumPy can see.

Law: what an entry becomes depends on the entry and the type of its column, never on its neighbours. A null is
None, and the column becomes a list; the other entries stay what they are in a column without nulls: numbers
are NumPy scalars of their dtype, sequences are arrays.

Buffers are read by https://arrow.apache.org/docs/format/Columnar.html, not by pyarrow's own ``to_numpy`` and
``fill_null``: if pandas is installed these import it, which takes half a second of a processor before the
first batch, in each process.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..blocks import Column, Ragged, WithNulls, read_only
from ..errors import FormatError
from .decoder import MAX_BLOCK_BYTES, MAX_BLOCK_SAMPLES


def check_pyarrow() -> None:
    """Raise if pyarrow is not installed, without importing it.

    Raises:
        ImportError: It is not installed.
    """
    if find_spec("pyarrow") is None:
        raise ImportError("Parquet and Arrow shards are read with pyarrow: pip install asyncloader[parquet]")


def arrow() -> Any:
    """The module ``pyarrow``.

    Raises:
        ImportError: It is not installed.
    """
    check_pyarrow()
    import pyarrow

    return pyarrow


@contextmanager
def pyarrow_errors(what: str, sample: int | None = None) -> Iterator[None]:
    """Raise a FormatError in place of what pyarrow raises for the bytes of a shard.

    Args:
        what: What cannot be read then, with the format before it.
        sample: The first sample that is lost, if the bytes are of samples.

    Raises:
        FormatError: pyarrow raised, or using its values did.
    """
    try:
        yield
    except FormatError:
        raise
    except (arrow().ArrowException, OSError, ValueError, OverflowError, IndexError) as error:
        how = str(error).partition("\n")[0]
        raise FormatError(f"{what} cannot be read: {how}", sample=sample) from error


def stored(array: Any, dtype: np.dtype[Any] | None = None, more: int = 0) -> NDArray[Any]:
    """The numbers in the array's own memory: one for each entry and ``more``; nulls have any value.

    The result is read-only.

    Args:
        array: Of integers, unless a dtype is given.
        dtype: Of the numbers in its memory.
        more: How many there are beyond those of its entries.
    """
    dtype = np.dtype(str(array.type)) if dtype is None else dtype
    buffer, count = array.buffers()[1], len(array) + more
    if buffer is None or not len(array):
        return np.frombuffer(bytes(count * dtype.itemsize), dtype)
    return np.frombuffer(memoryview(buffer).toreadonly(), dtype, count, array.offset * dtype.itemsize)


def bits(array: Any) -> NDArray[np.bool_]:
    """The values of an array of booleans, ``(n,) bool``; nulls have any value."""
    return _unpacked(array.buffers()[1], array)


def is_null(array: Any) -> NDArray[np.bool_]:
    """Where an array with a validity bitmap has nulls, ``(n,) bool``."""
    valid = array.buffers()[0]
    return np.zeros(len(array), np.bool_) if valid is None else ~_unpacked(valid, array)


def lengths(array: Any) -> NDArray[np.int64]:
    """How long each list, string or bytes value is, ``(n,) int64``: 0 where it is null."""
    kind = str(array.type)
    if kind.removeprefix("large_").partition("<")[0] in ("string", "binary", "list"):
        offsets = np.dtype(np.int64 if kind.startswith("large") else np.int32)
        found = np.diff(stored(array, offsets, more=1))
    else:
        found = stored(array.value_lengths())
    return np.where(is_null(array), 0, found).astype(np.int64)


def _unpacked(buffer: Any, array: Any) -> NDArray[np.bool_]:
    """The bits of a bitmap that are of the array's own entries."""
    if buffer is None or not len(array):
        return np.zeros(len(array), np.bool_)
    first, last = array.offset // 8, (array.offset + len(array) + 7) // 8
    unpacked = np.unpackbits(np.frombuffer(buffer, np.uint8, last - first, first), bitorder="little")
    begin = array.offset - 8 * first
    return unpacked[begin : begin + len(array)].view(np.bool_)


def tensors_of(array: Any, shape: tuple[int | None, ...]) -> Column:
    """The field for nested lists that are arrays.

    Args:
        array: A ``pyarrow.Array`` of lists of numbers, nested as deep as ``shape`` is long.
        shape: The shape of each entry; None for a first length that varies.

    Raises:
        ValueError: An entry has another shape, or a null inside. The message says which was found.
    """
    array = _plain(array)
    if not array.null_count:
        return read_only(_of_shape(array, shape))
    entries = _between_nulls(array, read_only(_of_shape(array.drop_null(), shape)))
    return WithNulls(entries, tensors_of(array.slice(0, 0), shape))


def column_of(array: Any) -> Column:
    """The column of a ``pyarrow.Array``; ``docs/reference/formats.md`` has the table of types.

    Arrays are read-only even if pyarrow's memory is writable, since other samples are in it too.
    """
    pa = arrow()
    types, kind = pa.types, array.type
    if getattr(kind, "extension_name", "") == "arrow.fixed_shape_tensor":
        return _of_tensors(array)
    if isinstance(array, pa.ExtensionArray | pa.DictionaryArray | pa.RunEndEncodedArray):
        return column_of(_plain(array))
    values: Column
    if (dtype := _dtype_of(kind)) is not None:
        values = stored(array, dtype)
        # NumPy's dates and times have 64 bits.
        if types.is_date32(kind):
            values = read_only(values.astype("datetime64[D]"))
        elif types.is_time32(kind):
            values = read_only(values.astype(f"timedelta64[{kind.unit}]"))
    elif types.is_boolean(kind):
        values = read_only(bits(array))
    elif types.is_struct(kind):
        values = _of_struct(array)
    elif types.is_map(kind):
        values = _of_map(array)
    elif hasattr(array, "value_lengths"):
        values = _of_lists(array)
    else:  # strings, bytes, decimals, unions, intervals, and a column of nothing but nulls
        objects: list[Any] = array.to_pylist()
        return objects
    if not array.null_count:
        return values
    entries = list(values)
    for index in np.flatnonzero(is_null(array)).tolist():
        entries[index] = None
    return entries


def _plain(array: Any) -> Any:
    """The same values as an array without encodings and extension types."""
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
    """The dtype of the numbers in the array's memory; None if NumPy has none for them."""
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


# --- sequences ---


def _of_tensors(array: Any) -> Column:
    if not array.null_count:
        return read_only(array.to_numpy_ndarray())
    # pyarrow makes no tensor of values that are nulls
    present = arrow().ExtensionArray.from_storage(array.type, array.storage.drop_null())
    return _between_nulls(array, read_only(present.to_numpy_ndarray()))


def _between_nulls(array: Any, present: Column) -> list[Any]:
    """The entries that are present, and None where the array has a null."""
    left = iter(present)
    return [next(left) if there else None for there in array.is_valid().to_pylist()]


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
    return Ragged.over(values.reshape(-1, *rest), np.append(0, np.cumsum(counts[0])))


def _of_lists(array: Any) -> Column:
    """Lists of any kind; each is the column of its values. Read-only."""
    types, kind, count = arrow().types, array.type, len(array)
    size = kind.list_size if types.is_fixed_size_list(kind) and not array.null_count else None
    if size is not None:
        inside, offsets = array.values.slice(array.offset * size, count * size), np.arange(count + 1) * size
    elif array.null_count or not (types.is_list(kind) or types.is_large_list(kind)):
        # Values may lie in any order, and may be anything where a list is null.
        offsets = np.append(0, np.cumsum(lengths(array)))
        # flatten() cannot make an empty array of an extension type.
        inside = array.flatten() if offsets[-1] else array.values.slice(0, 0)
    else:  # flatten() would import pyarrow.compute, which takes longer than a block
        offsets = stored(array.offsets).astype(np.int64)
        inside = array.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
        offsets -= offsets[0]
    values = column_of(inside)
    if size is not None and isinstance(values, np.ndarray):
        return values.reshape(count, size, *values.shape[1:])
    if isinstance(values, list) and not isinstance(column_of(inside.slice(0, 0)), list):
        # There are nulls in arrays. A list without them is an array whatever lists are beside it.
        spans = pairwise(offsets.tolist())
        return [column_of(inside.slice(start, stop - start)) for start, stop in spans]
    offsets.flags.writeable = False
    return Ragged.over(values, offsets)


# --- records ---


def _of_struct(array: Any) -> Column:
    names = [array.type.field(index).name for index in range(array.type.num_fields)]
    columns = [list(column_of(column)) for column in array.flatten()]
    rows = zip(*columns, strict=True) if columns else [()] * len(array)
    return [dict(zip(names, row, strict=True)) for row in rows]


def _of_map(array: Any) -> Column:
    offsets = stored(array.offsets).astype(np.int64)
    start, stop = int(offsets[0]), int(offsets[-1])
    keys, items = (column_of(each.slice(start, stop - start)) for each in (array.keys, array.items))
    pairs = list(zip(keys, items, strict=True))
    return [pairs[begin:end] for begin, end in pairwise((offsets - start).tolist())]


# In the name of a type, at any depth. Another type within is only named.
_SHARED = re.compile("dictionary<|run_end_encoded<|_view|extension<")

# What an entry takes beside its values.
_ENTRY_BYTES = 16


def cut(table: Any) -> Iterator[tuple[int, int]]:
    """Where each block of a ``pyarrow.RecordBatch`` begins, and how many rows it has.

    Blocks have some MiB, or one row.
    """
    if not len(table):
        return
    ends, even, at = None, 0, 0
    if any(map(_shares, table.schema.types)):  # of which older versions of pyarrow do not know the size
        ends = np.cumsum(sum(map(_row_bytes, table.columns)))
    else:
        even = len(table) * MAX_BLOCK_BYTES // max(table.nbytes, 1)
    while at < len(table):
        fit = even
        if ends is not None:
            before = ends[at - 1] if at else 0
            fit = int(np.searchsorted(ends, before + MAX_BLOCK_BYTES, "right")) - at
        size = max(1, min(fit, MAX_BLOCK_SAMPLES, len(table) - at))
        yield at, size
        at += size


def _shares(kind: Any) -> bool:
    """Whether several rows may have one value in memory."""
    if isinstance(kind, arrow().BaseExtensionType):
        return _shares(kind.storage_type)
    return _SHARED.search(str(kind)) is not None


def _row_bytes(array: Any) -> NDArray[np.int64]:
    """About how many bytes each row takes when it is decoded."""
    pa = arrow()
    types, kind = pa.types, array.type
    if isinstance(array, pa.ExtensionArray):
        return _row_bytes(array.storage)
    if types.is_dictionary(kind):
        # One more entry, for nulls.
        of_values = np.append(_row_bytes(array.dictionary), 0)
        places = np.where(is_null(array.indices), len(of_values) - 1, stored(array.indices))
        taken: NDArray[np.int64] = of_values[places]
        return taken
    if isinstance(array, pa.RunEndEncodedArray):
        edges = np.clip(stored(array.run_ends).astype(np.int64) - array.offset, 0, len(array))
        return np.repeat(_row_bytes(array.values), np.diff(edges, prepend=0))
    if types.is_struct(kind):
        return sum(map(_row_bytes, array.flatten()), np.zeros(len(array), np.int64))
    if types.is_map(kind):  # which have no value_lengths
        ends = np.append(0, np.cumsum(_row_bytes(array.keys) + _row_bytes(array.items)))
        of_maps: NDArray[np.int64] = np.diff(ends[stored(array.offsets)])
        return of_maps + _ENTRY_BYTES
    if str(kind) in ("string_view", "binary_view"):  # each view begins with its length
        sizes = np.frombuffer(array.buffers()[1], np.int32)[array.offset * 4 :: 4][: len(array)]
        return sizes.astype(np.int64) + _ENTRY_BYTES
    if hasattr(array, "value_lengths"):
        of_lists = lengths(array)
        ends = np.append(0, np.cumsum(_row_bytes(array.flatten())))
        stops = np.cumsum(of_lists)
        within: NDArray[np.int64] = ends[stops] - ends[stops - of_lists]
        return within + _ENTRY_BYTES
    if str(kind) in ("string", "binary", "large_string", "large_binary"):
        return lengths(array) + _ENTRY_BYTES
    return np.full(len(array), array.nbytes // max(len(array), 1) + 1, np.int64)


_ARRAY = re.compile(r"Array[2-5]D")
_FILES = frozenset({"Image", "Audio", "Video", "Pdf"})
_PARTS = {"bytes", "path"}

_Shape = tuple[int | None, ...]


@dataclass(frozen=True)
class Features:
    """What is known of columns beyond their types.

    Attributes:
        shapes: Shape of the arrays in a column; None for a first length that varies.
        files: Columns of files.
        class_names: The names of the classes of a column of labels, from class 0 on.
    """

    shapes: Mapping[str, _Shape] = field(default_factory=dict)
    files: frozenset[str] = frozenset()
    class_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def field_of(self, name: str, array: Any) -> Column:
        """The field of a block for a column's ``pyarrow.Array``; it keeps its type despite nulls.

        Raises:
            FormatError: An entry does not have the shape in the schema's metadata.
        """
        if (shape := self.shapes.get(name)) is not None:
            try:
                return tensors_of(array, shape)
            except ValueError as error:
                raise FormatError(
                    f"column {name!r}: expected arrays of shape {shape}, as datasets has noted in the "
                    f"schema, found {error}"
                ) from error
        column = column_of(array)
        if not isinstance(column, list):
            return column
        if name in self.files:
            return [_without_null_path(value) for value in column]
        like = column_of(array.slice(0, 0))
        return column if isinstance(like, list) else WithNulls(column, like)


def features_of(schema: Any) -> Features:
    """The features in the metadata of a ``pyarrow.Schema``; none if they are missing or in another format."""
    try:
        noted = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        kinds = {str(name): str(feature["_type"]) for name, feature in noted.items() if "_type" in feature}
        shapes = dict(_shapes(noted, kinds))
        classes = {
            name: tuple(map(str, noted[name]["names"]))
            for name, kind in kinds.items()
            if kind == "ClassLabel"
        }
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
        return Features()
    return Features(shapes, frozenset(name for name, kind in kinds.items() if kind in _FILES), classes)


def _shapes(noted: Mapping[str, Any], kinds: Mapping[str, str]) -> Iterator[tuple[str, _Shape]]:
    for name, kind in kinds.items():
        if not _ARRAY.fullmatch(kind):
            continue
        first, *others = shape = tuple(noted[name]["shape"])
        if all(type(length) is int and length > 0 for length in (1 if first is None else first, *others)):
            yield name, shape


def _without_null_path(value: Any) -> Any:
    """A file without its path if that is a null, which no batch could hold."""
    if type(value) is dict and value.keys() == _PARTS and value["path"] is None:
        return {"bytes": value["bytes"]}
    return value
