"""An exception of a signal's handler within ``next()`` of torch's kinds of dataset loses no batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from interrupting import Interrupt, interrupted_at

import asyncloader as al
from asyncloader import testing

from .iterables import ITERABLES


class Squares(torch.utils.data.Dataset[int]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        return index * index


def batches(loader: Any) -> list[Any]:
    return [batch.tolist() for batch in loader]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "kind", ["map", "stateless", "stateful dataset", "stateful iterator", "its own iterator"]
)
@pytest.mark.filterwarnings("ignore:.* has no state_dict and load_state_dict:UserWarning")
def test_an_exception_of_a_signals_handler_within_next_loses_no_batch(kind: str, workers: int) -> None:
    make_dataset: Callable[[], Any] = Squares if kind == "map" else ITERABLES[kind]

    def make() -> al.DataLoader[Any]:
        torch.manual_seed(3)
        return al.DataLoader(make_dataset(), 2, shuffle=kind == "map", num_workers=workers)

    everything = batches(make())
    outcomes = set()
    # With workers, which take longer to start, only some places.
    for nth in range(1, 5000, 1 + 10 * (workers > 0)):
        with make() as loader:
            iterator = iter(loader)
            got = [next(iterator).tolist() for _ in range(2)]
            try:
                batch = interrupted_at(nth, lambda: iterator.__next__())  # noqa: B023
            except Interrupt:
                with make() as other:
                    other.load_state_dict(loader.state_dict())
                    assert got + batches(other) == everything, nth
                try:
                    assert got + batches(iterator) == everything, nth
                    outcomes.add("goes on")
                except RuntimeError as error:
                    assert "closed before the end of its epoch, by Interrupt" in str(error)
                    outcomes.add("is closed")
            else:
                assert [*got, batch.tolist(), *batches(iterator)] == everything
                break
    assert nth > 5
    assert outcomes == {"goes on", "is closed"}


def test_an_exception_of_a_signals_handler_while_results_are_awaited_leaves_nothing_open() -> None:
    """At each place of the function that waits for workers, after which the loader is closed."""
    for nth in range(1, 200):
        with testing.check_leaks(within_s=10), al.DataLoader(Squares(), 2, num_workers=2) as loader:
            try:
                interrupted_at(nth, partial(list, loader), within="LinkContext.get")
            except Interrupt as interrupt:
                interrupt.__traceback__ = None
                is_over = False
            else:
                is_over = True
        if is_over:
            break
    assert nth > 10
