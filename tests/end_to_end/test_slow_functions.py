"""A pass that is closed while a slow function runs waits for the call in hand, not for a batch of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import asyncloader as al
from asyncloader import testing
from asyncloader.pipeline.dataset import Dataset

from .harness import python

CALL_S = 0.2
BATCH_SIZE = 64
CALLS: list[float] = []
"""When each call began."""


def nap(sample: Any) -> Any:
    CALLS.append(time.monotonic())
    time.sleep(CALL_S)
    return sample


def nap_over_columns(columns: Mapping[str, Any]) -> Mapping[str, Any]:
    nap(columns)
    return columns


RECIPES: dict[str, Callable[[Dataset], Dataset]] = {
    "map": lambda numbers: numbers.map(nap),
    "map on threads": lambda numbers: numbers.map(nap, concurrency=4),
    "filter": lambda numbers: numbers.filter(lambda sample: bool(nap(sample))),
    "map_batches on threads": lambda numbers: numbers.map_batches(
        nap_over_columns, batch_size=1, concurrency=4
    ),
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_closing_waits_for_the_call_in_hand_alone(recipe: str) -> None:
    before = {*threading.enumerate()}
    numbers = al.from_iterable(lambda topology: topology.split([{"number": n} for n in range(1000)]))
    loader = al.DataLoader(RECIPES[recipe](numbers), batch_size=BATCH_SIZE, timeout=2 * CALL_S)
    with pytest.raises(TimeoutError):
        next(iter(loader))
    began_s = time.monotonic()
    loader.close()
    began = sum(call_s > began_s for call_s in CALLS)
    assert began <= (16 if "threads" in recipe else 1)  # four threads, each of which has up to four in hand
    assert not {*threading.enumerate()} - before


_SCRIPT = """
import threading, warnings
import asyncloader as al

warnings.simplefilter("always")

def wait_for_nothing(samples):
    threading.Event().wait()

numbers = al.from_iterable([{{"number": number}} for number in range(100)])
loader = al.DataLoader(numbers.{operator}, timeout=0.5)
batches = iter(loader)
try:
    next(batches)
except TimeoutError:
    print("late")
"""


@pytest.mark.parametrize(
    "operator",
    ["map(wait_for_nothing, concurrency=2)", "map_batches(wait_for_nothing, batch_size=4, concurrency=2)"],
)
def test_a_function_that_never_returns_does_not_keep_a_program_from_ending(
    operator: str, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(_SCRIPT.format(operator=operator))
    run = python(script)
    assert (run.returncode, run.stdout) == (0, "late\n"), run.stderr
    assert "of map" in run.stderr and "had not returned 1 s after the loader was closed" in run.stderr
    assert "in wait_for_nothing" in run.stderr


@pytest.mark.parametrize("operator", ["map", "map_batches"])
def test_closing_waits_two_seconds_for_a_function_that_never_returns(operator: str) -> None:
    release = threading.Event()

    def wait(samples: Any) -> Any:
        release.wait()
        return samples

    numbers = al.from_iterable([{"number": n} for n in range(100)])
    recipe = {
        "map": lambda: numbers.map(wait, concurrency=2),
        "map_batches": lambda: numbers.map_batches(wait, batch_size=4, concurrency=2),
    }[operator]()
    with testing.check_leaks():
        batches = iter(al.DataLoader(recipe, timeout=0.3))
        with pytest.raises(TimeoutError):
            next(batches)
        with pytest.warns(RuntimeWarning, match=rf"of {operator}\(.*had not returned 2 s(?s:.*)in wait"):
            batches.close()  # type: ignore[attr-defined]  # torch's iterators have none
        release.set()
