"""What is told of a pass stays as it is, is plain JSON, and is what its page says."""

from __future__ import annotations

import inspect
import json
import re
import threading
import time
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import pytest

import asyncloader as al
from asyncloader.observe.report import Setup, judge
from asyncloader.observe.statistics import Calls, Maker, Meter, Network, NetworkCounts, Statistics, Totals
from asyncloader.observe.stopwatch import Spent

REFERENCE = Path(__file__).parent.parent / "docs" / "reference"

FULL = Statistics(
    state="ended",
    passes=3,
    epoch=2,
    batches=4,
    samples=64,
    elapsed_s=2.0,
    wait_s=0.5,
    first_batch_s=0.25,
    components={"web": 60, "books": 4},
    network=Network(9, 1, 2, 3),
    makers=(
        Maker(0, {"store": 1.5, "idle": 0.5}, wants_memory=True),
        Maker(1, {"map(f)": 2.0}, {"map(f)": Calls(4.0, 1.0)}),
    ),
)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("operator", ["map", "map_batches"])
def test_what_functions_on_threads_take_is_counted(operator: str, workers: int) -> None:
    def spin(value: Any) -> Any:
        until = time.thread_time() + 0.01
        while time.thread_time() < until:
            pass
        return value

    numbers = al.from_iterable([{"number": number} for number in range(32)])
    recipe = numbers.map(spin, concurrency=2)
    if operator == "map_batches":
        recipe = numbers.map_batches(spin, batch_size=1, concurrency=2)
    loader = al.DataLoader(recipe, 4, num_workers=workers)
    list(loader)
    (maker,) = loader.statistics.makers
    (calls,) = (calls for stage, calls in maker.calls.items() if stage.startswith(f"{operator}("))
    assert calls.cpu_s >= 32 * 0.01


def test_they_are_json_and_come_back_from_it() -> None:
    saved = json.loads(json.dumps(FULL.as_dict()))
    assert saved["wait_share"] == 0.25
    assert saved["makers"][1] == {
        "worker": 1,
        "stages_s": {"map(f)": 2.0},
        "calls": {"map(f)": {"took_s": 4.0, "cpu_s": 1.0, "delay_s": 0.0}},
        "wants_memory": False,
        "cpu_s": 0.0,
    }
    assert Statistics.from_dict(saved) == FULL
    assert Statistics.from_dict({"batches": 3, "what_came_later": 1}) == Statistics(batches=3)


def test_a_time_that_an_older_version_saved_below_0_by_rounding_comes_back() -> None:
    saved = Statistics(makers=(Maker(0, {"store": -1e-18}),)).as_dict()
    assert Statistics.from_dict(saved).makers[0].stages_s == {"store": -1e-18}


@pytest.mark.parametrize("saved", [{}, {"batches": 1, "network": {"sent": 3}}, {"batches": 1, "makers": [3]}])
def test_what_is_none_of_them_is_refused(saved: Any) -> None:
    with pytest.raises(ValueError, match=r"expected a dict as Statistics\.as_dict\(\) makes it"):
        Statistics.from_dict(saved)


def test_nothing_in_them_can_be_set() -> None:
    with pytest.raises(FrozenInstanceError):
        FULL.batches = 3  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        FULL.network.requests = 3  # type: ignore[misc]


def test_the_first_ones_say_that_nothing_has_begun() -> None:
    loader = al.DataLoader(al.from_iterable(range(8)), 4)
    assert loader.statistics == Statistics()
    assert (loader.statistics.state, loader.statistics.passes) == ("none", 0)
    assert repr(loader.statistics) == "Statistics(no pass has begun)"


def test_what_was_told_in_a_pass_stays_as_it_was() -> None:
    loader = al.DataLoader(al.from_iterable(range(12)), 4)
    told = [loader.statistics for _ in loader]
    assert [(each.batches, each.samples, each.state) for each in told] == [
        (1, 4, "running"),
        (2, 8, "running"),
        (3, 12, "running"),
    ]
    assert (loader.statistics.state, loader.statistics.batches) == ("ended", 3)
    first_s = told[0].first_batch_s
    assert first_s is not None and 0 < first_s <= told[0].elapsed_s < told[1].elapsed_s
    list(loader)
    assert (loader.statistics.passes, loader.statistics.epoch) == (2, 1)


@pytest.mark.parametrize("dataset", [range(12), al.from_iterable(range(12))])
def test_totals_are_of_all_passes(dataset: Any) -> None:
    loader = al.DataLoader(dataset, 4)
    for passes in (1, 2, 3):
        list(loader)
        totals = loader.statistics.totals()
        assert (totals.batches, totals.samples) == (3 * passes, 12 * passes)
        assert totals.elapsed_s == loader.statistics.earlier.elapsed_s + loader.statistics.elapsed_s
        assert totals.stages_s["collate"] > loader.statistics.earlier.stages_s.get("collate", 0.0)


def test_a_wait_that_goes_on_counts() -> None:
    counters = Meter()
    counters.count(1, 0, 8)
    counters.wait()
    before, after = counters.snapshot(), counters.snapshot()
    assert after.wait_s > before.wait_s
    assert after.elapsed_s >= after.wait_s


def test_a_copy_is_of_one_moment_whoever_counts_meanwhile() -> None:
    counters, going = Meter(components=["all"]), threading.Event()

    def count() -> None:
        while not going.is_set():
            counters.count(2, 3, 5, (2,))
            counters.ask(NetworkCounts(1, 1, 1, 1))
            counters.spend(0, Spent({"store": 1.0, "decode": 1.0}, {}))

    thread = threading.Thread(target=count)
    thread.start()
    try:
        for _ in range(300):
            told = counters.snapshot()
            assert (told.samples, told.tokens, told.size_bytes) == tuple(told.batches * n for n in (2, 3, 5))
            assert told.components == {"all": told.samples}
            assert told.network.requests == told.network.hedges
            assert all(maker.stages_s["store"] == maker.stages_s["decode"] for maker in told.makers)
    finally:
        going.set()
        thread.join()


def test_saved_ones_are_judged_as_those_of_the_pass() -> None:
    setup = Setup(2, True, {}, [], 2, False, False, True, False)
    report = judge(FULL, setup)
    assert judge(Statistics.from_dict(json.loads(json.dumps(FULL.as_dict()))), setup) == report
    assert report.limit == "map(f)"


@pytest.mark.parametrize("of", [Statistics, Maker, Totals, Network, Calls])
def test_the_reference_describes_each_attribute(of: Any) -> None:
    described = re.findall(r"^    (\w+): ", inspect.getdoc(of).partition("Attributes:")[2], re.MULTILINE)
    assert described == [field.name for field in fields(of)]
    api = (REFERENCE / "api.md").read_text()
    shown = re.findall(r"^::: asyncloader\.observe\.[\w.]*?(\w+)$", api, re.MULTILINE)
    assert of.__name__ in shown, "its docstring is on docs/reference/api.md"


def test_the_page_names_each_attribute_of_statistics() -> None:
    named = set(re.findall(r"`(\w+)`", (REFERENCE / "statistics.md").read_text()))
    assert named >= {*(field.name for field in fields(Statistics)), "wait_share"}
