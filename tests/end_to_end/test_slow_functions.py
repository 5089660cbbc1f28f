"""A pass that is closed while a slow function runs waits for the call in hand, not for a batch of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest

import asyncloader as al
from asyncloader.dataset import Dataset

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
