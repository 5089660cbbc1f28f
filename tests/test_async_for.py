"""``async for`` among other tasks of its event loop: their turns, and consumers that are cancelled."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
from torch.utils.data import IterableDataset

import asyncloader as al

pytestmark = pytest.mark.usefixtures("fork_server")

WORKERS = pytest.mark.parametrize("workers", [0, 2])


class Items:
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        return index


class Iterated(IterableDataset[int]):
    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        return iter(_part_of_worker(self.count))


class AsyncIterated:
    def __init__(self, count: int) -> None:
        self.count = count

    async def __aiter__(self) -> AsyncIterator[int]:
        for number in _part_of_worker(self.count):
            yield number


def _part_of_worker(count: int) -> range:
    info = al.get_worker_info()
    return range(count) if info is None else range(info.id, count, info.num_workers)


def _stream(count: int, workers: int, **options: Any) -> al.DataLoader[Any]:
    recipe = al.from_iterable(lambda topology: topology.split(range(count)))
    return al.DataLoader(recipe, None, num_workers=workers, lanes=2, **options)


def _torchs(kind: Callable[[int], Any], count: int, workers: int) -> al.DataLoader[Any]:
    return al.DataLoader(kind(count), None, num_workers=workers)


#: Loaders of the given count of numbers, which come in order, with the given number of workers.
KINDS: dict[str, Callable[..., al.DataLoader[Any]]] = {
    "stream": _stream,
    "stream on demand": lambda count, workers: _stream(count, workers, ahead=0),
    "stream with a timeout": lambda count, workers: _stream(count, workers, timeout=60),
    "map style": lambda *given: _torchs(Items, *given),
    "iterable": lambda *given: _torchs(Iterated, *given),
    "async iterable": lambda *given: _torchs(AsyncIterated, *given),
}
EVERY_KIND = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)


def _compute() -> None:
    """For longer than a loop may hold up other tasks; meanwhile the next batches are made."""
    time.sleep(0.003)


@EVERY_KIND
@WORKERS
async def test_other_tasks_get_turns_while_batches_are_ready(make: Any, workers: int) -> None:
    turns = 0

    async def beat() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    beating, seen = asyncio.ensure_future(beat()), []
    async for _ in make(30, workers):
        _compute()
        seen.append(turns)
    beating.cancel()
    assert len(seen) == 30
    assert all(before < after for before, after in pairwise(seen))


@WORKERS
async def test_a_timeout_around_a_loop_fires_while_batches_are_ready(workers: int) -> None:
    loader, delivered = _stream(10_000, workers), 0
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            async for _ in loader:
                _compute()
                delivered += 1
    assert delivered < 10_000


def _interrupt(task: asyncio.Task[Any]) -> None:
    signal.raise_signal(signal.SIGINT)


def _cancel_by_the_loop(task: asyncio.Task[Any]) -> None:
    """As notebooks do for an interrupt."""
    task.get_loop().call_soon_threadsafe(task.cancel)


@pytest.mark.parametrize(
    ("stop", "error"),
    [(_interrupt, KeyboardInterrupt), (_cancel_by_the_loop, asyncio.CancelledError)],
    ids=["Ctrl-C", "a notebook's interrupt"],
)
@WORKERS
def test_a_loop_whose_batches_are_ready_can_be_interrupted(stop: Any, error: Any, workers: int) -> None:
    loader, delivered = _stream(2_000, workers), []

    async def consume() -> None:
        task = asyncio.current_task()
        async for number in loader:
            _compute()
            delivered.append(number)
            if len(delivered) == 10:
                stop(task)

    with pytest.raises(error):
        asyncio.run(consume())
    assert delivered == list(range(10))
    rest = _stream(2_000, 0)
    rest.load_state_dict(loader.state_dict())
    assert list(rest) == list(range(10, 2_000))
