"""``.map`` on this thread, on threads and on the loop: order, concurrency, errors."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from functools import partial
from typing import Any

import cloudpickle
import pytest

from asyncloader.flow.engine import Engine
from asyncloader.pipeline.components import Stages
from asyncloader.pipeline.map import Map

from .running import Listed, lane_of, run


class Running:
    """Counts how many calls run at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.now = self.most = self.calls = 0

    def __enter__(self) -> None:
        with self._lock:
            self.calls += 1
            self.now += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.now -= 1


@pytest.mark.parametrize("concurrency", [1, 2, 7])
@pytest.mark.parametrize("sizes", [(1,), (5, 2), (200,)])
def test_coroutines_run_at_once_up_to_the_concurrency_and_come_in_order(
    concurrency: int, sizes: tuple[int, ...], engine: Engine
) -> None:
    running = Running()

    async def work(number: int) -> int:
        with running:
            await asyncio.sleep(random.random() / 500)
        return -number

    mapped = run(Listed(range(100), sizes), [Map(work, concurrency)], lane_of(engine))
    assert mapped == [-number for number in range(100)]
    assert running.most == concurrency
    assert running.calls == 100


@pytest.mark.parametrize("concurrency", [1, 2, 7])
@pytest.mark.parametrize("sizes", [(1,), (5, 2), (200,)])
def test_functions_run_on_threads_up_to_the_concurrency_and_come_in_order(
    concurrency: int, sizes: tuple[int, ...], engine: Engine
) -> None:
    running = Running()

    def work(number: int) -> int:
        with running:
            time.sleep(random.random() / 500)
        return -number

    mapped = run(Listed(range(100), sizes), [Map(work, concurrency)], lane_of(engine))
    assert mapped == [-number for number in range(100)]
    assert running.most <= concurrency
    assert concurrency == 1 or running.most > 1


def test_coroutines_go_on_while_the_consumer_computes(engine: Engine) -> None:
    running = Running()

    async def work(number: int) -> int:
        with running:
            await asyncio.sleep(0.02)  # long against what this thread may be held up below
        return number

    blocks = Stages(Listed(range(1000), (50,)), (Map(work, 4),)).open([], lane_of(engine))
    for _ in range(10):
        next(blocks)  # of the first ones nothing is known, and no more are taken than run
    before = running.calls
    time.sleep(0.2)
    assert before < running.calls <= before + 2 * 4, "as far ahead as the concurrency allows"
    blocks.close()


def test_a_source_is_not_read_further_ahead_than_the_concurrency_asks(engine: Engine) -> None:
    async def work(number: int) -> int:
        return number

    source = Listed(range(1000), (1,))
    blocks = Stages(source, (Map(work, 3),)).open([], lane_of(engine))
    next(blocks)
    assert source.handed_on <= 2 * 3 + 1
    blocks.close()


@pytest.mark.parametrize("concurrency", [1, 4, 32])
def test_the_first_failure_in_order_is_the_one_that_is_raised(concurrency: int, engine: Engine) -> None:
    async def work(number: int) -> int:
        await asyncio.sleep((40 - number) / 4000)  # later ones fail earlier
        if number >= 10:
            raise KeyError(number)
        return number

    mapped: list[Any] = []
    blocks = Stages(Listed(range(40)), (Map(work, concurrency),)).open([], lane_of(engine))
    with pytest.raises(KeyError, match="10"):
        for block in blocks:
            mapped += block.rows()
    assert mapped == list(range(10))


@pytest.mark.parametrize("kind", [asyncio.CancelledError, SystemExit, KeyboardInterrupt, GeneratorExit])
def test_a_coroutine_that_ends_in_no_ordinary_way_is_an_error_and_no_wait_for_ever(
    kind: type[BaseException], engine: Engine
) -> None:
    async def work(number: int) -> int:
        if number == 5:
            raise kind
        return number

    with pytest.raises(RuntimeError, match=f"the function raised {kind.__name__}") as caught:
        run(Listed(range(10)), [Map(work, 2)], lane_of(engine))
    assert isinstance(caught.value.__cause__, kind)
    assert run(Listed(range(5)), [Map(work, 2)], lane_of(engine)) == list(range(5)), "the loop lives on"


def test_a_coroutine_that_awaits_something_cancelled_is_an_error_and_no_wait_for_ever(engine: Engine) -> None:
    async def work(number: int) -> int:
        waited_for = asyncio.get_running_loop().create_future()
        waited_for.cancel()
        return await waited_for

    with pytest.raises(RuntimeError, match="raised CancelledError"):
        run(Listed(range(10)), [Map(work, 2)], lane_of(engine))


class Marked:
    """Is a coroutine function, and in another process one that only returns coroutines."""

    async def __call__(self, number: int) -> int:
        return number + 1

    def __reduce__(self) -> Any:
        return partial(getattr, Marked, "awaitable"), ()

    @staticmethod
    def awaitable(number: int) -> Any:
        return Marked()(number)


def test_a_function_that_loses_its_mark_on_the_way_is_awaited_still(engine: Engine) -> None:
    there = cloudpickle.loads(cloudpickle.dumps(Map(Marked(), 2)))
    assert run(Listed(range(9)), [there], lane_of(engine)) == list(range(1, 10))


def test_none_is_a_sample_like_any_other(engine: Engine) -> None:
    async def nothing(number: int) -> None:
        return None

    assert run(Listed(range(9)), [Map(nothing, 2)], lane_of(engine)) == [None] * 9
    assert run(Listed(range(9)), [Map(lambda number: None, 2)], lane_of(engine)) == [None] * 9


@pytest.mark.parametrize("is_async", [False, True])
def test_a_slow_sample_does_not_hold_up_those_before_it(is_async: bool, engine: Engine) -> None:
    release = threading.Event()

    def work(number: int) -> int:
        if number == 20:
            release.wait(10)
        return number

    async def work_async(number: int) -> int:
        if number == 20:
            await asyncio.to_thread(release.wait, 10)
        return number

    blocks = Stages(Listed(range(100)), (Map(work_async if is_async else work, 2),)).open([], lane_of(engine))
    mapped: list[int] = []
    while len(mapped) < 12:
        mapped += next(blocks).rows()
    assert mapped == list(range(len(mapped)))
    release.set()
    blocks.close()
