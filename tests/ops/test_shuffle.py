from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from asyncloader.flow.engine import Engine
from asyncloader.pipeline.shuffle import Shuffle
from asyncloader.pipeline.take import Repeat

from .running import Listed, lane_of, run


@settings(deadline=None)
@given(count=st.integers(0, 100), window=st.integers(1, 120), seed=st.integers(0, 5))
def test_every_window_is_permuted_within_itself(count: int, window: int, seed: int, engine: Engine) -> None:
    shuffled = run(Listed(range(count)), [Shuffle(window, seed)], lane_of(engine))
    for first in range(0, count, window):
        part = shuffled[first : first + window]
        assert sorted(part) == list(range(first, min(first + window, count)))


def test_the_order_is_the_same_in_every_release(engine: Engine) -> None:
    lane = lane_of(engine, lane=1, lanes=2, epoch=3)
    assert run(Listed(range(10)), [Shuffle(6, 42)], lane) == [0, 1, 3, 2, 5, 4, 9, 8, 7, 6]


def test_seed_epoch_lane_repetition_and_window_each_draw_anew(engine: Engine) -> None:
    lane = lane_of(engine, lane=0, lanes=4)
    samples = range(40)
    drawn = [
        run(Listed(samples), [Shuffle(20)], lane),
        run(Listed(samples), [Shuffle(20, seed=1)], lane),
        run(Listed(samples), [Shuffle(20)], lane_of(engine, lane=1, lanes=4)),
        run(Listed(samples), [Shuffle(20)], lane_of(engine, lane=0, lanes=4, epoch=1)),
        run(Listed(samples), [Shuffle(20)], lane.repeated(1)),
    ]
    assert len({tuple(order) for order in drawn}) == len(drawn)
    first, second = drawn[0][:20], [number - 20 for number in drawn[0][20:]]
    assert first != second


def test_each_repetition_is_shuffled_anew_also_where_repeats_nest(engine: Engine) -> None:
    samples = run(Listed(range(20)), [Shuffle(20), Repeat(2), Repeat(3)], lane_of(engine))
    parts = [tuple(samples[first : first + 20]) for first in range(0, 120, 20)]
    assert len(set(parts)) == 6
    assert all(sorted(part) == list(range(20)) for part in parts)


def test_the_size_of_the_world_does_not_matter_only_the_lane(engine: Engine) -> None:
    lane = lane_of(engine, lane=2, lanes=4)
    elsewhere = replace(lane, topology=replace(lane.topology, rank=1, world_size=2))
    samples = range(30)
    assert run(Listed(samples), [Shuffle(9)], lane) == run(Listed(samples), [Shuffle(9)], elsewhere)
