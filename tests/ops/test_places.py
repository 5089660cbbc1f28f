from __future__ import annotations

from collections.abc import Sequence

import pytest

from asyncloader.blocks import Place
from asyncloader.flow.engine import Engine
from asyncloader.pipeline.filter import Filter
from asyncloader.pipeline.map import Map
from asyncloader.pipeline.op import Op
from asyncloader.pipeline.shuffle import Shuffle
from asyncloader.pipeline.take import Repeat, Take

from .running import Listed, lane_of, places_of, positions_of


async def _same(sample: int) -> int:
    return sample


PIPELINES: list[Sequence[Op]] = [
    [],
    [Filter(lambda sample: sample % 3)],
    [Shuffle(7), Filter(lambda sample: sample % 3), Shuffle(5)],
    [Map(abs), Shuffle(64)],
    [Shuffle(9), Map(abs, concurrency=3), Map(_same, 4)],
    [Filter(lambda sample: sample % 2), Shuffle(6), Take(13)],
]


@pytest.mark.parametrize("ops", PIPELINES)
def test_a_place_names_the_sample_whatever_happened_to_it_since(ops: Sequence[Op], engine: Engine) -> None:
    lane = lane_of(engine, lane=1, lanes=2)
    for sizes in ((3, 1, 4), (50,), (1,)):
        placed = list(places_of(Listed(range(40), sizes), ops, lane))
        assert placed
        assert all(place == Place("listed", sample, 1, 0) for sample, place in placed)


@pytest.mark.parametrize("ops", PIPELINES)
def test_a_place_is_the_same_after_a_resume(ops: Sequence[Op], engine: Engine) -> None:
    lane = lane_of(engine)
    whole = list(places_of(Listed(range(40)), ops, lane))
    for done, (_, position) in enumerate(positions_of(Listed(range(40)), ops, lane), 1):
        assert list(places_of(Listed(range(40)), ops, lane, position)) == whole[done:]


def test_a_place_says_which_repetition_it_is_also_where_repeats_nest(engine: Engine) -> None:
    placed = list(places_of(Listed(range(4)), [Repeat(2), Shuffle(8), Repeat(2)], lane_of(engine)))
    assert len({place for _, place in placed}) == len(placed) == 16
    assert sorted({place.repetition for _, place in placed}) == [0, 1, 2, 3]
