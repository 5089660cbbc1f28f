"""The schedule of mixtures: weights kept at every prefix, and any draw worked out from its number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncloader.plan.mixing import Draws, Schedule, leg_of, mixed_count

weight = st.floats(1e-6, 1e6) | st.just(0.0) | st.integers(0, 9).map(float)
weights = st.lists(weight, min_size=1, max_size=9).filter(any)
keys = st.lists(st.integers(-5, 2**40), max_size=4)


def largest_error(weights: Sequence[float], drawn: np.ndarray) -> float:
    """How far any component is from its weight's part, at any prefix."""
    numbers = np.arange(1, len(drawn) + 1)
    return max(
        float(np.abs(np.cumsum(drawn == component) - weight / math.fsum(weights) * numbers).max())
        for component, weight in enumerate(weights)
    )


@given(weights, keys, st.integers(1, 3000))
def test_at_every_prefix_each_component_is_near_its_weights_part(
    weights: list[float], key: list[int], count: int
) -> None:
    error = largest_error(weights, Schedule(weights, key).draws(0, count))
    assert error <= (1 + 1e-6 if np.count_nonzero(weights) <= 4 else 2)


@pytest.mark.parametrize("count", [2, 3, 4, 7, 30, 100])
def test_weights_are_kept_to_within_one_sample_per_thousand(count: int) -> None:
    source = np.random.default_rng(count)
    for key in range(5):
        weights = (source.random(count) ** 3).tolist()
        for thousands in (2, 20):
            assert largest_error(weights, Schedule(weights, (key,)).draws(0, 1000 * thousands)) < thousands


@given(weights, keys, st.integers(0, 2**40), st.integers(0, 1500), st.integers(0, 1500))
def test_a_draw_is_the_same_wherever_one_begins(
    weights: list[float], key: list[int], first: int, skip: int, count: int
) -> None:
    schedule = Schedule(weights, key)
    whole = schedule.draws(first, skip + count)
    assert schedule.draws(first + skip, count).tolist() == whole[skip:].tolist()
    counted = np.subtract(schedule.counts(first + skip + count), schedule.counts(first))
    assert counted.tolist() == np.bincount(whole, minlength=len(weights)).tolist()
    assert not set(whole.tolist()) & {number for number, weight in enumerate(weights) if not weight}


@given(weights, keys, st.integers(0, 2**30))
def test_a_sample_is_found_at_its_draw(weights: list[float], key: list[int], nth: int) -> None:
    schedule = Schedule(weights, key)
    for component, weight in enumerate(weights):
        if weight:
            draw = schedule.find(component, nth)
            assert isinstance(draw, int)
            assert schedule.draws(draw, 1).tolist() == [component]
            assert schedule.counts(draw)[component] == nth
    assert schedule.find(int(np.argmax(weights)), math.inf) == math.inf


def test_lanes_do_not_draw_from_a_rare_component_at_the_same_time() -> None:
    firsts = [Schedule([99, 1], (0, 0, lane)).find(1, 0) for lane in range(200)]
    # Evenly over its first hundred draws: a quarter in each quarter, give or take.
    assert max(firsts) <= 100
    assert all(30 <= found <= 70 for found in np.histogram(firsts, 4, (0, 100))[0])


def test_a_rare_component_comes_as_often_in_all_lanes_together_as_its_weight_says() -> None:
    counts = np.sum([Schedule([700, 299, 1], (lane,)).counts(250) for lane in range(400)], axis=0)
    assert abs(counts[2] - 100) < 40, "a quarter of a sample for each of 400 lanes"


def test_schedules_are_the_same_in_every_release() -> None:
    """A saved position means the same samples for as long as the file exists: never change these."""
    drawn = Schedule([0.7, 0.2, 0.1], (0, 0, 0, 0)).draws(0, 20).tolist()
    assert drawn == PINNED_THREE
    drawn = Schedule([5, 1, 0, 2, 3, 1], (42, 1)).draws(10**12, 20).tolist()
    assert drawn == PINNED_SIX


PINNED_THREE = [2, 0, 0, 0, 1, 0, 0, 1, 0, 0, 2, 0, 0, 0, 1, 0, 0, 1, 0, 0]
PINNED_SIX = [5, 0, 4, 0, 3, 0, 4, 1, 0, 3, 0, 4, 5, 0, 4, 0, 3, 0, 4, 1]


@given(weights, keys, st.integers(0, 3000), st.lists(st.integers(0, 40), min_size=1, max_size=80))
def test_draws_are_made_as_far_as_there_are_samples(
    weights: list[float], key: list[int], drawn: int, arriving: list[int]
) -> None:
    """Whatever comes when, the draws together are those of the schedule."""
    draws = Draws(weights, key, drawn)
    held = [0] * len(weights)
    made: list[int] = []
    for samples in arriving:
        assert draws.drawn == drawn + len(made)
        held[draws.due] += samples
        taken, counts = draws.take(held)
        part = taken.tolist()
        assert counts == [part.count(component) for component in range(len(weights))]
        for component in part:
            held[component] -= 1
        assert min(held) >= 0
        made += part
    assert made == Schedule(weights, key).draws(drawn, len(made)).tolist()


def played(weights: Sequence[float], key: Sequence[int], counts: Sequence[float], stop: str) -> int:
    """How many samples come, by drawing them one by one."""
    left, given, finished = list(counts), [0] * len(counts), set[int]()
    gone: list[int] = []
    live = [number for number, weight in enumerate(weights) if weight]
    total, drawn, leg = 0, 0, Schedule(weights, key)
    while live:
        (due,) = leg.draws(drawn, 1).tolist()
        if left[due]:
            left[due] -= 1
            given[due] += 1
            total, drawn = total + 1, drawn + 1
            continue
        if given[due] and stop == "first":
            return total
        if given[due] and stop == "repeat":
            finished.add(due)
            if finished >= set(live):
                return total
            left[due] = counts[due]
            continue
        gone.append(due)
        live.remove(due)
        if live:
            drawn, leg = 0, Schedule(*leg_of(weights, key, gone))
    return total


@given(st.data(), weights, keys, st.sampled_from(["first", "all", "repeat"]))
def test_the_length_is_that_of_the_draws_made_one_by_one(
    data: st.DataObject, weights: list[float], key: list[int], stop: str
) -> None:
    weights = [min(max(weight, 0.5), 10.0) if weight else 0.0 for weight in weights[:4]]
    if not any(weights):
        weights[0] = 1.0
    counts = [data.draw(st.integers(0, 8)) for _ in weights]
    finite = [False] * len(counts)
    assert mixed_count(weights, key, counts, finite, stop) == played(weights, key, counts, stop)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("counts", "endless", "stop", "expected"),
    [
        ([math.inf, math.inf], [True, True], "first", math.inf),
        ([math.inf, 5], [True, False], "all", math.inf),
        ([math.inf, 5], [True, False], "repeat", math.inf),
        # The lane has nothing of a component: of one that would go on for ever, and of the one that does not.
        ([math.inf, 0], [True, True], "first", math.inf),
        ([math.inf, 0], [True, False], "first", 1),
    ],
)
def test_a_mixture_with_endless_components_ends_where_another_one_ends_it(
    counts: list[float], endless: list[bool], stop: Any, expected: float
) -> None:
    found = mixed_count([1, 1], (0,), counts, endless, stop)
    assert found == expected or (expected == 1 and found <= 1)


def test_an_endless_component_leaves_the_end_to_the_others() -> None:
    assert abs(mixed_count([1, 1], (0,), [math.inf, 5], [True, False], "first") - 10) <= 1
