from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncloader.blocks import Block, Gather, OffsetTrail, Rows, join
from asyncloader.types import Position


class CountingTrail(OffsetTrail):
    """Says how often it was asked."""

    def __init__(self, first: int) -> None:
        super().__init__(first, None)
        self.asked: list[int] = []

    def after(self, index: int) -> Position:
        self.asked.append(index)
        return super().after(index)


def blocks_of(sizes: list[int]) -> list[Block]:
    blocks, first = [], 0
    for size in sizes:
        blocks.append(Rows(list(range(first, first + size)), OffsetTrail(first, None)))
        first += size
    return blocks


def cut(size: int, blocks: list[Block]) -> list[Block]:
    gather = Gather(size)
    groups = [group for block in blocks for group in gather.feed(block)]
    rest = gather.finish()
    return groups if rest is None else [*groups, rest]


def run(size: int, blocks: list[Block]) -> list[tuple[Any, Position]]:
    return placed(cut(size, blocks))


def placed(batches: Iterable[Block]) -> list[tuple[Any, Position]]:
    """The samples of each batch, and the position after the last."""
    return [(batch.samples, batch.trail.after(len(batch) - 1)) for batch in batches]


sizes = st.lists(st.integers(0, 20), max_size=12)


@given(sizes, st.integers(1, 25))
def test_groups_are_the_stream_cut_every_size_samples(sizes: list[int], size: int) -> None:
    stream = list(range(sum(sizes)))
    expected = [stream[i : i + size] for i in range(0, len(stream), size)]
    batches = run(size, blocks_of(sizes))
    assert [batch for batch, _ in batches] == expected
    assert [position for _, position in batches] == [[{"sample": batch[-1] + 1}] for batch in expected]


@given(sizes, sizes, st.integers(1, 25))
def test_batches_do_not_depend_on_how_the_stream_was_cut_into_blocks(
    one: list[int], other: list[int], size: int
) -> None:
    missing = sum(one) - sum(other)
    one, other = [*one, max(0, -missing)], [*other, max(0, missing)]
    assert run(size, blocks_of(one)) == run(size, blocks_of(other))


@given(sizes, st.integers(1, 10))
def test_a_stream_reopened_at_any_position_goes_on_with_the_same_batches(sizes: list[int], size: int) -> None:
    batches = run(size, blocks_of(sizes))
    total = sum(sizes)
    for number, (_, position) in enumerate(batches):
        start = position[0]["sample"]
        rest = [Rows(list(range(start, total)), OffsetTrail(start, None))]
        assert run(size, rest) == batches[number + 1 :]


@given(sizes, st.integers(1, 25))
def test_each_sample_of_a_batch_is_known_by_its_place(sizes: list[int], size: int) -> None:
    for block in blocks_of(sizes):
        assert block.samples == [block.trail.place(index).sample for index in range(len(block))]
    for batch in cut(size, blocks_of(sizes)):
        assert batch.samples == [batch.trail.place(index).sample for index in range(len(batch))]


def test_positions_are_asked_only_by_who_wants_them() -> None:
    trail = CountingTrail(0)
    batches = list(Gather(4).feed(Rows(list(range(10)), trail)))
    assert trail.asked == []
    assert [position for _, position in placed(batches)] == [[{"sample": 4}], [{"sample": 8}]]
    assert trail.asked == [3, 7]


def test_a_consumer_that_stops_half_way_through_a_block_does_not_upset_the_next_one() -> None:
    gather = Gather(2)
    first, second = blocks_of([5, 3])
    next(gather.feed(first))
    assert [batch.samples for batch in gather.feed(second)] == [[4, 5], [6, 7]]


def test_two_iterators_taken_in_the_wrong_order_still_hold_their_own_batches() -> None:
    gather = Gather(2)
    one, two = (gather.feed(block) for block in blocks_of([3, 3]))
    assert [batch.samples for batch in two] == [[2, 3], [4, 5]]
    assert [batch.samples for batch in one] == [[0, 1]]


def test_the_samples_of_a_block_are_not_changed() -> None:
    gather = Gather(4)
    first, second = blocks_of([3, 3])
    list(gather.feed(first))
    list(gather.feed(second))
    assert first.samples == [0, 1, 2]
    assert second.samples == [3, 4, 5]


def test_a_batch_is_a_list_of_its_own_even_if_it_is_the_whole_block() -> None:
    (block,) = blocks_of([3])
    (batch,) = Gather(3).feed(block)
    batch.samples.append("mine")
    assert block.samples == [0, 1, 2]


def test_finish_leaves_nothing_behind() -> None:
    gather = Gather(4)
    (block,) = blocks_of([3])
    list(gather.feed(block))
    assert gather.lacking == 1
    (rest,) = placed([gather.finish() or pytest.fail("there are three samples")])
    assert rest == ([0, 1, 2], [{"sample": 3}])
    assert gather.finish() is None
    assert gather.lacking == 4


def test_an_empty_block_keeps_the_position_of_the_sample_before_it() -> None:
    gather = Gather(4)
    (block,) = blocks_of([2])
    list(gather.feed(block))
    assert list(gather.feed(Rows([], CountingTrail(99)))) == []
    rest = gather.finish()
    assert rest is not None
    assert placed([rest]) == [([0, 1], [{"sample": 2}])]


def test_what_was_cut_is_held_by_nobody_else_while_it_is_used() -> None:
    class Sample:
        pass

    gather = Gather(2)
    block = Rows([Sample()], OffsetTrail(0, None))
    watched = weakref.ref(block.samples[0])
    list(gather.feed(block))
    del block
    groups = gather.feed(Rows([Sample(), Sample()], OffsetTrail(1, None)))
    assert watched() is next(groups).rows()[0]
    assert watched() is None


def test_a_trail_of_several_blocks_ends_where_they_end() -> None:
    trail = join(blocks_of([2, 3])).trail
    assert trail.place(4).sample == 4
    for look_up in (trail.place, trail.after):
        with pytest.raises(IndexError):
            look_up(5)
