"""Iterable datasets that tests resume: with a state, without one, of their iterators, asynchronous, split."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import torch
from torch.utils.data import IterableDataset

import asyncloader as al

from .resuming import COUNT

__all__ = ["ITERABLES", "TOLD", "StatefulIterator", "Stateless"]


def part_of_worker() -> range:
    info = torch.utils.data.get_worker_info()
    worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
    return range(worker, 3 * COUNT, workers)


class Part(IterableDataset[Any]):
    """Yields its worker's part, which a state begins at; how it is told varies by subclass."""

    def numbers(self) -> range:
        return part_of_worker()


class Stateless(Part):
    def __iter__(self) -> Iterator[int]:
        return iter(self.numbers())


class StatefulDataset(Part):
    at = 0
    runs = 0

    def __iter__(self) -> Iterator[int]:
        numbers = self.numbers()
        while self.at < len(numbers):
            self.at += 1
            yield numbers[self.at - 1] + 1000 * self.runs
        self.at = 0
        self.runs += 1

    def state_dict(self) -> dict[str, int]:
        return self.__dict__  # changes with the dataset

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.__dict__.update(state)


class StatefulIterator(Part):
    def __iter__(self) -> Any:
        return NumbersFrom(self.numbers())


class NumbersFrom:
    def __init__(self, numbers: range) -> None:
        self.numbers, self.at = numbers, 0

    def __iter__(self) -> NumbersFrom:
        return self

    def __next__(self) -> int:
        if self.at == len(self.numbers):
            raise StopIteration
        self.at += 1
        return self.numbers[self.at - 1]

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class ItsOwnIterator(Part):
    def __iter__(self) -> ItsOwnIterator:
        self.at = 0
        return self

    def __next__(self) -> int:
        numbers = self.numbers()
        if self.at == len(numbers):
            raise StopIteration
        self.at += 1
        return numbers[self.at - 1]

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class AsyncStateless:
    async def __aiter__(self) -> AsyncIterator[int]:
        for number in part_of_worker():
            await asyncio.sleep(0)
            yield number


class AsyncStateful:
    at = 0

    async def __aiter__(self) -> AsyncIterator[int]:
        numbers = part_of_worker()
        at, self.at = self.at, 0
        for place in range(at, len(numbers)):
            self.at = place + 1
            yield numbers[place]
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Whole(StatefulIterator):
    def numbers(self) -> range:
        return range(3 * COUNT)


class Drawing(Part):
    """Draws from torch's default generator, in this process or in its worker."""

    def __iter__(self) -> Iterator[Any]:
        for number in self.numbers():
            yield number, torch.rand(()).item()


class Uneven(Part):
    def numbers(self) -> range:
        info = torch.utils.data.get_worker_info()
        return range(5 if info is None else [1, 12, 6][info.id])

    def __iter__(self) -> Iterator[Any]:
        info = torch.utils.data.get_worker_info()
        for number in self.numbers():
            yield 0 if info is None else info.id, number


ITERABLES: dict[str, Callable[[], Any]] = {
    "stateless": Stateless,
    "stateful dataset": StatefulDataset,
    "stateful iterator": StatefulIterator,
    "its own iterator": ItsOwnIterator,
    "async": AsyncStateless,
    "async stateful": AsyncStateful,
    "split": lambda: al.split(range(3 * COUNT)),
    "split stateful": lambda: al.split(Whole()),
    "plain iterable": lambda: al.split(dict.fromkeys(range(3 * COUNT)).keys()),
    "drawing": Drawing,
    "uneven": Uneven,
}
TOLD = {"stateful dataset", "stateful iterator", "its own iterator", "async stateful", "split stateful"}
