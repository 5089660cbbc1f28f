from __future__ import annotations

import pickle
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from drawn_columns import plain, ragged
from hypothesis import given
from hypothesis import strategies as st

import asyncloader as al
from asyncloader.blocks import Ragged


def drawn(least: int = 0) -> st.SearchStrategy[Ragged]:
    return st.integers(least, 8).flatmap(ragged)


@given(drawn())
def test_its_sequences_are_the_values_between_two_offsets(column: Ragged) -> None:
    edges = column.offsets.tolist()
    sequences = [plain(column[index]) for index in range(len(column))]
    assert [plain(sequence) for sequence in column] == sequences
    assert column.lengths.tolist() == [len(sequence) for sequence in column]
    if isinstance(column.values, list):
        assert sequences == [column.values[start:stop] for start, stop in pairwise(edges)]


@given(drawn(1), st.data())
def test_parts_and_picks_have_the_same_sequences(column: Ragged, data: st.DataObject) -> None:
    everything = [plain(sequence) for sequence in column]
    start, stop = data.draw(st.integers(0, 8)), data.draw(st.integers(0, 8))
    assert [plain(sequence) for sequence in column[start:stop]] == everything[start:stop]
    indices = data.draw(st.lists(st.integers(-len(column), len(column) - 1), max_size=9))
    assert [plain(sequence) for sequence in column.take(indices)] == [everything[index] for index in indices]


def test_a_slice_is_a_part_and_its_old_name_says_so() -> None:
    column = Ragged.of([[1], [2, 3], [], [4]])
    assert column[1:].tolist() == [[2, 3], [], [4]]
    assert column[::-2].tolist() == [[4], [2, 3]]
    with pytest.raises(AttributeError, match=r"no attribute 'part'; write ragged\[i:j\]"):
        column.part(1, 2)  # type: ignore[attr-defined]


@pytest.mark.parametrize("length", [1, 20, 500])
@pytest.mark.parametrize("count", [0, 3, 400])
def test_many_and_few_and_long_and_short_sequences_are_taken_alike(count: int, length: int) -> None:
    draw = np.random.default_rng(0)
    values = draw.integers(0, 99, 400 * length)
    column = Ragged(values, np.arange(401) * length)
    indices = draw.integers(0, 400, count)
    assert column.take(indices).tolist() == values.reshape(400, length)[indices].tolist()


@given(drawn())
def test_it_pickles_without_the_values_around_it(column: Ragged) -> None:
    again = pickle.loads(pickle.dumps(column))
    assert plain(again) == plain(column)
    assert again.offsets[0] == 0
    assert again.offsets[-1] == len(again.values)


def test_a_part_of_much_pickles_small() -> None:
    column = Ragged(np.zeros(1_000_000), np.arange(0, 1_000_001, 100))
    assert len(pickle.dumps(column[5000:5002])) < 3000


@pytest.mark.parametrize(
    ("sequences", "expected"),
    [
        ([], []),
        ([[1, 2], [], [3]], [[1, 2], [], [3]]),
        ([np.zeros((1, 2)), np.ones((2, 2))], [[[0.0, 0.0]], [[1.0, 1.0], [1.0, 1.0]]]),
        (np.arange(6).reshape(3, 2), [[0, 1], [2, 3], [4, 5]]),
        ([[], []], [[], []]),
        (np.zeros((0, 3)), []),
        (np.zeros((2, 0)), [[], []]),
    ],
)
def test_sequences_are_put_end_to_end(sequences: Any, expected: list[Any]) -> None:
    assert Ragged.of(sequences).tolist() == expected


def test_an_empty_list_takes_the_type_of_the_others() -> None:
    assert Ragged.of([[], [1]]).values.dtype == np.int64  # type: ignore[union-attr]
    assert Ragged.of([[], np.zeros(0, np.int8)]).values.dtype == np.int8  # type: ignore[union-attr]
    assert Ragged.of([[]]).values.dtype == np.int64  # type: ignore[union-attr]
    assert Ragged.of([np.ones(2, np.int8), np.array([])]).values.dtype == np.int8  # type: ignore[union-attr]


def test_an_array_of_sequences_is_taken_over_without_a_copy() -> None:
    array = np.zeros((3, 4))
    assert np.shares_memory(Ragged.of(array).values, array)  # type: ignore[arg-type]
    column = Ragged.of(array)
    assert Ragged.of(column) is column


def test_sequences_of_one_length_are_an_array() -> None:
    column = Ragged(np.arange(10, dtype=np.int32), [2, 5, 8])
    assert plain(np.asarray(column)) == ("<i4", (2, 3), [[2, 3, 4], [5, 6, 7]])
    assert np.shares_memory(np.asarray(column), column.values)  # type: ignore[arg-type]
    assert not np.shares_memory(np.array(column), column.values)  # type: ignore[arg-type]
    assert np.asarray(column, np.float32).dtype == np.float32
    assert np.asarray(column[:0]).shape == (0, 0)
    nested = Ragged(column, [0, 1, 2])
    assert np.asarray(nested).shape == (2, 1, 3)


def test_sequences_of_unequal_length_are_no_array() -> None:
    with pytest.raises(ValueError, match=r"lengths from 1 to 3; pad them with al\.Pad"):
        np.asarray(Ragged(np.arange(4), [0, 1, 4]))


@pytest.mark.parametrize(
    "offsets", [[], [[0, 1]], [-1, 1], [0, 2, 1], [0, 5], [0.0, 1.0], np.zeros(2, np.bool_)], ids=str
)
def test_offsets_that_cannot_be_are_refused(offsets: Any) -> None:
    with pytest.raises(ValueError, match="rising from 0 or more up to at most the 4 values"):
        Ragged(np.arange(4), offsets)


def test_offsets_of_another_integer_type_are_taken() -> None:
    assert Ragged(np.arange(4), np.array([0, 4], np.uint32)).offsets.dtype == np.int64


@pytest.mark.parametrize("index", [2, -3])
def test_no_sequence_is_behind_the_last_one(index: int) -> None:
    with pytest.raises(IndexError, match=f"sequence {index} of 2"):
        Ragged(np.arange(4), [0, 1, 4])[index]


def test_it_shows_how_much_it_holds_and_is_public() -> None:
    assert repr(Ragged(np.arange(9), [1, 1, 4])) == "Ragged(2 sequences of 3 values, int64)"
    assert al.Ragged is Ragged


@pytest.mark.parametrize(
    ("sequences", "found"),
    [
        ([[2], [1, None]], "sequence 1: expected numbers, found a null at place 1"),
        ([None, [2]], "sequence 0: expected numbers, found a null"),
        ([[1], 2], "sequence 1: expected numbers, found int"),
        ([[object()]], "sequence 0: expected numbers, found list of objects"),
    ],
)
def test_nulls_and_what_is_no_sequence_are_named(sequences: Any, found: str) -> None:
    with pytest.raises(ValueError, match=found):
        Ragged.of(sequences)
