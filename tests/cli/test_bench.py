"""``asyncloader bench``."""

from __future__ import annotations

import os

import pytest

from asyncloader.cli.bench import Measured, agreeing, best_of, numbers_of_workers
from asyncloader.observe.report import Report
from asyncloader.observe.statistics import Statistics

from .conftest import JSONL_SAMPLES, TAR_SAMPLES, Ask, Place

pytestmark = pytest.mark.usefixtures("fork_server")


def test_a_whole_epoch_is_measured_and_judged(ask: Ask, place: Place) -> None:
    told = ask("bench", *place("tar/"), "--no-collate", "--batch-size", "5", "--json")
    assert (told.status, told.err) == (0, "")
    (ran,) = told.json["runs"]
    assert ran["statistics"]["samples"] == TAR_SAMPLES and ran["statistics"]["batches"] == 5
    assert ran["is_whole"] and ran["samples_per_s"] > 0 and ran["bytes_per_s"] > 0
    assert 0 < ran["first_batch_s"] <= ran["statistics"]["elapsed_s"]
    assert len(ran["report"]["lines"]) == 3 and ran["report"]["limit"]
    assert told.json["best_num_workers"] == 0


def test_what_is_printed_ends_in_the_verdict(ask: Ask, place: Place) -> None:
    told = ask("bench", *place("jsonl/"), "--batch-size", "10", "--pad", "tokens", "--shuffle", "20")
    first, *lines = told.out.splitlines()
    assert first.startswith(f"Read {JSONL_SAMPLES} samples, the whole epoch, in ")
    assert first.endswith("/s of batches.")
    assert lines[0].startswith("3 batches, ") and " samples/s. The first batch took " in lines[0]
    assert len(lines) == 3


def test_it_stops_after_so_many_batches(ask: Ask, place: Place) -> None:
    told = ask("bench", *place("jsonl/"), "--no-collate", "--batch-size=5", "--batches=2", "--json")
    (ran,) = told.json["runs"]
    assert ran["statistics"]["batches"] == 2 and not ran["is_whole"]


def test_it_stops_when_the_time_is_over(ask: Ask, place: Place) -> None:
    told = ask("bench", *place("jsonl/"), "--no-collate", "--batch-size=1", "--seconds=1e-9", "--json")
    assert told.json["runs"][0]["statistics"]["batches"] == 1


@pytest.mark.timeout(200)
def test_a_sweep_tries_numbers_of_workers_and_names_the_best(ask: Ask, place: Place) -> None:
    asked = [*place("columns/a.parquet"), "--columns", "id", "--batch-size", "4", "--sweep"]
    told = ask("bench", *asked, "--json")
    processors = len(os.sched_getaffinity(0))
    assert [ran["num_workers"] for ran in told.json["runs"]] == numbers_of_workers(processors)
    rates = {ran["num_workers"]: ran["samples_per_s"] for ran in told.json["runs"]}
    assert rates[told.json["best_num_workers"]] >= 0.95 * max(rates.values())


def test_what_does_not_collate_says_which_option_pads_it(ask: Ask, place: Place) -> None:
    told = ask("bench", *place("jsonl/"))
    assert told.status == 2 and told.err.count("\n") == 1
    assert "field 'tokens'" in told.err and "--pad" in told.err


def test_a_field_that_there_is_not_is_a_line_with_workers_too(ask: Ask, place: Place) -> None:
    told = ask("bench", *place("jsonl/"), "--columns", "nope", "--num-workers", "1", "--seconds", "1")
    assert told.status == 2 and told.err.count("\n") == 1
    assert "expected the field 'nope', found only" in told.err


def test_numbers_of_workers_rise_to_the_processors() -> None:
    assert numbers_of_workers(1) == [0, 1]
    assert numbers_of_workers(2) == [0, 1, 2]
    assert numbers_of_workers(6) == [0, 1, 2, 4, 6]
    assert numbers_of_workers(8) == [0, 1, 2, 4, 8]


def test_of_those_that_are_as_fast_the_one_with_fewest_workers_is_best() -> None:
    runs = [measured(workers, rate) for workers, rate in ((0, 50), (1, 97), (2, 100), (4, 99))]
    assert best_of(runs).num_workers == 1
    assert best_of(runs[:1]).num_workers == 0


def measured(workers: int, rate: int, advice: str = "") -> Measured:
    report = Report("map(f)", 1.0, {}, ("", "", advice))
    return Measured(workers, True, Statistics(batches=1, samples=rate, elapsed_s=1.0), report)


@pytest.mark.parametrize(
    ("advice", "agrees"),
    [
        ("Try num_workers=2: there are 2 processors.", False),
        ("Its 4 threads keep processors busy: do less work, or use more workers.", False),
        ("Raise concurrency from 4 if processors are idle.", True),
    ],
)
def test_the_best_of_a_sweep_is_not_told_to_try_what_was_slower(advice: str, agrees: bool) -> None:
    runs = [measured(0, 100, advice), measured(1, 60, advice), measured(2, 80, advice)]
    told = agreeing(best_of(runs), runs)
    assert told.num_workers == 0
    assert told.report.lines[2] == (
        advice if agrees else "Nothing to change: num_workers=1 or 2 was no faster."
    )
    assert agreeing(runs[2], runs).report.lines[2] == advice, "more were not tried"


def test_one_output_has_one_rate(ask: Ask, place: Place) -> None:
    told = ask("bench", *place("tar/"), "--no-collate", "--batch-size", "5")
    assert told.out.count(" samples/s") == 1
