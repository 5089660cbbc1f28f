from __future__ import annotations

from collections import Counter
from contextlib import closing
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import asyncloader as al
from asyncloader.flow.engine import Engine
from asyncloader.pipeline.components import Stages
from asyncloader.pipeline.filter import Filter
from asyncloader.pipeline.lane import Shortfall, describe_shortfalls
from asyncloader.pipeline.take import Repeat, Take

from .running import Listed, lane_of, run


@settings(deadline=None)
@given(wanted=st.integers(1, 60), lanes=st.integers(1, 9))
def test_the_lanes_together_take_exactly_the_count(wanted: int, lanes: int, engine: Engine) -> None:
    taken = [
        len(run(Listed(range(99)), [Take(wanted)], lane_of(engine, lane, lanes))) for lane in range(lanes)
    ]
    assert sum(taken) == wanted
    assert max(taken) - min(taken) <= 1


def test_nothing_is_read_beyond_what_is_taken(engine: Engine) -> None:
    source = Listed(range(1000), (10,))
    assert run(source, [Take(25)], lane_of(engine)) == list(range(25))
    assert source.handed_on == 30 and source.closed == 1


def test_a_lane_whose_share_is_nothing_opens_nothing(engine: Engine) -> None:
    source = Listed(range(10))
    assert run(source, [Take(2)], lane_of(engine, lane=3, lanes=4)) == []
    assert source.opened == []


def test_a_lane_that_has_too_few_says_so_with_the_numbers(engine: Engine) -> None:
    lane = lane_of(engine, 1, 2)
    assert len(run(Listed(range(10)), [Take(30)], lane)) == 10
    assert lane.services.shortfalls == [Shortfall(30, 1, 2, share=15, taken=10)]


def test_shortfalls_of_many_lanes_are_one_sentence() -> None:
    alone = [Shortfall(30, 0, 1, share=30, taken=10)]
    assert describe_shortfalls(alone * 2) == ["take(30) lacks 20 samples: the dataset gave only 10"]
    (sentence,) = describe_shortfalls(Shortfall(50, lane, 5, share=10, taken=lane) for lane in range(5))
    assert "lacks 40 samples: of 5 lanes lane 0 ended after 0 of its 10, lane 1 " in sentence
    assert "lane 2 ended after 2 of its 10, and 2 more." in sentence


@pytest.mark.parametrize("times", [1, 2, 5])
def test_repeat_gives_all_samples_so_many_times(times: int, engine: Engine) -> None:
    source = Listed(range(7))
    assert run(source, [Repeat(times)], lane_of(engine)) == list(range(7)) * times
    assert [lane.repetition for lane in source.opened] == list(range(times))


def test_repeat_without_a_number_goes_on_for_ever(engine: Engine) -> None:
    blocks = Stages(Listed(range(3), (3,)), (Repeat(None),)).open([], lane_of(engine))
    for _ in range(500):
        assert next(blocks).rows() == [0, 1, 2]
    blocks.close()


@pytest.mark.parametrize("times", [None, 3])
def test_an_empty_lane_repeated_for_ever_ends(times: int | None, engine: Engine) -> None:
    source = Listed([])
    assert run(source, [Repeat(times)], lane_of(engine)) == []
    assert len(source.opened) == (101 if times is None else times)


@pytest.mark.parametrize("times", [None, 9])
def test_a_lane_that_is_empty_in_one_repetition_goes_on_with_the_next(
    times: int | None, engine: Engine
) -> None:
    calls = count()

    def every_third(sample: int) -> bool:
        return next(calls) % 3 == 2

    recipe = Stages(Listed([7]), (Filter(every_third), Repeat(times)))
    with closing(recipe.open([], lane_of(engine))) as blocks:
        came = [sample for block in islice(blocks, 3) for sample in block.rows()]
    assert came == [7, 7, 7]
    assert next(calls) == 9


@pytest.mark.parametrize("lanes", [1, 2, 3, 5])
def test_shuffled_and_repeated_shards_lose_nothing_though_some_are_empty(lanes: int, tmp_path: Path) -> None:
    for shard, size in enumerate((4, 0, 0, 3, 0)):
        lines = "".join(f'{{"n": {10 * shard + index}}}\n' for index in range(size))
        (tmp_path / f"{shard}.jsonl").write_text(lines)
    recipe = al.from_urls(str(tmp_path / "{0..4}.jsonl")).shuffle(2).repeat(6)
    came = Counter(sample["n"] for sample in al.DataLoader(recipe, None, lanes=lanes))
    assert came == Counter({number: 6 for number in (0, 1, 2, 3, 30, 31, 32)})


def test_take_ends_a_repeat_without_a_number(engine: Engine) -> None:
    assert run(Listed(range(3)), [Repeat(None), Take(7)], lane_of(engine)) == [0, 1, 2, 0, 1, 2, 0]


def refused(columns: dict[str, Any]) -> Any:
    return np.zeros(len(columns["n"]), np.bool_)


def numbers(count: int) -> list[dict[str, int]]:
    return [{"n": number} for number in range(count)]


ENDLESS = al.from_iterable(numbers(7)).repeat()
MANY = al.from_iterable(numbers(300_000)).repeat()


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("recipe", "told"),
    [
        (ENDLESS.filter(lambda sample: False), r"^filter\(<lambda>\) has kept none of 7\d\d samples, in 101"),
        (ENDLESS.filter(lambda sample: True).filter(lambda sample: None), r"^filter.*in 101 repetitions"),
        (ENDLESS.filter_batches(refused, batch_size=3), r"^filter_batches\(refused\) has kept none"),
        (
            MANY.filter_batches(refused, batch_size=50_000),
            r"kept none of 1\d{6} samples, in [34] repetitions",
        ),
    ],
    ids=["filter", "second", "batches", "many samples"],
)
def test_a_filter_that_keeps_nothing_of_an_endless_repetition_is_an_error_that_names_it(
    recipe: Stages, told: str, workers: int
) -> None:
    loader = al.DataLoader(recipe, 2, num_workers=workers)
    with loader, pytest.raises(RuntimeError, match=told):
        next(iter(loader))


FINITE = al.from_iterable(numbers(7))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("recipe", "told"),
    [
        (FINITE.filter(lambda sample: False), r"no batch: filter\(<lambda>\) kept no row or sample"),
        (FINITE.filter_batches(refused, batch_size=3), r"no batch: filter_batches\(refused\) kept no row"),
    ],
    ids=["filter", "batches"],
)
def test_a_filter_that_keeps_nothing_of_an_epoch_is_told(recipe: Stages, told: str, workers: int) -> None:
    with (
        al.DataLoader(recipe, 2, num_workers=workers) as loader,
        pytest.warns(UserWarning, match=told) as warned,
    ):
        assert [*loader] == []
    assert [each.filename for each in warned] == [__file__]


def test_a_filter_that_keeps_little_of_an_endless_repetition_goes_on() -> None:
    kept = al.from_iterable(numbers(3)).repeat().filter(lambda sample: al.sample_rng().random() < 0.02)
    with al.DataLoader(kept.filter(lambda sample: sample["n"] < 2).take(20), 2) as loader:
        assert sum(len(batch["n"]) for batch in loader) == 20
    few = al.from_iterable(numbers(2)).repeat().filter(lambda sample: sample["n"] == 1).shuffle(500).take(600)
    with al.DataLoader(few, 100) as loader:
        assert [len(batch["n"]) for batch in loader] == 6 * [100]
