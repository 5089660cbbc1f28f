"""A map-style dataset whose order is a sampler of the user's own goes on exactly where it was."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

import pytest

import asyncloader as al

from .resuming import BATCH, COUNT, NUMBERS, listed, over_workers, run_saving, tail

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")


class Countdown:
    """A sampler that knows where it is; its order is in no generator of torch's."""

    def __init__(self, seed: int) -> None:
        self.order = random.Random(seed).sample(NUMBERS, COUNT)
        self.done = 0

    def __iter__(self) -> Iterator[int]:
        while self.done < COUNT:
            self.done += 1
            yield self.order[self.done - 1]
        self.done = 0
        random.Random(self.order[0]).shuffle(self.order)

    def __len__(self) -> int:
        return COUNT

    def state_dict(self) -> dict[str, Any]:
        return {"order": self.order, "done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.order, self.done = state["order"], state["done"]


class OwnIterator:
    """A sampler whose iterator knows where it is."""

    def __iter__(self) -> Any:
        return Position()

    def __len__(self) -> int:
        return COUNT


class Position:
    def __init__(self) -> None:
        self.at, self.draws = 0, 0

    def __iter__(self) -> Position:
        return self

    def __next__(self) -> int:
        if self.at == COUNT:
            raise StopIteration
        self.at += 1
        self.draws += 1
        return COUNT - self.at

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("sampler", [Countdown, OwnIterator])
@pytest.mark.parametrize("batched", [True, False])
@over_workers
def test_a_stateful_sampler_is_asked_after_each_batch_drawn(
    sampler: Any, batched: bool, workers: int, step: int
) -> None:
    def made(seed: int) -> Any:
        given = sampler(seed) if sampler is Countdown else sampler()
        size = BATCH if batched else None
        return al.DataLoader(NUMBERS, size, sampler=given, num_workers=workers, collate_fn=listed)

    batches, states = run_saving(made(1), 2)
    for done, state in states[1 :: step if workers else 1]:
        assert tail(made(2), state, len(batches) - done) == batches[done:]


class NamedBatches:
    """A batch sampler that knows where it is."""

    def __init__(self) -> None:
        self.done = 0

    def __iter__(self) -> Iterator[list[int]]:
        done, self.done = self.done, 0
        for first in range(done, COUNT, 3):
            self.done = first + 3
            yield NUMBERS[first : first + 3]
        self.done = 0

    def state_dict(self) -> dict[str, int]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.done = state["done"]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_batch_sampler_is_resumed(workers: int) -> None:
    def made() -> Any:
        return al.DataLoader(NUMBERS, batch_sampler=NamedBatches(), num_workers=workers, collate_fn=listed)

    batches, states = run_saving(made(), 2)
    for done, state in states[:: 1 if not workers else 4]:
        assert tail(made(), state, len(batches) - done) == batches[done:]


def test_a_state_is_not_changed_by_what_comes_later() -> None:
    loader = al.DataLoader(NUMBERS, 2, sampler=Countdown(1))
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    kept = copy.deepcopy(state)
    list(batches)
    assert state == kept
