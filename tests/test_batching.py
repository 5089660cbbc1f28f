from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncloader.batching import Batcher, Batching
from asyncloader.types import Block, OffsetTrail, Place, Position


class CountingTrail:
    """Says ``first + index + 1``, and how often it was asked."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.asked: list[int] = []

    def after(self, index: int) -> Position:
        self.asked.append(index)
        return {"sample": self.first + index + 1}

    def place(self, index: int) -> Place:
        return Place(None, self.first + index)


def blocks_of(sizes: list[int]) -> list[Block]:
    blocks, first = [], 0
    for size in sizes:
        blocks.append(Block(list(range(first, first + size)), OffsetTrail(first, None)))
        first += size
    return blocks


def run(batching: Batching, blocks: list[Block]) -> list[tuple[Any, Position]]:
    fed = [batch for block in blocks for batch in batching.feed(block)]
    return placed([*fed, *batching.finish()])


def placed(batches: Iterable[Block]) -> list[tuple[Any, Position]]:
    """The samples of each batch, and the position after the last."""
    return [(batch.samples, batch.trail.after(len(batch) - 1)) for batch in batches]


sizes = st.lists(st.integers(0, 20), max_size=12)


@given(sizes, st.integers(1, 25), st.booleans())
def test_batches_are_the_stream_cut_every_batch_size_samples(
    sizes: list[int], size: int, drop_last: bool
) -> None:
    stream = list(range(sum(sizes)))
    expected = [stream[i : i + size] for i in range(0, len(stream), size)]
    if drop_last:
        expected = [batch for batch in expected if len(batch) == size]
    batches = run(Batcher(size, drop_last), blocks_of(sizes))
    assert [batch for batch, _ in batches] == expected
    assert [position for _, position in batches] == [{"sample": batch[-1] + 1} for batch in expected]


@given(sizes, sizes, st.integers(1, 25))
def test_batches_do_not_depend_on_how_the_stream_was_cut_into_blocks(
    one: list[int], other: list[int], size: int
) -> None:
    missing = sum(one) - sum(other)
    one, other = [*one, max(0, -missing)], [*other, max(0, missing)]
    assert run(Batcher(size), blocks_of(one)) == run(Batcher(size), blocks_of(other))


@given(sizes, st.integers(1, 10))
def test_a_stream_reopened_at_any_position_goes_on_with_the_same_batches(sizes: list[int], size: int) -> None:
    batches = run(Batcher(size), blocks_of(sizes))
    total = sum(sizes)
    for number, (_, position) in enumerate(batches):
        start = position["sample"]
        rest = [Block(list(range(start, total)), OffsetTrail(start, None))]
        assert run(Batcher(size), rest) == batches[number + 1 :]


@given(sizes)
def test_without_a_batch_size_each_sample_comes_alone_with_its_own_position(sizes: list[int]) -> None:
    expected = [([i], {"sample": i + 1}) for i in range(sum(sizes))]
    assert run(Batcher(None), blocks_of(sizes)) == expected


@given(sizes, st.integers(1, 25))
def test_each_sample_of_a_batch_is_known_by_its_place(sizes: list[int], size: int) -> None:
    for block in blocks_of(sizes):
        assert block.samples == [block.trail.place(index).sample for index in range(len(block))]
    batcher = Batcher(size)
    batches = [batch for block in blocks_of(sizes) for batch in batcher.feed(block)]
    for batch in [*batches, *batcher.finish()]:
        assert batch.samples == [batch.trail.place(index).sample for index in range(len(batch))]
        with pytest.raises(IndexError):
            batch.trail.place(len(batch))


def test_positions_are_asked_only_by_who_wants_them() -> None:
    trail = CountingTrail(0)
    batches = list(Batcher(4).feed(Block(list(range(10)), trail)))
    assert trail.asked == []
    assert [position for _, position in placed(batches)] == [{"sample": 4}, {"sample": 8}]
    assert trail.asked == [3, 7]


def test_a_consumer_that_stops_half_way_through_a_block_does_not_upset_the_next_one() -> None:
    batcher = Batcher(2)
    first, second = blocks_of([5, 3])
    next(batcher.feed(first))
    assert [batch.samples for batch in batcher.feed(second)] == [[4, 5], [6, 7]]


def test_two_iterators_taken_in_the_wrong_order_still_hold_their_own_batches() -> None:
    batcher = Batcher(2)
    one, two = (batcher.feed(block) for block in blocks_of([3, 3]))
    assert [batch.samples for batch in two] == [[2, 3], [4, 5]]
    assert [batch.samples for batch in one] == [[0, 1]]


def test_the_samples_of_a_block_are_not_changed() -> None:
    batcher = Batcher(4)
    first, second = blocks_of([3, 3])
    list(batcher.feed(first))
    list(batcher.feed(second))
    assert first.samples == [0, 1, 2]
    assert second.samples == [3, 4, 5]


def test_a_batch_is_a_list_of_its_own_even_if_it_is_the_whole_block() -> None:
    (block,) = blocks_of([3])
    (batch,) = Batcher(3).feed(block)
    batch.samples.append("mine")
    assert block.samples == [0, 1, 2]


def test_finish_leaves_the_batcher_empty() -> None:
    batcher = Batcher(4)
    (block,) = blocks_of([3])
    list(batcher.feed(block))
    assert placed(batcher.finish()) == [([0, 1, 2], {"sample": 3})]
    assert list(batcher.finish()) == []


def test_an_empty_block_keeps_the_position_of_the_sample_before_it() -> None:
    batcher = Batcher(4)
    (block,) = blocks_of([2])
    list(batcher.feed(block))
    assert list(batcher.feed(Block([], CountingTrail(99)))) == []
    assert placed(batcher.finish()) == [([0, 1], {"sample": 2})]


@pytest.mark.parametrize(
    ("batch_size", "drop_last"),
    [(0, False), (-3, False), (2.0, False), (True, False), ("4", False), (4, 1), (4, None), (None, True)],
)
def test_wrong_options_are_refused_in_torchs_words(batch_size: Any, drop_last: Any) -> None:
    from torch.utils.data import DataLoader

    with pytest.raises(ValueError) as torchs:
        DataLoader([1, 2], batch_size=batch_size, drop_last=drop_last)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=f"^{re.escape(str(torchs.value))}$"):
        Batcher(batch_size, drop_last)


@pytest.mark.parametrize(("batch_size", "drop_last"), [(None, False), (None, 0), (1, True), (64, False)])
def test_options_that_torch_takes_are_taken(batch_size: Any, drop_last: Any) -> None:
    Batcher(batch_size, drop_last)
