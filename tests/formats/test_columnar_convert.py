"""Arrow's arrays as columns: the table in docs/reference/formats.md, line by line."""

from __future__ import annotations

import datetime as dt
import pickle
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from columnar_files import plain, rows_of
from hypothesis import given
from hypothesis import strategies as st

from asyncloader.blocks import Column, Columns, OffsetTrail, Ragged, WithNulls, columns_of, join
from asyncloader.formats.arrow_columns import Features, column_of

NUMBERS = [
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float",
    "double",
    "halffloat",
]


def field_of(array: pa.Array) -> Column:
    return Features().field_of("x", array)


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_keep_their_dtype_over_the_same_memory(name: str) -> None:
    array = pa.array([0, 1, 100], pa.float64()).cast(pa.type_for_alias(name))
    column = column_of(array.slice(1))
    assert isinstance(column, np.ndarray) and column.tolist() == [1, 100]
    assert column.dtype == array.type.to_pandas_dtype()
    assert column.ctypes.data == array.buffers()[1].address + column.itemsize
    with_null = column_of(pa.concat_arrays([array, pa.nulls(1, array.type)]))
    assert with_null == [0, 1, 100, None]
    assert [type(each) for each in with_null[:3]] == [column.dtype.type] * 3


MOMENT = dt.datetime(2026, 1, 2, 3, 4, 5)

OTHERS = [
    (pa.array([True, False]), "bool", [True, False]),
    *((pa.array([MOMENT], pa.timestamp(unit, zone)), f"datetime64[{unit}]", [MOMENT])
      for unit in ("s", "ms", "us") for zone in (None, "UTC")),
    (pa.array([1], pa.timestamp("ns")), "datetime64[ns]", [1]),
    (pa.array([MOMENT.date()], pa.date32()), "datetime64[D]", [MOMENT.date()]),
    (pa.array([MOMENT.date()], pa.date64()), "datetime64[ms]", [dt.datetime(2026, 1, 2)]),
    (pa.array([dt.timedelta(1)], pa.duration("us")), "timedelta64[us]", [dt.timedelta(1)]),
    (pa.array([dt.time(1)], pa.time32("s")), "timedelta64[s]", [dt.timedelta(hours=1)]),
    (pa.array([dt.time(1)], pa.time64("us")), "timedelta64[us]", [dt.timedelta(hours=1)]),
    (pa.array([[1, 2], [3, 4]], pa.list_(pa.int16(), 2)), "int16", [[1, 2], [3, 4]]),
    (pa.array(["a", "b", "a"]).dictionary_encode(), None, ["a", "b", "a"]),
    (pa.array([5, 6, 5]).dictionary_encode(), "int64", [5, 6, 5]),
    (pc.run_end_encode(pa.array([1, 1, 2])), "int64", [1, 1, 2]),
    (pa.ExtensionArray.from_storage(pa.uuid(), pa.array([bytes(16)], pa.binary(16))), None, [bytes(16)]),
    (pa.ListArray.from_arrays(
        pa.array([0, 0], pa.int32()), pa.ExtensionArray.from_storage(pa.uuid(), pa.array([], pa.binary(16))),
        mask=pa.array([True])), None, [None]),
    (pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(8.0).reshape(2, 2, 2)), "float64",
     [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]),
    *((pa.array(["a", None], kind), None, ["a", None])
      for kind in (pa.string(), pa.large_string(), pa.string_view())),
    *((pa.array([b"a", None], kind), None, [b"a", None])
      for kind in (pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(1))),
    *((pa.array([Decimal("1.25")], kind), None, [Decimal("1.25")])
      for kind in (pa.decimal128(5, 2), pa.decimal256(50, 2))),
    (pa.array([[("a", 1)], None, []], pa.map_(pa.string(), pa.int32())), None, [[("a", 1)], None, []]),
    (pa.array([{"x": 1}, None]), None, [{"x": 1}, None]),
    (pa.nulls(2), None, [None, None]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("array", "dtype", "values"), OTHERS, ids=lambda each: str(getattr(each, "type", ""))
)
def test_other_types_become_arrays_or_lists(array: pa.Array, dtype: str | None, values: list[Any]) -> None:
    column = column_of(array)
    if dtype is None:
        assert isinstance(column, list) and column == values
    else:
        assert isinstance(column, np.ndarray) and column.dtype == dtype
        assert dtype.endswith("[ns]") or column.tolist() == values


