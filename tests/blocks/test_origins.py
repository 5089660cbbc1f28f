"""Where the samples of a batch came from, in columns: what their places say, whatever they went through."""

from __future__ import annotations

import pickle
from collections import Counter
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from asyncloader.blocks import Block, Columns, Gather, OffsetTrail, Origin, Origins, Rows, join, origins_of


def _shard(number: int, count: int, first: int = 0, columns: bool = False) -> Block:
    trail = OffsetTrail(first, None).within(f"{number}.tar", number, 0).with_entry(0, {"shard": number})
    values = [{"n": number * 1000 + first + index} for index in range(count)]
    return Columns({"n": np.array([v["n"] for v in values])}, trail) if columns else Rows(values, trail)


def _placed(block: Block) -> Counter[Any]:
    places = [block.trail.place(index) for index in range(len(block))]
    return Counter((Origin((), place.number, place.repetition), place.sample) for place in places)


def _counted(origins: Origins) -> Counter[Any]:
    return Counter((origin, int(sample)) for origin, samples in origins.by_shard() for sample in samples)


@given(st.data(), st.booleans())
def test_columns_say_what_the_places_say(data: st.DataObject, columns: bool) -> None:
    numbers = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=4))
    block = join([_shard(number, data.draw(st.integers(1, 9)), 3, columns) for number in numbers])
    for _ in range(data.draw(st.integers(0, 3))):
        if data.draw(st.booleans()):
            start = data.draw(st.integers(0, len(block) - 1))
            block = block.part(start, data.draw(st.integers(start + 1, len(block))))
        else:
            block = block.take(data.draw(st.lists(st.integers(0, len(block) - 1), min_size=1)))
        # A sample holds its number, whatever else is known of it.
        assert [row["n"] for row in block.rows()] == [
            place.number * 1000 + place.sample for place in map(block.trail.place, range(len(block)))
        ]
    gather = Gather(data.draw(st.integers(1, 7)))
    for batch in [*gather.feed(block), *filter(None, [gather.finish()])]:
        origins = batch.trail.origins.of(range(len(batch)))
        assert _counted(origins) == _counted(pickle.loads(pickle.dumps(origins))) == _placed(batch)
        assert _counted(origins_of([(batch.trail, index) for index in range(len(batch))])) == _placed(batch)


def test_neighbours_stay_a_run_and_a_run_is_the_size_of_a_range() -> None:
    block = join([_shard(0, 5), _shard(0, 6, first=5)])
    assert block.trail.origins.is_run and block.trail.origins.samples == range(11)
    assert not join([_shard(0, 5), _shard(0, 6, first=7)]).trail.origins.is_run
    assert not join([_shard(0, 5), _shard(1, 6, first=5)]).trail.origins.is_run
    assert block.trail.origins.size_bytes == 0


def test_a_sample_takes_twelve_bytes_where_several_shards_are_mixed() -> None:
    picked = join([_shard(0, 50), _shard(1, 50)]).take([*range(0, 100, 2)])
    assert picked.trail.origins.size_bytes == 12 * 50
    assert len(pickle.dumps(picked.trail.origins)) < 12 * 50 + 400


def test_samples_that_were_picked_keep_only_their_own_shards() -> None:
    whole = join([_shard(number, 2) for number in range(100)])
    assert len(whole.take([3, 150, 151]).trail.origins.shards) == 2


def test_no_sample_is_of_no_shard() -> None:
    assert [*origins_of([]).by_shard()] == []
    assert origins_of([]).count_components(2) == [0, 0]


def test_lines_are_counted_with_the_blank_ones_before() -> None:
    block = Rows([*"abcd"], OffsetTrail(7, [1, 2, 3, 4], line=9, blanks={1: 2, 3: 1}))
    assert [block.trail.place(index).line for index in range(4)] == [9, 12, 13, 15]
    assert [block.take([3, 0]).trail.place(index).line for index in range(2)] == [15, 9]
