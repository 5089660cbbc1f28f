"""Columns and rows of the same samples give the same batches and the same errors, and no row is made."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from drawn_columns import arrays, columns, plain, ragged
from hypothesis import given
from hypothesis import strategies as st

import asyncloader as al
from asyncloader.blocks import Columns, OffsetTrail, Ragged, Rows
from asyncloader.collate.default import collate_block, collate_columns
from asyncloader.torch_private import default_collate_fn_map

DEFAULTS = [al.default_collate, torch.utils.data.default_collate]


def exact(batch: Any) -> Any:
    """A batch so that two compare by type, dtype, shape and value."""
    if isinstance(batch, torch.Tensor):
        return (str(batch.dtype), tuple(batch.shape), batch.tolist())
    if isinstance(batch, dict):
        return {name: exact(value) for name, value in batch.items()}
    if isinstance(batch, list):
        return [exact(value) for value in batch]
    return plain(batch)


def outcome(fn: Callable[[Any], Any], block: Any) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of rows in memory that cannot be written
            batch = collate_block(fn, block, lambda index: f"place {index}")
    except Exception as error:
        return type(error), str(error), getattr(error, "__notes__", [])
    return exact(batch), list(batch)


def assert_same(fn: Callable[[Any], Any], block: Columns) -> None:
    assert outcome(fn, block) == outcome(fn, Rows(block.rows(), block.trail))


def block_of(**fields: Any) -> Columns:
    return Columns(fields, OffsetTrail(0, None))


@pytest.mark.parametrize("collate", DEFAULTS)
@given(block=st.integers(1, 6).flatmap(columns))
def test_stacked_columns_are_the_stacked_rows(collate: Any, block: Columns) -> None:
    assert_same(collate, block)


@pytest.mark.parametrize(
    "column",
    [
        np.array([1, 2, 3]).astype(dtype).reshape(shape)
        for dtype in (
            "uint16",
            "uint32",
            "uint64",
            "longdouble",
            "complex64",
            ">i4",
            "M8[s]",
            "U3",
            "S3",
            "O",
        )
        for shape in ((3,), (3, 1))
    ]
    + [
        ["a", "b", "c"],
        [b"a", "b", "c"],
        [1, 2.5, 3],
        [(1, "a"), (2, "b"), (3, "c")],
        [{"x": 1}, {"x": 2}, {"y": 3}],
        [None, None, None],
        [torch.zeros(2), torch.zeros(2), torch.zeros(2)],
        Ragged(["a", "b", "c", "d", "e", "f"], [0, 2, 4, 6]),
        Ragged(np.arange(6), [0, 2, 4, 6]),
        Ragged(np.arange(6), [0, 2, 4, 5]),
        Ragged(Ragged(np.arange(6), [0, 2, 4, 6]), [0, 1, 2, 3]),
    ],
    ids=lambda column: str(getattr(column, "dtype", column)),
)
@pytest.mark.parametrize("collate", [*DEFAULTS, al.Pad({"x": 0}), al.Pad({"x": 0.5}, sort_by="x")])
def test_columns_of_any_kind_come_out_as_their_rows(collate: Any, column: Any) -> None:
    assert_same(collate, block_of(x=column, number=np.arange(3)))


pads = st.builds(
    dict,
    value=st.sampled_from([0, 1, -100]),
    side=st.sampled_from(["left", "right"]),
    multiple_of=st.sampled_from([1, 2]),
    max_length=st.sampled_from([None, 2, 4, 8]),
    overflow=st.sampled_from(["raise", "truncate"]),
)
pads_with_dtype = st.builds(
    dict,
    dtype=st.sampled_from(["int64", "int16", torch.float32, np.float64, "uint8", "bool", None]),
    side=st.sampled_from(["left", "right"]),
)


@st.composite
def padded(draw: st.DrawFn) -> tuple[al.Pad, Columns]:
    count = draw(st.integers(1, 6))
    sequences = st.one_of(
        ragged(count, depth=1),
        arrays(count),
        st.lists(st.binary(max_size=4), min_size=count, max_size=count),
        st.lists(st.lists(st.integers(-3, 300), max_size=4), min_size=count, max_size=count),
    )
    fields = {"x": draw(sequences), "y": draw(sequences)}
    if draw(st.booleans()):
        fields |= draw(columns(count)).fields
    pad = al.Pad(
        {"x": draw(st.one_of(pads, pads_with_dtype)), "y": 0},
        mask=draw(st.booleans()),
        sort_by=draw(st.sampled_from([None, "x", "y"])),
    )
    return pad, Columns(fields, OffsetTrail(0, None))


@given(padded())
def test_padded_columns_are_the_padded_rows(drawn: tuple[al.Pad, Columns]) -> None:
    assert_same(*drawn)


@pytest.mark.parametrize("side", ["left", "right"])
def test_long_sequences_are_cut_as_those_of_rows(side: Any) -> None:
    pad = al.Pad({"x": 0}, max_length=2, side=side, overflow="truncate")
    assert_same(pad, block_of(x=Ragged(np.arange(6), [0, 1, 1, 4, 6])))


@pytest.mark.parametrize(
    ("pad", "fields"),
    [
        (al.Pad({"y": 0}), {"x": np.arange(2)}),
        (al.Pad({"x": 0}), {"x": np.zeros((2, 1)), "x_lengths": np.arange(2)}),
        (al.Pad({"x": 0}, mask=True), {"x": np.zeros((2, 1)), "x_mask": np.arange(2)}),
        (al.Pad({"x": 0}, max_length=2), {"x": Ragged(np.arange(4), [0, 1, 4]), "__key__": ["a", "b"]}),
        (al.Pad({"x": {"dtype": "uint8"}}), {"x": Ragged(np.array([1, 2, 300]), [0, 1, 3])}),
        (al.Pad({"x": -1}), {"x": Ragged(np.zeros(3, np.uint8), [0, 1, 3])}),
        (al.Pad({"x": 0}), {"x": Ragged(np.arange(3), [0, 1, 3]), "z": Ragged(np.arange(3), [0, 1, 3])}),
        (al.Pad({"x": 0}, collate_fn=lambda samples: len(samples)), {"x": np.zeros((2, 1)), "y": [1, 2]}),
    ],
)
def test_whatever_is_wrong_is_said_as_of_rows(pad: al.Pad, fields: dict[str, Any]) -> None:
    block = block_of(**fields)
    kind, *_ = outcome(pad, block)
    assert issubclass(kind, Exception)
    assert_same(pad, block)


def test_a_collation_of_the_others_by_the_user_gets_their_rows() -> None:
    pad = al.Pad({"x": 0}, collate_fn=lambda samples: {"y": [sample["y"] for sample in samples]})
    assert_same(pad, block_of(x=Ragged(np.arange(3), [0, 1, 3]), y=["a", "b"]))


@pytest.fixture
def no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Columns, "rows", lambda self: pytest.fail("rows were made"))


@pytest.mark.usefixtures("no_rows")
@pytest.mark.parametrize("collate", [*DEFAULTS, al.Pad({"x": 0}, sort_by="x", mask=True)])
def test_no_row_is_made_of_what_can_be_collated_without(collate: Any) -> None:
    x = Ragged(np.arange(4, dtype=np.int32), [0, 2, 4])
    names, image = ["a", "b"], np.zeros((2, 3, 4), np.uint8)
    batch = collate_block(collate, block_of(x=x, image=image, names=names, y=np.arange(2)), str)
    assert batch["x"].shape == (2, 2)
    assert batch["image"].shape == (2, 3, 4)
    assert batch["names"] == names
    assert batch["names"] is not names


def test_a_batch_shares_no_memory_with_the_block_and_can_be_written() -> None:
    values = np.arange(6, dtype=np.float32)
    values.flags.writeable = False
    block = block_of(x=Ragged(values, [0, 3, 6]), y=values[:2], z=values.reshape(2, 3))
    for collate in (*DEFAULTS, al.Pad({"x": 0, "z": 0})):
        batch = collate_columns(collate, block.fields)
        for name in ("x", "y", "z"):
            batch[name][:] = -1
    assert values.tolist() == [0, 1, 2, 3, 4, 5]


def test_rows_in_memory_that_cannot_be_written_are_stacked_without_a_warning() -> None:
    array = np.zeros(3)
    array.flags.writeable = False
    assert al.default_collate([{"x": array}] * 2)["x"].shape == (2, 3)


@pytest.fixture
def rules() -> Iterator[dict[Any, Any]]:
    before = dict(default_collate_fn_map)
    yield default_collate_fn_map
    default_collate_fn_map.clear()
    default_collate_fn_map.update(before)


@pytest.mark.parametrize("collate", DEFAULTS)
@pytest.mark.parametrize("kind", [np.ndarray, torch.Tensor, np.int32, np.generic, str, dict, object])
def test_rules_that_a_user_registered_hold(collate: Any, kind: Any, rules: dict[Any, Any]) -> None:
    rules[kind] = lambda batch, *, collate_fn_map=None: ["mine", len(batch)]
    block = block_of(
        flat=np.arange(2, dtype=np.int32),
        deep=np.zeros((2, 3)),
        names=["a", "b"],
        x=Ragged.of([[1, 2], [3, 4]]),
    )
    rows = block.rows()
    assert exact(collate_block(collate, block, str)) == exact(torch.utils.data.default_collate(rows))


def test_making_rows_is_not_charged_to_the_function() -> None:
    block, entered = Columns({"n": np.arange(2)}, OffsetTrail(0, None)), list[str]()
    collate_block(len, block, str, entered.append)
    assert entered == ["decode", "collate"]
