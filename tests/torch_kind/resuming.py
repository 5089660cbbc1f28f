"""What tests of resuming run loaders of the torch kind through, and the samplers that they are given."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

import asyncloader as al

from .pairs import plain

__all__ = [
    "BATCH",
    "COUNT",
    "EPOCHS",
    "NUMBERS",
    "SAMPLERS",
    "listed",
    "make",
    "over_workers",
    "run_saving",
    "tail",
]

COUNT, BATCH, EPOCHS = 14, 4, 3
NUMBERS = list(range(COUNT))


def listed(samples: Any) -> Any:
    return samples


def run_saving(loader: Any, epochs: int = EPOCHS) -> tuple[list[Any], list[tuple[int, str]]]:
    """The batches of some epochs, and a state after each and after each epoch, with how many came before."""
    batches: list[Any] = []
    states = [(0, json.dumps(loader.state_dict()))]
    for _ in range(epochs):
        for batch in loader:
            batches.append(plain(batch))
            torch.rand(3)  # a training step draws too
            states.append((len(batches), json.dumps(loader.state_dict())))
        states.append((len(batches), json.dumps(loader.state_dict())))
    return batches, states


def tail(loader: Any, state: str, count: int) -> list[Any]:
    """The next ``count`` batches of a loader that goes on from ``state`` after other draws."""
    torch.manual_seed(999)
    random.seed(999)
    loader.load_state_dict(json.loads(state))
    got: list[Any] = []
    for _ in range(EPOCHS + 1):
        for batch in loader:
            got.append(plain(batch))
            torch.rand(3)
    return got[:count]


# To fork a process as large as this one is slow: with workers one state of so many is resumed from.
over_workers = pytest.mark.parametrize("step", [11, pytest.param(4, marks=pytest.mark.slow)])


SAMPLERS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "in order": lambda g: {"batch_size": BATCH},
    "shuffled": lambda g: {"batch_size": BATCH, "shuffle": True},
    "shuffled by a generator": lambda g: {"batch_size": BATCH, "shuffle": True, "generator": g},
    "single samples": lambda g: {"batch_size": None, "shuffle": True},
    "drop_last": lambda g: {"batch_size": BATCH, "shuffle": True, "drop_last": True},
    "sequential": lambda g: {"batch_size": BATCH, "sampler": SequentialSampler(NUMBERS)},
    "random by a generator of its own": lambda g: {
        "batch_size": BATCH,
        "sampler": RandomSampler(NUMBERS, generator=g),
    },
    "with replacement": lambda g: {
        "batch_size": BATCH,
        "sampler": RandomSampler(NUMBERS, replacement=True, num_samples=40, generator=g),
    },
    "more than there are": lambda g: {
        "batch_size": BATCH,
        "sampler": RandomSampler(NUMBERS, num_samples=2 * COUNT + 3, generator=g),
    },
    "subset": lambda g: {"batch_size": BATCH, "sampler": SubsetRandomSampler(range(0, COUNT, 2))},
    "weighted": lambda g: {
        "batch_size": BATCH,
        "sampler": WeightedRandomSampler([1.0 + n % 4 for n in NUMBERS], 11, generator=g),
    },
    "batch sampler": lambda g: {"batch_sampler": BatchSampler(RandomSampler(NUMBERS), 3, True)},
    "lists of indices": lambda g: {"batch_sampler": [[0, 1], [2], [3, 4, 5], [6]]},
    "drawn by iter": lambda g: {"batch_size": None, "sampler": DrawsInIter()},
}


class DrawsInIter:
    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(COUNT).tolist())

    def __len__(self) -> int:
        return COUNT


def make(kind: str, workers: int, dataset: Any = NUMBERS, **more: Any) -> Any:
    options = SAMPLERS[kind](torch.Generator().manual_seed(7))
    return al.DataLoader(dataset, num_workers=workers, collate_fn=listed, **options, **more)
