"""Columns are the same samples as rows, whatever is done to a block of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from drawn_columns import column_lists, columns, plain
from hypothesis import given
from hypothesis import strategies as st

from asyncloader.blocks import Block, Columns, Gather, OffsetTrail, Ragged, Rows, join


def told(block: Block) -> Any:
    """All that a block says of its samples."""
    return [
        (plain(row), block.trail.after(index), block.trail.place(index))
        for index, row in enumerate(block.rows())
    ]


def as_rows(block: Columns) -> Rows:
    return Rows(block.rows(), block.trail)


def assert_alike(block: Block, rows: Block) -> None:
    assert len(block) == len(rows)
    assert told(block) == told(rows)


@given(columns(), st.data())
def test_a_part_is_the_part_of_the_rows(block: Columns, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(block)))
    stop = data.draw(st.integers(start, len(block) + 2))
    assert_alike(block.part(start, stop), as_rows(block).part(start, stop))


@given(columns(), st.data())
def test_what_is_taken_are_the_rows_of_these_indices(block: Columns, data: st.DataObject) -> None:
    indices = data.draw(st.lists(st.integers(0, len(block) - 1), max_size=20)) if len(block) else []
    assert_alike(block.take(indices), as_rows(block).take(indices))
    assert_alike(
        block.part(0, len(block)).take(indices).take(range(len(indices))), as_rows(block).take(indices)
    )


@given(column_lists(), st.lists(st.booleans(), min_size=4, max_size=4))
def test_joined_blocks_are_their_rows_one_after_another(blocks: list[Columns], as_row: list[bool]) -> None:
    rows = [as_rows(block) for block in blocks]
    joined = join(blocks)
    assert isinstance(joined, Columns), "like columns stay columns"
    assert_alike(joined, join(rows))
    mixed = [row if flag else block for block, row, flag in zip(blocks, rows, as_row, strict=False)]
    assert_alike(join(mixed), join(rows))


@given(column_lists(), st.integers(1, 5))
def test_groups_of_columns_are_those_of_rows(blocks: list[Columns], size: int) -> None:
    def cut(stream: list[Any]) -> list[Block]:
        gather = Gather(size)
        groups = [group for block in stream for group in gather.feed(block)]
        rest = gather.finish()
        return groups if rest is None else [*groups, rest]

    of_columns, of_rows = cut(blocks), cut([as_rows(block) for block in blocks])
    assert len(of_columns) == len(of_rows)
    for group, row_group in zip(of_columns, of_rows, strict=True):
        assert isinstance(group, Columns)
        assert_alike(group, row_group)


@given(columns())
def test_a_column_has_the_values_of_the_rows(block: Columns) -> None:
    for name in block.fields:
        assert [plain(value) for value in block.column(name)] == plain(as_rows(block).column(name))


@given(columns())
def test_another_trail_leaves_the_samples_as_they_are(block: Columns) -> None:
    trail = OffsetTrail(100, None)
    assert_alike(block.follow(trail), as_rows(block).follow(trail))


def tokens_and_labels() -> Columns:
    tokens = Ragged(np.arange(10, dtype=np.int32), [1, 4, 4, 9])
    return Columns({"tokens": tokens, "label": np.array([1, 2, 3], np.int16)}, OffsetTrail(0, None))


def test_rows_are_dicts_of_scalars_that_keep_their_dtype_and_of_views() -> None:
    block = tokens_and_labels()
    first, empty, last = block.rows()
    assert type(first["label"]) is np.int16
    assert plain(first["tokens"]) == ("<i4", (3,), [1, 2, 3])
    assert np.shares_memory(last["tokens"], block.fields["tokens"].values)  # type: ignore[union-attr, arg-type]
    assert len(empty["tokens"]) == 0


def test_a_part_shares_the_memory_of_the_whole() -> None:
    whole = tokens_and_labels()
    part = whole.part(1, 3)
    assert np.shares_memory(part.fields["label"], whole.fields["label"])  # type: ignore[arg-type]
    assert part.fields["tokens"].values is whole.fields["tokens"].values  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", ["rows", "columns"])
def test_a_field_that_is_not_there_is_named_with_those_that_are(kind: str) -> None:
    block: Block = tokens_and_labels()
    block = Rows(block.rows(), block.trail) if kind == "rows" else block
    with pytest.raises(
        KeyError, match=r"expected the field 'nope' in sample 0, found only \['tokens', 'label'\]"
    ):
        block.column("nope")


def test_positions_after_what_an_array_picked_are_plain_numbers() -> None:
    picked = tokens_and_labels().take(np.array([2, 0]))  # type: ignore[arg-type]
    assert type(picked.trail.after(0)[0]["sample"]) is int
    assert picked.trail.place(0).sample == 2


@pytest.mark.parametrize(
    "other",
    [
        {"x": np.zeros(2, np.int32)},
        {"x": np.zeros((2, 1))},
        {"x": [0.0, 0.0]},
        {"x": Ragged(np.zeros(2), [0, 1, 2])},
        {"y": np.zeros(2)},
    ],
)
def test_columns_that_are_not_alike_are_joined_as_rows(other: dict[str, Any]) -> None:
    one = Columns({"x": np.zeros(2)}, OffsetTrail(0, None))
    joined = join([one, Columns(other, OffsetTrail(2, None))])
    assert isinstance(joined, Rows)
    assert plain(joined.rows()[2:]) == plain(Columns(other, OffsetTrail(2, None)).rows())


def test_the_order_of_fields_is_that_of_the_first_block() -> None:
    one, other = np.zeros(1), np.ones(1)
    joined = join(
        [
            Columns({"x": one, "y": other}, OffsetTrail(0, None)),
            Columns({"y": other, "x": one}, OffsetTrail(1, None)),
        ]
    )
    assert [list(row) for row in joined.rows()] == [["x", "y"], ["x", "y"]]