@pytest.mark.parametrize(
    "kind", [pa.list_, pa.large_list, pa.list_view, pa.large_list_view], ids=lambda kind: kind.__name__
)
def test_lists_become_ragged_whatever_they_are_called(kind: Any) -> None:
    column = column_of(pa.array([[9], [1, 2], [], [3]], kind(pa.int32())).slice(1))
    assert isinstance(column, Ragged) and column.tolist() == [[1, 2], [], [3]]
    assert column.values.dtype == np.int32
    words = column_of(pa.array([["a"], ["b", None]], kind(pa.string())))
    assert isinstance(words, Ragged) and words.tolist() == [["a"], ["b", None]]
    nested = column_of(pa.array([[[1], []], [[2, 3]]], kind(kind(pa.int32()))))
    assert isinstance(nested, Ragged) and isinstance(nested.values, Ragged)


VALUES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int32(), st.integers(-9, 9)), (pa.float64(), st.floats(-9, 9)), (pa.bool_(), st.booleans()),
    (pa.string(), st.text("ab", max_size=3)), (pa.timestamp("s"), st.integers(0, 9)),
    (pa.dictionary(pa.int8(), pa.string()), st.sampled_from("abc")),
]  # fmt: skip


@st.composite
def arrays(draw: st.DrawFn) -> pa.Array:
    """Any nesting of lists and structs, with nulls on every level or none."""
    kind, values = draw(st.sampled_from(VALUES))
    for _ in range(draw(st.integers(0, 3))):
        if draw(st.booleans()):
            values = st.none() | values
        shape = draw(st.sampled_from(["list", "view", "pair", "struct"]))
        if shape == "struct":
            kind, values = pa.struct([("x", kind)]), st.fixed_dictionaries({"x": values})
        elif shape == "pair":
            kind, values = pa.list_(kind, 2), st.lists(values, min_size=2, max_size=2)
        else:
            kind, values = (
                (pa.list_ if shape == "list" else pa.large_list)(kind),
                st.lists(values, max_size=3),
            )
    return pa.array(draw(st.lists(st.none() | values if draw(st.booleans()) else values, max_size=6)), kind)


@given(arrays(), st.integers(0, 6), st.integers(0, 6))
def test_an_entry_depends_on_nothing_beside_it(array: pa.Array, start: int, stop: int) -> None:
    whole = Columns({"x": column_of(array)}, OffsetTrail(0, None)).rows()
    assert [plain(row) for row in whole] == rows_of(pa.table({"x": array}))
    part = Columns({"x": column_of(array.slice(start, max(0, stop - start)))}, OffsetTrail(0, None)).rows()
    assert list(map(told, part)) == list(map(told, whole[start:stop]))


@given(arrays(), st.lists(st.integers(0, 6), max_size=3), st.integers(0, 6), st.integers(0, 6))
def test_a_chunk_has_columns_of_one_kind_however_blocks_were_cut(
    array: pa.Array, cuts: list[int], start: int, stop: int
) -> None:
    stop = min(stop, len(array))
    start = min(start, stop)
    edges = sorted({start, stop, *(cut for cut in cuts if start < cut < stop)})
    blocks = [
        Columns({"x": field_of(array.slice(at, end - at))}, OffsetTrail(at, None))
        for at, end in pairwise(edges)
    ] or [Columns({"x": field_of(array.slice(start, 0))}, OffsetTrail(start, None))]
    joined = columns_of(join(blocks))["x"]
    whole = Columns({"x": field_of(array)}, OffsetTrail(0, None))
    for block in (whole.part(start, stop), whole.take(range(start, stop))):
        column = columns_of(block)["x"]
        assert kind_of(column) == kind_of(joined)
        assert list(map(told, column)) == list(map(told, joined))


