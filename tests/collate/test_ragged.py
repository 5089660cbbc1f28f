from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from asyncloader.collate.ragged import exact_fill, lay, lay_runs, real_mask, to_pieces

DTYPES = [np.uint8, np.int32, np.int64, np.float32, np.float64, np.bool_, np.complex64]


@st.composite
def ragged(draw: st.DrawFn) -> list[np.ndarray[Any, Any]]:
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    trailing = draw(st.sampled_from([(), (2,), (0,), (2, 3)]))
    lengths = draw(st.lists(st.integers(0, 7), min_size=1, max_size=6))
    elements = hnp.from_dtype(dtype, allow_nan=False)
    return [draw(hnp.arrays(dtype, (length, *trailing), elements=elements)) for length in lengths]


@given(ragged(), st.sampled_from(["left", "right"]), st.sampled_from([0, 1]), st.integers(1, 5))
def test_padding_keeps_every_value_in_its_place_and_fills_the_rest(
    pieces: list[Any], side: Any, value: int, multiple_of: int
) -> None:
    padded, lengths = lay(pieces, value=value, side=side, multiple_of=multiple_of)
    assert padded.dtype == pieces[0].dtype
    assert lengths.dtype == np.int64
    assert lengths.tolist() == [len(piece) for piece in pieces]
    for row, piece in zip(padded, pieces, strict=True):
        filled = len(row) - len(piece)
        kept, rest = (row[filled:], row[:filled]) if side == "left" else np.split(row, [len(piece)])
        assert np.array_equal(kept, piece)
        assert (rest == value).all()


@given(ragged(), st.integers(1, 5))
def test_the_width_is_the_smallest_multiple_that_holds_the_longest(pieces: list[Any], n: int) -> None:
    padded, lengths = lay(pieces, multiple_of=n)
    width, longest = padded.shape[1], int(lengths.max())
    assert width % n == 0
    assert longest <= width < longest + n


@given(ragged())
def test_left_padding_is_the_mirror_of_right_padding(pieces: list[Any]) -> None:
    right, _ = lay(pieces, value=1)
    left, _ = lay([piece[::-1] for piece in pieces], value=1, side="left")
    assert np.array_equal(left[:, ::-1], right)


@given(ragged(), st.sampled_from(["left", "right"]))
def test_the_mask_picks_exactly_the_joined_pieces(pieces: list[Any], side: Any) -> None:
    padded, lengths = lay(pieces, side=side)
    mask = real_mask(lengths, padded.shape[1], side)
    assert mask.shape == padded.shape[:2]
    assert mask.sum(axis=1).tolist() == lengths.tolist()
    assert np.array_equal(padded[mask], np.concatenate(pieces))


def test_the_pieces_are_not_changed_and_not_shared() -> None:
    piece = np.arange(3)
    padded, _ = lay([piece])
    padded[:] = 9
    assert piece.tolist() == [0, 1, 2]


def test_other_byte_orders_and_strides_come_out_native_and_contiguous() -> None:
    padded, _ = lay([np.arange(6, dtype=">i4")[::-2], np.arange(1, dtype=">i4")])
    assert padded.dtype == np.int32
    assert padded.dtype.isnative
    assert padded.tolist() == [[5, 3, 1], [0, 0, 0]]


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        ([], "found an empty batch"),
        ([np.zeros(2), np.zeros(2, np.int64)], "entry 1: expected dtype float64 as at entry 0, found int64"),
        # NumPy would broadcast this one without a word.
        ([np.zeros((2, 3)), np.zeros((2, 1))], r"entry 1: expected trailing dimensions \[3\].*found \[1\]"),
    ],
)
def test_pieces_that_are_not_alike_are_refused(pieces: list[Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        to_pieces(pieces, None, "entry {}".format)


@given(ragged(), st.sampled_from(["left", "right"]), st.sampled_from([0, 1]), st.integers(1, 5), st.data())
def test_runs_of_one_array_are_laid_like_pieces(
    pieces: list[Any], side: Any, value: int, multiple_of: int, data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(pieces))))
    starts = np.cumsum([0, *map(len, pieces)])[:-1]
    lengths = np.array([len(piece) for piece in pieces])
    how = {"value": value, "side": side, "multiple_of": multiple_of}
    expected, _ = lay([pieces[index] for index in order], **how)
    laid = lay_runs(np.concatenate(pieces), starts[order], lengths[order], **how)
    assert laid.dtype == expected.dtype
    assert np.array_equal(laid, expected)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (-100, "uint8"),
        (256, "uint8"),
        (0.5, "int64"),
        (float("nan"), "int32"),
        (float("inf"), "int64"),
        (2**63, "int64"),
        (2.0**63, "int64"),
        (2**70, "int32"),
        (10**400, "float64"),
        (2, "bool"),
        (70_000, "float16"),
        (1e300, "float32"),
    ],
)
def test_a_fill_that_the_dtype_cannot_hold_is_refused(value: float, dtype: str) -> None:
    with pytest.raises(ValueError, match=f"does not fit dtype {dtype}"):
        exact_fill(value, np.dtype(dtype))


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (255, "uint8"),
        (-1.0, "int8"),
        (True, "int64"),
        (1, "bool"),
        (0.1, "float32"),
        (float("-inf"), "float16"),
        (2**63 - 1, "int64"),
    ],
)
def test_a_fill_that_fits_is_taken(value: float, dtype: str) -> None:
    assert exact_fill(value, np.dtype(dtype)) == np.asarray(value).astype(dtype)


def test_nan_fills_floats() -> None:
    padded, _ = lay([np.ones(1), np.ones(2)], value=float("nan"))
    assert np.isnan(padded).tolist() == [[False, True], [False, False]]
