"""Iterable datasets that tests resume: with a state, without one, of their iterators, asynchronous, split."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import torch
from stateful_numbers import KnowsWhere, part_of_worker
from torch.utils.data import IterableDataset

import asyncloader as al

from .resuming import COUNT

__all__ = ["ITERABLES", "TOLD", "StatefulIterator", "Stateless"]


class Part(IterableDataset[Any]):
    """Yields its worker's part, which a state begins at; how it is told varies by subclass."""

    def numbers(self) -> range:
        return part_of_worker(3 * COUNT)


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


class NumbersFrom(KnowsWhere):
    def __init__(self, numbers: range) -> None:
        self.numbers, self.at = numbers, 0

    def __iter__(self) -> NumbersFrom:
        return self

    def __next__(self) -> int:
        if self.at == len(self.numbers):
            raise StopIteration
        self.at += 1
        return self.numbers[self.at - 1]


class ItsOwnIterator(KnowsWhere, Part):
    def __iter__(self) -> ItsOwnIterator:
        self.at = 0
        return self

    def __next__(self) -> int:
        numbers = self.numbers()
        if self.at == len(numbers):
            raise StopIteration
        self.at += 1
        return numbers[self.at - 1]


class AsyncStateless:
    async def __aiter__(self) -> AsyncIterator[int]:
        for number in part_of_worker(3 * COUNT):
            await asyncio.sleep(0)
            yield number


class AsyncStateful(KnowsWhere):
    async def __aiter__(self) -> AsyncIterator[int]:
        for number in self.rest_of(part_of_worker(3 * COUNT)):
            yield number


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
    "split": lambda: al.split_iterable(range(3 * COUNT)),
    "split stateful": lambda: al.split_iterable(Whole()),
    "plain iterable": lambda: al.split_iterable(dict.fromkeys(range(3 * COUNT)).keys()),
    "drawing": Drawing,
    "uneven": Uneven,
}
TOLD = {"stateful dataset", "stateful iterator", "its own iterator", "async stateful", "split stateful"}
