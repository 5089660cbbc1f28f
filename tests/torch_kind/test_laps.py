"""The waits of a loop without workers are divided among the stages; the processor's time of them is told."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from time import perf_counter, sleep, thread_time
from typing import Any

import pytest
import torch

import asyncloader as al
from asyncloader.observe.stopwatch import COLLATE, IDLE, PINNING, PROCESSOR, SAMPLER, Spent, Stopwatch
from asyncloader.torch_compat.timing import InlineTimer

STAGE = "Data.__getitems__"


def spin(seconds: float) -> None:
    until_s = perf_counter() + seconds
    while perf_counter() < until_s:
        pass


class Loop:
    """Waits in which all is the dataset's.

    Attributes:
        cpu_s: Of the processor's time, that its waits took, as this thread's clock has it.
    """

    def __init__(self) -> None:
        self.laps = InlineTimer(STAGE, Stopwatch(), pins=False)
        self.cpu_s = 0.0
        self._spent = Spent({}, {})

    def wait(self, count: int, work: Callable[[float], None], each_s: float) -> None:
        for _ in range(count):
            began_s, since_s = thread_time(), perf_counter()
            if not self.laps.skips:
                self.laps.measure()
            self.laps.fetch()
            work(each_s)
            self.laps.collate()
            self._add(self.laps.waited(since_s, perf_counter()))
            self.cpu_s += thread_time() - began_s

    def end(self) -> Spent:
        """What was told of all of them."""
        self._add(self.laps.end(None, perf_counter()))
        return self._spent

    def _add(self, spent: Spent | None) -> None:
        if spent is not None:
            self._spent = self._spent.plus(spent)


# --- the processor's time ---


def test_short_waits_are_told_by_those_that_were_measured() -> None:
    loop = Loop()
    loop.wait(500, spin, 0.0001)
    assert loop.cpu_s / 5 < loop.end().cpu_s < loop.cpu_s * 5


def test_a_wait_that_sleeps_takes_no_time_of_the_processor() -> None:
    loop = Loop()
    loop.wait(20, sleep, 0.005)
    assert loop.end().cpu_s < 0.05


def test_each_long_wait_is_measured() -> None:
    loop = Loop()
    loop.wait(5, spin, 0.01)
    loop.wait(5, sleep, 0.01)
    assert loop.cpu_s / 5 < loop.end().cpu_s < loop.cpu_s * 5


def test_long_waits_among_short_ones_are_measured_too() -> None:
    loop = Loop()
    for _ in range(60):  # of which the sleeping one would begin too soon after a measured one each time
        loop.wait(7, spin, 0.0001)
        loop.wait(1, sleep, 0.004)
    assert loop.end().cpu_s < 5 * loop.cpu_s


def test_what_was_told_is_not_told_again() -> None:
    loop = Loop()
    loop.wait(20, spin, 0.01)
    spent = loop.end()
    took_s = spent.seconds[STAGE] + spent.seconds.get(PROCESSOR, 0.0)
    assert took_s + 1e-6 >= 0.2 and spent.seconds[STAGE] < 1 and spent.cpu_s > 0
    again = loop.end()
    assert (again.seconds[STAGE], again.cpu_s) == (spent.seconds[STAGE], spent.cpu_s)


# --- the stages ---


class Data(torch.utils.data.Dataset[Any]):
    """Takes its time for batches, and knows how long."""

    def __init__(self, takes_s: Callable[[int], float]) -> None:
        self.takes_s = takes_s
        self.took_s = 0.0

    def __len__(self) -> int:
        return 800

    def __getitems__(self, indices: list[int]) -> list[int]:
        began_s = perf_counter()
        spin(self.takes_s(indices[0]))
        self.took_s += perf_counter() - began_s
        return indices


class Collate:
    """Likewise."""

    def __init__(self, takes_s: Callable[[int], float]) -> None:
        self.takes_s = takes_s
        self.took_s = 0.0

    def __call__(self, samples: list[int]) -> list[int]:
        began_s = perf_counter()
        spin(self.takes_s(samples[0]))
        self.took_s += perf_counter() - began_s
        return samples


class Order(torch.utils.data.Sampler[int]):
    """Likewise, of samples."""

    def __init__(self, takes_s: Callable[[int], float]) -> None:
        self.takes_s = takes_s

    def __iter__(self) -> Iterator[int]:
        for number in range(800):
            spin(self.takes_s(number))
            yield number

    def __len__(self) -> int:
        return 800


def is_about(told_s: float, took_s: float, delay_s: float = 0.0) -> bool:
    """Whether it has all that was seen from within, but for what was a wait for a processor."""
    return 0.9 * took_s - delay_s <= told_s < 5 * took_s


def stages_of(loader: al.DataLoader[Any]) -> defaultdict[str, float]:
    (maker,) = loader.statistics.makers
    return defaultdict(float, maker.stages_s)


def names_the_largest(loader: al.DataLoader[Any]) -> bool:
    """Whether the report blames the stage that took most: on a busy machine that may be one that only waited
    for a processor, while it was measured in place of others."""
    made = {
        stage: spent_s
        for stage, spent_s in stages_of(loader).items()
        if stage not in (IDLE, PROCESSOR, "starting")
    }
    return loader.report().limit in (PROCESSOR, max(made, key=made.__getitem__))


def test_batches_of_two_kinds_have_the_shares_that_they_take() -> None:
    """The dataset is slow where ``collate_fn`` is quick, and the other way round."""
    data = Data(lambda number: 0.00002 if number % 2 else 0.0005)
    collate = Collate(lambda number: 0.0002 if number % 2 else 0.00001)
    loader = al.DataLoader(data, 1, collate_fn=collate)
    for _ in loader:
        pass
    stages_s, told = stages_of(loader), loader.statistics
    assert is_about(stages_s[STAGE], data.took_s, stages_s[PROCESSOR])
    assert is_about(stages_s["collate"], collate.took_s, stages_s[PROCESSOR])
    making_s = sum(spent_s for stage, spent_s in stages_s.items() if stage not in ("idle", "starting"))
    assert is_about(told.wait_s, making_s)
    assert is_about(told.elapsed_s, sum(stages_s.values()))
    assert names_the_largest(loader)


@pytest.mark.parametrize("slow", ["sampler", STAGE, "collate"])
def test_a_single_slow_batch_among_quick_ones_is_not_missed(slow: str) -> None:
    """Most are slowest elsewhere; it is neither the first nor the last one."""

    def takes_s(stage: str) -> Callable[[int], float]:
        return lambda number: 0.3 if stage == slow and number == 444 else 0.00001

    loader = al.DataLoader(
        Data(takes_s(STAGE)), 1, sampler=Order(takes_s("sampler")), collate_fn=Collate(takes_s("collate"))
    )
    for _ in loader:
        pass
    assert stages_of(loader)[slow] + stages_of(loader)[PROCESSOR] >= 0.3
    assert names_the_largest(loader)


def test_a_training_step_is_a_rest_and_no_wait() -> None:
    loader = al.DataLoader(Data(lambda number: 0.0), 100)
    for _ in loader:
        sleep(0.02)
    stages_s = stages_of(loader)
    assert stages_s["idle"] >= 8 * 0.02 > 10 * stages_s[STAGE]


async def test_what_is_handed_over_later_is_divided_all_the_same() -> None:
    data, collate = Data(lambda number: 0.001), Collate(lambda number: 0.0005)
    loader = al.DataLoader(data, 10, collate_fn=collate)
    async for _ in loader:
        spin(0.001)
    stages_s = stages_of(loader)
    assert is_about(stages_s[STAGE], data.took_s, stages_s[PROCESSOR])
    assert is_about(stages_s["collate"], collate.took_s, stages_s[PROCESSOR])
    assert stages_s["idle"] >= 80 * 0.001


@pytest.mark.parametrize("failing", ["sampler", STAGE, "collate"])
def test_what_fails_has_the_time_until_it_failed(failing: str) -> None:
    def fail(number: int) -> float:
        spin(0.1)
        raise ValueError("the user's own")

    def takes_s(stage: str) -> Callable[[int], float]:
        return fail if stage == failing else lambda number: 0.0

    sampler = Order(takes_s("sampler"))
    loader = al.DataLoader(Data(takes_s(STAGE)), 1, sampler=sampler, collate_fn=Collate(takes_s("collate")))
    batches = iter(loader)
    with pytest.raises(ValueError, match="the user's own"):
        next(batches)
    del batches
    stages_s = stages_of(loader)
    assert stages_s.pop(failing) + stages_s.pop(PROCESSOR, 0.0) >= 0.1
    assert sum(stages_s.values()) < 0.1


@pytest.mark.parametrize("fails", [False, True])
def test_pinning_is_what_follows_collating(fails: bool) -> None:
    laps, since_s = InlineTimer(STAGE, Stopwatch(), pins=True), perf_counter()
    laps.fetch()
    laps.collate()
    sleep(0.02)
    if fails:
        laps.left(since_s, perf_counter())
    else:
        laps.pin()
        sleep(0.3)
        laps.waited(since_s, perf_counter())
    spent = laps.end(None, perf_counter())
    assert spent is not None
    seconds = spent.seconds
    assert 0.02 <= seconds[COLLATE] < 0.3
    assert (PINNING not in seconds) if fails else (seconds[PINNING] >= 0.3)
    assert seconds[SAMPLER] < 0.1 > seconds[IDLE]
