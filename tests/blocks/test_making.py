"""What rows become as columns."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from drawn_columns import columns, plain
from hypothesis import given

from asyncloader.blocks import Column, Columns, OffsetTrail, Ragged, Rows, column_of, columns_of


class Point(NamedTuple):
    x: int
    y: int


def told(column: Column) -> Any:
    """A column's kind, dtype and values."""
    if isinstance(column, Ragged):
        return ("Ragged", column.lengths.tolist(), told(column.flat))
    if isinstance(column, np.ndarray):
        return (column.dtype.name, column.tolist())
    return [repr(value) for value in column]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], ("int64", [])),
        ([True, False], ("bool", [True, False])),
        ([1, 2], ("int64", [1, 2])),
        ([0.5, 1.0], ("float64", [0.5, 1.0])),
        ([1, 0.5], ("float64", [1.0, 0.5])),
        ([1 << 60, 0.5], ["1152921504606846976", "0.5"]),
        ([1 << 70, 1], ["1180591620717411303424", "1"]),
        ([True, 1], ["True", "1"]),
        ([np.int16(1), np.int16(2)], ("int16", [1, 2])),
        ([np.float32(1), np.float32(2)], ("float32", [1, 2])),
        ([np.int16(1), np.int32(2)], ["np.int16(1)", "np.int32(2)"]),
        (["a", "b"], ["'a'", "'b'"]),
        ([b"a", b"b"], ["b'a'", "b'b'"]),
        ([None, 1], ["None", "1"]),
        ([{"a": 1}, {"a": 2}], ["{'a': 1}", "{'a': 2}"]),
        ([Point(1, 2)], ["Point(x=1, y=2)"]),
        ([[1, 2], [3]], ("Ragged", [2, 1], ("int64", [1, 2, 3]))),
        ([[1, 2], [3, 4]], ("Ragged", [2, 2], ("int64", [1, 2, 3, 4]))),
        ([[], []], ("Ragged", [0, 0], ("int64", []))),
        ([[], [0.5]], ("Ragged", [0, 1], ("float64", [0.5]))),
        ([(1, 2), [3]], ("Ragged", [2, 1], ("int64", [1, 2, 3]))),
        ([["a"], ["b", "c"]], ("Ragged", [1, 2], ["'a'", "'b'", "'c'"])),
        ([[[1], [2, 3]], [[]]], ("Ragged", [2, 1], ("Ragged", [1, 2, 0], ("int64", [1, 2, 3])))),
        ([[1], None], ["[1]", "None"]),
        ([np.zeros(1, np.int8), np.ones(2, np.int8)], ("Ragged", [1, 2], ("int8", [0, 1, 1]))),
        ([np.zeros(1, np.int8), np.ones(1, np.int8)], ("Ragged", [1, 1], ("int8", [0, 1]))),
        ([np.zeros(1, np.int8), np.ones(1, np.int16)], ["array([0], dtype=int8)", "array([1], dtype=int16)"]),
        ([np.ones(1, np.int8), np.zeros(0)], ("Ragged", [1, 0], ("int8", [1]))),
        ([torch.tensor([]), np.ones(1, np.int8)], ("Ragged", [0, 1], ("int8", [1]))),
        ([np.zeros(0, np.int8), np.zeros(0)], ("Ragged", [0, 0], ("int8", []))),
        ([np.zeros((1, 2)), np.ones((1, 2))], ("float64", [[[0, 0]], [[1, 1]]])),
        ([np.zeros((1, 2)), np.ones((2, 2))], ("Ragged", [1, 2], ("float64", [[0, 0], [1, 1], [1, 1]]))),
        ([np.zeros((1, 2)), np.ones((1, 1))], ["array([[0., 0.]])", "array([[1.]])"]),
        ([np.array(["a"])], ["array(['a'], dtype='<U1')"]),
        ([np.array(1), np.array(2)], ("int64", [1, 2])),
        ([torch.tensor(1), torch.tensor(2)], ("int64", [1, 2])),
        ([torch.zeros(2), np.ones(1, np.float32)], ("Ragged", [2, 1], ("float32", [0, 0, 1]))),
        ([torch.zeros(1, dtype=torch.bfloat16)], ["tensor([0.], dtype=torch.bfloat16)"]),
        ([torch.zeros(1, requires_grad=True)], ["tensor([0.], requires_grad=True)"]),
    ],
    ids=str,
)
def test_a_column_goes_by_the_types_of_its_values(values: list[Any], expected: Any) -> None:
    assert told(column_of(values)) == expected


@given(columns())
def test_rows_of_columns_become_the_same_rows_again(block: Columns) -> None:
    if not len(block):
        return
    again = Columns(columns_of(Rows(block.rows(), block.trail)), block.trail)
    values = [
        [np.asarray(value).tolist() if isinstance(value, np.ndarray) else value for value in row.values()]
        for row in block.rows()
    ]
    values_again = [
        [np.asarray(value).tolist() if isinstance(value, np.ndarray) else value for value in row.values()]
        for row in again.rows()
    ]
    assert plain(values_again) == plain(values)


def test_columns_are_over_the_same_memory_in_a_dict_of_ones_own() -> None:
    block = Columns({"x": np.arange(3)}, OffsetTrail(0, None))
    given = columns_of(block)
    assert np.shares_memory(given["x"], block.fields["x"])
    assert given is not block.fields


@pytest.mark.parametrize("of_rows", [False, True], ids=["columns", "rows"])
def test_no_column_that_is_given_away_can_be_written(of_rows: bool) -> None:
    deep = Ragged(Ragged(np.arange(4), [0, 1, 4]), [0, 0, 2])
    fields = {"x": np.arange(2), "y": Ragged(np.arange(3), [0, 1, 3]), "z": deep}
    block = Columns(fields, OffsetTrail(0, None))
    given: Any = columns_of(Rows(block.rows(), block.trail) if of_rows else block)
    x, y, inner = given["x"], given["y"], given["z"].values
    for array in (x, y.values, y.offsets, y[1], inner.values, inner.offsets):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 7
    assert fields["x"].flags.writeable, "the block's own are as they were"


@pytest.mark.parametrize(
    ("rows", "kind", "message"),
    [
        (
            [{"a": 1}, {"b": 1}],
            ValueError,
            r"found \['a'\] in sample 7 and \['b'\] in sample 8; make them alike",
        ),
        ([{"a": 1}, {"a": 1, "b": 1}], ValueError, r"found \['a'\] in sample 7 and \['a', 'b'\] in sample 8"),
        ([{}, {}], ValueError, r"found \[\] in sample 7"),
        ([{"a": 1}, (1, 2)], TypeError, "mappings, found tuple at sample 8; make them dicts with .map"),
    ],
)
def test_samples_that_are_not_alike_are_refused(rows: list[Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        columns_of(Rows(rows, OffsetTrail(7, None)))


def test_the_order_of_fields_is_that_of_the_first_sample() -> None:
    assert list(columns_of(Rows([{"a": 1, "b": 2}, {"b": 1, "a": 2}], OffsetTrail(0, None)))) == ["a", "b"]
