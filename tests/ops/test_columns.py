"""Operators that move samples keep columns columns, and give the samples that they make of rows."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from drawn_columns import plain
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncloader.blocks import Columns, OffsetTrail, Ragged
from asyncloader.collate.default import collate_block
from asyncloader.collate.pad import Pad
from asyncloader.flow.engine import Engine
from asyncloader.pipeline.batching import FixedSize
from asyncloader.pipeline.components import Stages
from asyncloader.pipeline.filter import Filter, FilterBatches, Rename, Select
from asyncloader.pipeline.lane import START
from asyncloader.pipeline.map import Map, MapBatches
from asyncloader.pipeline.op import Op
from asyncloader.pipeline.shuffle import Shuffle
from asyncloader.pipeline.take import Repeat, Take
from asyncloader.types import Position

from .running import Listed, ListedColumns, lane_of, positions_of

COUNT = 40
MOVING: list[list[Op]] = [
    [Select(("tokens", "label"))],
    [Rename((("tokens", "ids"), ("label", "tokens")))],
    [Shuffle(7)],
    [Shuffle(1000, seed=3)],
    [Take(11)],
    [Repeat(2)],
    [Shuffle(9), Select(("label",)), Repeat(3), Take(70), Rename((("label", "y"),))],
]


def everything() -> Columns:
    draw = np.random.default_rng(0)
    offsets = np.cumsum([2, *draw.integers(0, 5, COUNT)])
    return Columns(
        {
            "__key__": [f"k{index}" for index in range(COUNT)],
            "tokens": Ragged(np.arange(offsets[-1] + 3, dtype=np.int32), offsets),
            "label": np.arange(COUNT, dtype=np.int16),
            "words": Ragged([f"w{index}" for index in range(offsets[-1])], offsets),
        },
        OffsetTrail(0, None),
    )


@pytest.mark.parametrize("ops", MOVING, ids=str)
def test_columns_come_out_as_the_rows_of_the_same_samples_would(ops: Sequence[Op], engine: Engine) -> None:
    block = everything()
    lane = lane_of(engine)
    of_rows = [(plain(row), position) for row, position in positions_of(Listed(block.rows()), ops, lane)]
    of_columns = [(plain(row), position) for row, position in positions_of(ListedColumns(block), ops, lane)]
    assert of_columns == of_rows
    for done, (_, position) in list(enumerate(of_columns, 1))[::7]:
        rest = positions_of(ListedColumns(block, sizes=(2, 5)), ops, lane, position)
        assert [plain(row) for row, _ in rest] == [row for row, _ in of_rows[done:]]


@pytest.mark.parametrize("ops", MOVING, ids=str)
def test_no_row_is_made_up_to_the_batch(
    ops: Sequence[Op], engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ListedColumns(everything())
    monkeypatch.setattr(Columns, "rows", lambda self: pytest.fail("rows were made"))
    recipe = Stages(source, tuple(ops))
    with closing(FixedSize(4).open(recipe.open, START, lane_of(engine))) as batches:
        for batch in batches:
            assert isinstance(batch.block, Columns)
            assert batch.position


def label_doubled(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "label": sample["label"] * 2}


def first_label_beside(batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, "label": batch["label"] + batch["label"][0]}


OPS = st.one_of(
    st.builds(Select, st.just(("label", "tokens"))),
    st.builds(Shuffle, st.integers(1, 30), st.integers(0, 3)),
    st.builds(Take, st.integers(1, 60)),
    st.builds(Repeat, st.integers(1, 2)),
    st.builds(Map, st.just(label_doubled), st.integers(1, 2)),
    st.builds(Filter, st.just(lambda sample: sample["label"] % 3)),
    st.builds(MapBatches, st.just(first_label_beside), st.integers(1, 12), st.integers(1, 2)),
    st.builds(FilterBatches, st.just(lambda batch: batch["label"] % 5 > 0), st.integers(1, 12)),
)


def batches_of(
    source: Listed, ops: list[Op], size: int, engine: Engine, start: Position = START
) -> list[Any]:
    """Each batch, padded, with the position after it."""
    recipe = Stages(source, (*ops, Select(("tokens", "label"))))
    with closing(FixedSize(size).open(recipe.open, start, lane_of(engine))) as batches:
        return [
            (
                {name: (value.dtype, value.tolist()) for name, value in collated.items()},
                batch.position,
            )
            for batch in batches
            for collated in [collate_block(Pad({"tokens": 0}), batch.block, str)]
        ]


@settings(deadline=None)
@given(ops=st.lists(OPS, max_size=5), size=st.integers(1, 9), data=st.data())
def test_any_recipe_gives_the_same_batches_of_columns_and_of_rows_and_resumes(
    ops: list[Op], size: int, data: st.DataObject, engine: Engine
) -> None:
    block = everything()
    of_columns = batches_of(ListedColumns(block), ops, size, engine)
    assert of_columns == batches_of(Listed(block.rows()), ops, size, engine)
    if of_columns:
        done = data.draw(st.integers(1, len(of_columns)))
        start = of_columns[done - 1][1]
        for source in (ListedColumns(block, sizes=(2, 5)), Listed(block.rows())):
            assert batches_of(source, ops, size, engine, start) == of_columns[done:]


@pytest.mark.parametrize(
    "op", [Map(lambda sample: sample["label"]), Filter(lambda sample: sample["label"] % 2)]
)
def test_functions_of_one_sample_get_rows(op: Op, engine: Engine) -> None:
    block = everything()
    lane = lane_of(engine)
    of_rows = [plain(row) for row, _ in positions_of(Listed(block.rows()), [op], lane)]
    assert [plain(row) for row, _ in positions_of(ListedColumns(block), [op], lane)] == of_rows
    assert of_rows


@pytest.mark.parametrize(
    ("op", "message"),
    [
        (
            Select(("label", "nope")),
            r"expected the field 'nope', found only \['__key__', 'tokens', 'label', 'wo",
        ),
        (
            Rename((("nope", "x"),)),
            r"expected the field 'nope', found only \['__key__', 'tokens', 'label', 'wo",
        ),
        (Rename((("label", "words"),)), r"rename would overwrite the fields \['words'\]"),
    ],
)
def test_fields_that_do_not_fit_are_told_alike_of_columns_and_of_rows(
    op: Op, message: str, engine: Engine
) -> None:
    block = everything()
    told: list[Any] = []
    for source in (ListedColumns(block), Listed(block.rows())):
        with pytest.raises((KeyError, ValueError), match=message) as caught:
            list(positions_of(source, [op], lane_of(engine)))
        told.append((caught.type, str(caught.value), caught.value.__notes__))
    assert told[0] == told[1]
    assert "of sample 0 of listed, __key__ 'k0' (fields: label, tokens, words)" in told[0][2][0]
