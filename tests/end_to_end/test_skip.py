"""What is passed over within a budget: bad samples and bad shards, the same ones after every resume."""

from __future__ import annotations

import json
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncloader as al

from .skipping import EACH, MANY, SHARDS, drained, loader_of, numbers_of, write_numbers

pytestmark = pytest.mark.usefixtures("fork_server")

#: Of which functions make nothing.
BAD = {4, 5, 17, 21, 22, 23, 43}
GOOD = [number for number in range(SHARDS * EACH) if number not in BAD]


def _check(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["n"] in BAD:
        raise ValueError(f"no {sample['n']}")
    return sample


async def _check_later(sample: dict[str, Any]) -> dict[str, Any]:
    return _check(sample)


def _keep_if_good(sample: dict[str, Any]) -> bool:
    return bool(_check(sample))


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return write_numbers(tmp_path_factory.mktemp("skipped"))


RECIPES: dict[str, Callable[[list[str]], al.Dataset]] = {
    "map": lambda paths: al.from_urls(paths).map(_check),
    "map on threads, shuffled": lambda paths: al.from_urls(paths).shuffle(6).map(_check, concurrency=3),
    "map of coroutines": lambda paths: al.from_urls(paths).map(_check_later, concurrency=3).shuffle(5),
    "filter": lambda paths: al.from_urls(paths).filter(_keep_if_good).shuffle(5),
    "both": lambda paths: (
        al.from_urls(paths).filter(lambda s: _check(s)["n"] != 8).shuffle(4).map(_check).map(dict)
    ),
    "mixed": lambda paths: al.mix(
        [al.from_urls(paths[:2]).map(_check), al.from_urls(paths[2:]).filter(_keep_if_good)], stop="all"
    ),
}


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize(("ranks", "workers"), [(1, 0), (1, 2), (2, 0), (2, 2)])
def test_bad_samples_are_passed_over_and_all_others_come(
    name: str, ranks: int, workers: int, paths: list[str], tmp_path: Path
) -> None:
    numbers, skipped = [], 0
    for rank in range(ranks):
        options = {"rank": rank, "world_size": ranks, "num_workers": workers, "audit": tmp_path}
        loader = loader_of(RECIPES[name](paths), **options)
        numbers += drained(loader)
        skipped += loader.statistics.skipped
    assert sorted(numbers) == [number for number in GOOD if name != "both" or number != 8]
    assert skipped == len(BAD)
    (verdict,) = al.tools.verify_audit(tmp_path)
    assert verdict.verdict == "exact"
    assert (verdict.samples, "on_error=SkipErrors(...)" in verdict.reasons) == (len(numbers), True)


@pytest.mark.parametrize("name", RECIPES)
def test_what_was_skipped_stays_so_after_every_resume_and_counts_once(name: str, paths: list[str]) -> None:
    loader = loader_of(RECIPES[name](paths))
    states, batches = [loader.state_dict()], []
    for batch in loader:
        batches.append(batch)
        states.append(json.loads(json.dumps(loader.state_dict())))
    for delivered, state in enumerate(states[:-1]):
        resumed = loader_of(RECIPES[name](paths), num_workers=2 if delivered == 3 else 0)
        resumed.load_state_dict(state)
        assert [batch for batch in resumed] == batches[delivered:]
        assert resumed.statistics.skipped == len(BAD), f"after {delivered}"


def test_counts_of_repetitions_add_up(paths: list[str]) -> None:
    def make() -> al.DataLoader[Any]:
        return loader_of(al.from_urls(paths).shuffle(4).map(_check).repeat(3))

    loader, states = make(), []
    for _ in loader:
        states.append(loader.state_dict())
    assert loader.statistics.skipped == 3 * len(BAD)
    for state in states[:-1:4]:
        resumed = make()
        resumed.load_state_dict(state)
        drained(resumed)
        assert resumed.statistics.skipped == 3 * len(BAD)


def test_a_replaced_worker_skips_and_counts_what_the_killed_one_did(paths: list[str]) -> None:
    recipe = al.from_urls(paths).map(_check).map(lambda sample: {**sample, "pid": os.getpid()})
    loader = loader_of(recipe, num_workers=2, collate_fn=lambda samples: samples)
    numbers = []
    for number, batch in enumerate(loader):
        numbers += numbers_of(batch)
        if number == 2:
            os.kill(batch[0]["pid"], signal.SIGKILL)
    assert sorted(numbers) == GOOD
    assert (loader.statistics.skipped, loader.statistics.worker_restarts) == (len(BAD), 1)


@pytest.mark.parametrize("workers", [0, 2])
def test_what_is_skipped_is_logged_the_first_one_as_a_warning(
    workers: int, paths: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "asyncloader"):
        drained(loader_of(al.from_urls(paths).map(_check), num_workers=workers))
    said = [record for record in caplog.records if record.name == "asyncloader.skips"]
    assert (
        [record.levelno for record in said].count(logging.WARNING) == 1 == said[0].levelno // logging.WARNING
    )
    assert "samples and shards; the last error was " in said[0].getMessage()


@pytest.mark.parametrize("name", ["both", "mixed"])
def test_killed_workers_of_several_ranks_change_nothing_of_what_is_skipped(
    name: str, paths: list[str], tmp_path: Path
) -> None:
    dead = tmp_path / "dead.jsonl"

    def rank_of(rank: int, kills: bool) -> tuple[list[list[int]], int]:
        recipe = RECIPES[name](paths).map(lambda sample: {**sample, "pid": os.getpid()})
        loader = loader_of(
            recipe,
            al.SkipErrors(max=MANY, dead_letters=dead),
            batch_size=2,
            lanes=4,
            rank=rank,
            world_size=2,
            num_workers=2 if kills else 0,
            prefetch_factor=1 if kills else None,
            worker_restarts=4,
            collate_fn=list,
            audit=tmp_path / f"audit, kills={kills}",
        )
        killed: set[int] = set()
        batches = []
        for number, batch in enumerate(loader):
            batches.append(numbers_of(batch))
            pid = batch[0]["pid"]
            if kills and number in (0, 2, 4) and pid not in killed:
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
        assert len(killed) - 2 <= loader.statistics.worker_restarts <= len(killed)
        assert bool(killed) == kills
        return batches, loader.statistics.skipped

    for rank in range(2):
        assert rank_of(rank, True) == rank_of(rank, False)
    letters = {(line["lane"], line["key"]) for line in map(json.loads, dead.read_text().splitlines())}
    assert {key for _, key in letters} == {f"k{number}" for number in BAD} and len(letters) == len(BAD)
    for kills in (True, False):
        (verdict,) = al.tools.verify_audit(tmp_path / f"audit, kills={kills}")
        assert verdict.verdict == "exact", str(verdict)


def test_batches_as_they_are_done_count_alike(paths: list[str]) -> None:
    loader = loader_of(al.from_urls(paths).map(_check), num_workers=2, in_order=False)
    assert drained(loader) == GOOD
    assert loader.statistics.skipped == len(BAD)


# --- the budget ---


@pytest.mark.parametrize("workers", [0, 2])
def test_more_than_max_over_all_lanes_is_an_error(workers: int, paths: list[str]) -> None:
    recipe = al.from_urls(paths).map(_check)
    assert drained(loader_of(recipe, al.SkipErrors(max=len(BAD)), num_workers=workers)) == GOOD
    told = r"more than max=6; the last error was ValueError: no \d+, in map\(_check\) of sample \d+ of /"
    with pytest.raises(al.errors.SkipBudgetError, match=told) as caught:
        drained(loader_of(recipe, al.SkipErrors(max=len(BAD) - 1), num_workers=workers))
    assert (caught.value.epoch, caught.value.rank) == (0, 0)


def test_what_a_state_says_was_skipped_counts_in_the_budget(paths: list[str]) -> None:
    recipe = al.from_urls(paths).map(_check)
    loader = loader_of(recipe, lanes=1)
    for number, _ in enumerate(loader):
        if number == 6:
            state = loader.state_dict()
    resumed = loader_of(recipe, al.SkipErrors(max=len(BAD) - 1), lanes=1)
    resumed.load_state_dict(state)
    with pytest.raises(al.errors.SkipBudgetError, match=f"{len(BAD)} samples and shards were skipped"):
        drained(resumed)


def test_too_many_in_a_row_are_an_error(paths: list[str]) -> None:
    recipe = al.from_urls(paths).map(_check)
    assert drained(loader_of(recipe, al.SkipErrors(consecutive=3), lanes=1)) == GOOD
    with pytest.raises(
        al.errors.SkipBudgetError, match=r"3 were skipped in a row, more than consecutive=2"
    ) as caught:
        drained(loader_of(recipe, al.SkipErrors(consecutive=2), lanes=1))
    assert isinstance(caught.value.__cause__, ValueError)


def test_too_many_of_a_thousand_are_an_error() -> None:
    def make(every: int) -> al.Dataset:
        def fail(sample: dict[str, int]) -> dict[str, int]:
            return {"n": 1 // (sample["n"] % every)}

        return al.from_iterable([{"n": n} for n in range(5000)]).map(fail)

    drained(loader_of(make(100), al.SkipErrors(rate=0.01), lanes=1))
    with pytest.raises(
        al.errors.SkipBudgetError, match=r"11 of the last \d+ samples were skipped, more than rate=0.01"
    ):
        drained(loader_of(make(90), al.SkipErrors(rate=0.01), lanes=1))


def test_a_function_that_always_fails_ends_the_epoch_soon() -> None:
    called = []

    def fail(sample: Any) -> None:
        called.append(sample)
        raise TypeError("wrong")

    with pytest.raises(al.errors.SkipBudgetError, match="TypeError: wrong"):
        drained(loader_of(al.from_iterable(range(100_000)).map(fail), al.SkipErrors(max=20), lanes=1))
    assert len(called) <= 64


# --- what is not skipped ---


def _fail(*_: Any) -> Any:
    raise ZeroDivisionError("mine")


@pytest.mark.parametrize(
    "recipe",
    [
        lambda paths: al.from_urls(paths).map_batches(_fail, batch_size=4),
        lambda paths: al.zip_datasets({"a": al.from_urls(paths).map(_fail), "b": al.from_urls(paths)}).map(
            dict
        ),
    ],
)
def test_errors_that_are_nobody_s_alone_are_raised(recipe: Any, paths: list[str]) -> None:
    with pytest.raises(ZeroDivisionError, match="mine"):
        drained(loader_of(recipe(paths), al.SkipErrors(max=MANY)))


def test_errors_of_collating_and_of_want_of_memory_are_raised(paths: list[str]) -> None:
    with pytest.raises(ZeroDivisionError):
        drained(loader_of(al.from_urls(paths), collate_fn=_fail))

    def starve(sample: Any) -> Any:
        raise MemoryError

    with pytest.raises(MemoryError):
        drained(loader_of(al.from_urls(paths).map(starve)))


def test_what_goes_together_in_a_zip_may_be_skipped_behind_it(paths: list[str]) -> None:
    both = al.zip_datasets({"a": al.from_urls(paths), "b": al.from_urls(paths)})
    assert drained(loader_of(both.map(lambda sample: _check(sample["a"])))) == GOOD


def test_errors_are_raised_by_default(paths: list[str]) -> None:
    with pytest.raises(ValueError, match="no 4"):
        drained(al.DataLoader(al.from_urls(paths).map(_check), 3, collate_fn=numbers_of))


def test_dead_letters_say_what_it_was(paths: list[str], tmp_path: Path) -> None:
    dead = tmp_path / "dead.jsonl"
    drained(
        loader_of(
            al.from_urls(paths).shuffle(5).map(_check),
            al.SkipErrors(max=MANY, dead_letters=dead),
            num_workers=2,
        )
    )
    lines = [json.loads(line) for line in dead.read_text().splitlines()]
    assert {line["sample"] + EACH * paths.index(line["shard"]) for line in lines} == BAD
    assert {line["key"] for line in lines} == {f"k{number}" for number in BAD}
    assert lines[0]["error"].startswith("ValueError: no ")
    assert {line["during"] for line in lines} == {"map(_check)"}
    assert {(line["what"], line["epoch"], line["rank"]) for line in lines} == {("sample", 0, 0)}


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({}, "SkipErrors needs a budget: give max=, rate= or consecutive="),
        ({"max": -1}, "max should be 0 or a positive integer value"),
        ({"rate": 2}, "rate should be a number from 0 to 1"),
        ({"rate": True}, "rate should be a number from 0 to 1"),
        ({"consecutive": 0}, "consecutive"),
    ],
)
def test_a_budget_is_checked(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        al.SkipErrors(**wrong)


def test_wrong_calls_are_told(paths: list[str]) -> None:
    with pytest.raises(TypeError, match="dead_letters should be the path of a file"):
        al.SkipErrors(max=1, dead_letters=3)  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match=r'on_error should be "raise" or al.SkipErrors\(...\), but got on_error=\'skip\''
    ):
        al.DataLoader(al.from_urls(paths), on_error="skip")
    with pytest.raises(TypeError, match="on_error can be given for streams only"):
        al.DataLoader([1, 2], on_error=al.SkipErrors(max=1))
    with pytest.raises(TypeError, match=r"how many samples on_error=SkipErrors\(...\) skips"):
        len(loader_of(al.from_urls(paths).take(4)))


def test_an_answer_of_a_filter_that_is_neither_true_nor_false_is_skipped_too() -> None:
    samples = al.from_iterable(list(range(6)))
    odd = samples.filter(lambda number: np.array([1, 2]) if number == 3 else True)
    loader = al.DataLoader(odd, batch_size=None, on_error=al.SkipErrors(max=1))
    assert [int(number) for number in loader] == [0, 1, 2, 4, 5]
    assert loader.statistics.skipped == 1
