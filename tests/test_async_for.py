"""``async for`` among other tasks of its event loop: their turns, and consumers that are cancelled."""

from __future__ import annotations

import asyncio
import random
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
    "stream one batch ahead": lambda count, workers: _stream(count, workers, prefetch_factor=1),
    "stream with a timeout": lambda count, workers: _stream(count, workers, timeout=60),
    "map style": lambda *given: _torchs(Items, *given),
    "iterable": lambda *given: _torchs(Iterated, *given),
    "async iterable": lambda *given: _torchs(AsyncIterated, *given),
}
STREAMS = [KINDS[name] for name in KINDS if name.startswith("stream")]
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


async def test_whoever_asks_with_no_time_at_all_gets_what_is_ready() -> None:
    batches, got = aiter(_stream(20, 0)), []
    async with asyncio.timeout(60):
        while len(got) < 20:
            try:
                async with asyncio.timeout(0):
                    got.append(await anext(batches))
            except TimeoutError:
                await asyncio.sleep(0.01)
    assert got == list(range(20))


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


# --- callers that are cancelled ---


@EVERY_KIND
@WORKERS
async def test_a_cancelled_caller_leaves_its_batch_to_the_next(make: Any, workers: int) -> None:
    loader = make(40, workers)
    batches, got, cancelled = aiter(loader), [], 0
    state, at = None, 0
    while True:
        asking = asyncio.ensure_future(anext(batches))
        asked = len(got) + cancelled
        # Every third one is cancelled before it begins, the others wherever they are by then.
        for _ in range(asked % 9 if asked % 3 else 0):
            await asyncio.sleep(0)
        asking.cancel()
        try:
            got.append(await asking)
        except StopAsyncIteration:
            break
        except asyncio.CancelledError:
            cancelled += 1
            if len(got) >= 20 and state is None and make in STREAMS:
                state, at = loader.state_dict(), len(got)
    assert got == list(range(40)) and cancelled > 9
    assert (state is not None) == (make in STREAMS)
    if state is not None:
        rest = make(40, workers)
        rest.load_state_dict(state)
        assert list(rest) == list(range(at, 40))


@EVERY_KIND
@WORKERS
async def test_tasks_that_share_an_iterator_and_give_up_get_each_batch_once(make: Any, workers: int) -> None:
    batches, got, draw = aiter(make(60, workers)), [], random.Random(workers)

    async def consume() -> None:
        while True:
            try:
                async with asyncio.timeout(draw.choice([0, 0.001, 0.01, 60])):
                    got.append(await anext(batches))
            except TimeoutError:
                await asyncio.sleep(0)
            except StopAsyncIteration:
                return

    await asyncio.gather(*(consume() for _ in range(3)))
    assert got == list(range(60))


@EVERY_KIND
async def test_a_caller_that_is_dropped_leaves_its_batch_to_the_next(make: Any) -> None:
    batches, got = aiter(make(4, 0)), []
    for _ in range(3):
        asking: Any = anext(batches)
        try:
            asking.send(None)
        except StopIteration as ended:
            got.append(ended.value)
        else:
            asking.close()  # as a coroutine is that a closed event loop has left
    got += [number async for number in batches]
    assert got == list(range(4))


@EVERY_KIND
async def test_tasks_that_ask_at_once_get_a_batch_each(make: Any) -> None:
    batches = aiter(make(4, 0))
    assert await asyncio.gather(*(anext(batches) for _ in range(4))) == [0, 1, 2, 3]
    await batches.aclose()


async def _never(number: int) -> int:
    await asyncio.sleep(3600)
    return number


async def test_a_caller_that_is_cancelled_as_the_pass_is_closed_is_cancelled() -> None:
    batches: Any = aiter(al.DataLoader(al.from_iterable([1]).map(_never), None))
    asking = asyncio.ensure_future(anext(batches))
    for _ in range(5):
        await asyncio.sleep(0)
    batches.close()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    with pytest.raises(RuntimeError, match="closed before the end"):
        await anext(batches)