def test_a_list_of_fixed_size_is_an_array_beside_rows_with_nulls() -> None:
    array = pa.array([None, [1, 2], [3, 4], [5, 6]], pa.list_(pa.int8(), 2))
    blocks = [Columns({"x": field_of(array.slice(at, 2))}, OffsetTrail(at, None)) for at in (0, 2)]
    column = columns_of(join(blocks).part(1, 3))["x"]
    assert kind_of(column) == ("array", "|i1", (2,)) and np.asarray(column).tolist() == [[1, 2], [3, 4]]
    assert columns_of(join(blocks))["x"][0] is None
    again = pickle.loads(pickle.dumps(field_of(array)))
    part = Columns({"x": again}, OffsetTrail(0, None)).part(1, 4)
    assert again[0] is None and kind_of(columns_of(part)["x"]) == ("array", "|i1", (2,))


def test_tensors_keep_their_shape_beside_a_null() -> None:
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(8.0).reshape(2, 2, 2))
    storage = pa.concat_arrays([tensors.storage, pa.nulls(1, tensors.type.storage_type), tensors.storage])
    column = field_of(pa.ExtensionArray.from_storage(tensors.type, storage).slice(1))
    assert [None if each is None else each.tolist() for each in column] == [
        [[4, 5], [6, 7]], None, [[0, 1], [2, 3]], [[4, 5], [6, 7]],
    ]  # fmt: skip
    part = Columns({"x": column}, OffsetTrail(0, None)).part(2, 4)
    assert kind_of(columns_of(part)["x"]) == ("array", "<f8", (2, 2))


def test_no_array_can_be_written_that_is_over_memory_which_can_be() -> None:
    """pyarrow has Parquet's in such memory, and Arrow's in the bytes of the shard."""
    numbers = pa.Array.from_buffers(pa.int64(), 4, [None, pa.py_buffer(bytearray(32))])
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 4], pa.int32()), numbers)
    flags = pa.array([True, False])
    ragged: Any = column_of(lists)
    for array in (column_of(numbers), column_of(flags), ragged.values, ragged[1], ragged.offsets):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def kind_of(column: Any) -> Any:
    if isinstance(column, Ragged):
        return ("ragged", kind_of(column.values))
    return ("array", column.dtype.str, column.shape[1:]) if isinstance(column, np.ndarray) else "list"


def told(value: Any) -> Any:
    """A value with the types of all that is in it."""
    if isinstance(value, dict):
        return {name: told(each) for name, each in value.items()}
    if isinstance(value, np.ndarray):
        return ("array", value.dtype.str, value.shape, value.tolist())
    if isinstance(value, list | Ragged):
        return (type(value).__name__, [told(each) for each in value])
    return (type(value).__name__, value)


@pytest.mark.parametrize(
    ("lists", "is_typed"),
    [
        ([[1], None, [2, 3]], True),
        ([["a"], None, ["b", "c"]], True),
        ([[["a"]], None, [["b"], []]], True),
        ([[1], [None, 2], [3]], False),  # a null within an entry is in no array
    ],
)
def test_entries_that_are_not_null_become_a_typed_column_again(lists: list[Any], is_typed: bool) -> None:
    field = field_of(pa.array(lists))
    assert isinstance(field, WithNulls) and field.settle() is field
    entries = WithNulls([entry for entry in field if entry is not None], field.like)
    settled = entries.settle()
    assert isinstance(settled, Ragged) is is_typed
    assert [plain(entry) for entry in settled] == [entry for entry in lists if entry is not None]
