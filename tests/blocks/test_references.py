"""What a batch is made of, told in runs: the same samples that its places name, whatever it went through."""

from __future__ import annotations

import pickle
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncloader.blocks import (
    MOST_TABLES,
    Block,
    Columns,
    Gather,
    NestedTrail,
    OffsetTrail,
    Origin,
    Rows,
    SourceTrail,
    Tables,
    join,
    resolve,
    runs_on,
)
from asyncloader.plan.lanes import draw_order


def _shard(number: int, count: int, first: int = 0, columns: bool = False) -> Block:
    trail = NestedTrail(SourceTrail(OffsetTrail(first, None), f"{number}.tar", number, 0), {"shard": number})
    values = [{"n": number * 1000 + first + index} for index in range(count)]
    return Columns({"n": np.array([v["n"] for v in values])}, trail) if columns else Rows(values, trail)


def _placed(block: Block) -> Counter[Any]:
    places = [block.trail.place(index) for index in range(len(block))]
    return Counter((Origin((), place.number, place.repetition), place.sample) for place in places)


def _told(batches: list[Block]) -> Counter[Any]:
    """What somebody is told who receives the batches."""
    sent, known, found = Tables(0), {}, Counter[Any]()
    for batch in batches:
        tables, runs = pickle.loads(pickle.dumps(sent.refer(batch.trail.bases(0, len(batch)))))
        known.update(tables)
        for number, start, stop in runs:
            for origin, samples in resolve(known[number], [(start, stop)], draw_order):
                found.update((origin, sample) for sample in samples)
    return found


@given(st.data(), st.booleans())
def test_what_is_told_is_what_the_places_say(data: st.DataObject, columns: bool) -> None:
    blocks = [_shard(number, data.draw(st.integers(1, 9)), 3, columns) for number in range(4)]
    block = join(blocks)
    for _ in range(data.draw(st.integers(0, 3))):
        if data.draw(st.booleans()):
            start = data.draw(st.integers(0, len(block) - 1))
            block = block.part(start, data.draw(st.integers(start + 1, len(block))))
        else:
            block = block.take(data.draw(st.lists(st.integers(0, len(block) - 1), min_size=1)))
    gather = Gather(data.draw(st.integers(1, 7)))
    batches = [*gather.feed(block), *filter(None, [gather.finish()])]
    assert _told(batches) == sum(map(_placed, batches), Counter())
    found = block.trail.provenance(np.arange(len(block)))
    assert Counter((origin, s) for origin, samples in found.by_origin() for s in samples) == _placed(block)


def test_neighbours_are_told_as_one_run() -> None:
    block = _shard(0, 20)
    assert [run[1:] for run in runs_on(block.trail, [3, 4, 5, 9, 8])] == [(3, 6), (9, 10), (8, 9)]


def test_a_table_is_told_once_and_again_when_it_was_forgotten() -> None:
    sent, blocks = Tables(0), [_shard(number, 3) for number in range(MOST_TABLES + 1)]
    tell = [len(sent.refer(block.trail.bases(0, 3)).tables) for block in [blocks[0], *blocks, blocks[0]]]
    assert tell == [1, 0, *[1] * MOST_TABLES, 1]


@pytest.mark.parametrize("delivered", [[(0, 50)], [(0, 7)], [(7, 50)], [(3, 4), (9, 12)]])
def test_a_window_is_told_by_what_draws_its_order(delivered: list[tuple[int, int]]) -> None:
    from asyncloader.blocks import OriginTable

    table = OriginTable([((), 1, 0)], None, range(100, 150), (7, 1))
    order = draw_order(50, 7, 1)
    wanted = Counter(100 + int(order[at]) for start, stop in delivered for at in range(start, stop))
    found = Counter(int(s) for _, samples in resolve(table, delivered, draw_order) for s in samples)
    assert found == wanted
