"""Each moment of a thread is of one stage, and nothing is told twice."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Generator, Iterator
from dataclasses import replace
from time import thread_time
from typing import Any

import pytest

import asyncloader as al
from asyncloader.flow.process import read_delay_s
from asyncloader.observe import stopwatch as module
from asyncloader.observe.page import report_html
from asyncloader.observe.plots import colour_of
from asyncloader.observe.report import Report, Setup, judge
from asyncloader.observe.statistics import Calls, Maker, Network, Statistics
from asyncloader.observe.stopwatch import (
    COLLATE,
    DECODE,
    IDLE,
    PROCESSOR,
    STARTING,
    STORE,
    Spent,
    Stopwatch,
    name_of,
    shares_of,
)

SOON_S = 0.02


class Block:
    """Something that can be referred to weakly."""


def blocks(stopwatch: Stopwatch, count: int) -> Generator[Block, None, None]:
    for _ in range(count):
        former = stopwatch.enter(STORE)
        time.sleep(SOON_S)
        stopwatch.enter(former)
        time.sleep(SOON_S)
        yield Block()


def test_a_stage_is_told_without_those_further_up() -> None:
    stopwatch = Stopwatch()
    began_s = time.perf_counter()
    stopwatch.enter(IDLE)
    outer = stopwatch.timed("map(f)", stopwatch.timed(DECODE, blocks(stopwatch, 3)))
    for _ in outer:
        time.sleep(SOON_S)
    spent = stopwatch.news(at_once=True)
    took_s = time.perf_counter() - began_s
    assert spent is not None
    assert all(spent.seconds[stage] >= 3 * SOON_S for stage in (STORE, DECODE, IDLE))
    assert spent.seconds["map(f)"] < SOON_S
    assert sum(spent.seconds.values()) == pytest.approx(took_s, abs=SOON_S)


def test_news_are_told_now_and_then_and_each_once() -> None:
    stopwatch = Stopwatch()
    stopwatch.enter(COLLATE)
    first = stopwatch.news()
    assert stopwatch.news() is None
    time.sleep(0.15)
    stopwatch.enter(IDLE)
    second = stopwatch.news()
    assert first is not None and second is not None
    assert second.seconds[COLLATE] >= 0.15 > first.seconds.get(COLLATE, 0.0)
    assert first.plus(second).seconds[COLLATE] == first.seconds.get(COLLATE, 0.0) + second.seconds[COLLATE]


def test_nothing_is_held_while_it_is_made_use_of_and_closing_closes() -> None:
    closed = []

    def items() -> Generator[Block, None, None]:
        try:
            yield Block()
            yield Block()
        finally:
            closed.append(True)

    timed = Stopwatch().timed(DECODE, items())
    held = weakref.ref(next(timed))
    gc.collect()
    assert held() is None
    timed.close()
    assert closed == [True]


def test_an_error_leaves_its_stage() -> None:
    def fails() -> Generator[Block, None, None]:
        yield Block()
        raise ValueError

    stopwatch = Stopwatch()
    timed = stopwatch.timed(DECODE, fails())
    next(timed)
    with pytest.raises(ValueError):
        next(timed)
    assert stopwatch.enter(COLLATE) == STARTING


def test_waiting_for_a_helper_is_told_as_what_it_does() -> None:
    """A decoder's thread that waits for bytes for three parts of four is a store that is slow."""
    stopwatch = Stopwatch()
    helper = stopwatch.helper()

    def decode() -> None:
        for stage, seconds in ((STORE, 0.15), (DECODE, 0.05), (IDLE, 0.0)):
            helper.enter(stage)
            time.sleep(seconds)

    thread = threading.Thread(target=decode)
    stopwatch.enter(DECODE)
    thread.start()
    thread.join()
    spent = stopwatch.news(at_once=True)
    assert spent is not None
    assert 2 < spent.seconds[STORE] / spent.seconds[DECODE] < 4


def test_calls_in_threads_are_counted_beside_the_stages() -> None:
    stopwatch = Stopwatch()
    threads = [
        threading.Thread(target=stopwatch.call, args=("map(f)", lambda: time.sleep(0.05))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spent = stopwatch.news(at_once=True)
    assert spent is not None
    took_s, cpu_s, delay_s = spent.calls["map(f)"]
    assert took_s >= 0.2 > cpu_s
    assert spent.plus(Spent({}, spent.calls)).calls["map(f)"] == (2 * took_s, 2 * cpu_s, 2 * delay_s)


def test_what_nobody_asks_for_does_not_grow() -> None:
    """A recipe may repeat for ever, each time with a new helper, and filters may let nothing pass."""
    stopwatch = Stopwatch()
    for _ in range(1_000):
        stopwatch.helper().enter(STORE)
        stopwatch.call("map(f)", int)
    gc.collect()
    assert len(stopwatch._helpers) == 0
    assert list(stopwatch._calls) == ["map(f)"]


def test_a_verdict_and_a_page_call_stages_alike_and_each_has_a_colour() -> None:
    stages = [
        getattr(module, name)
        for name in vars(module)
        if name.isupper() and isinstance(vars(module)[name], str)
    ]
    assert len(stages) > 5
    setup = Setup(2, True, {}, [], 2, False, False, True, False)
    for stage in stages:
        assert colour_of(stage, {}) == stage, "it is none of the user's"
        told = judge(Statistics(makers=(Maker(0, {stage: 2.0, "map(f)": 1.0}),)), setup)
        if stage != STARTING:
            assert f"67% {name_of(stage)}, 33% map(f)" in told.lines[1]
            assert f">{name_of(stage)} 67" in report_html(told)


def test_shares_are_of_all_makers_without_their_start_the_largest_first() -> None:
    assert shares_of([{STARTING: 9.0, STORE: 1.0}, {DECODE: 2.0, STORE: 0.0, IDLE: 1.0}]) == {
        DECODE: 0.5,
        STORE: 0.25,
        IDLE: 0.25,
    }
    assert shares_of([{STARTING: 1.0}]) == shares_of([]) == {}


def test_the_processor_s_time_is_that_of_the_thread_that_works() -> None:
    def work() -> None:
        stopwatch.move_here()
        until_s = thread_time() + 0.05
        while thread_time() < until_s:
            pass
        spent.append(stopwatch.news(at_once=True))

    until_s = thread_time() + 0.2
    while thread_time() < until_s:  # what whoever made it has used is no part
        pass
    stopwatch, spent = Stopwatch(), []
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    spent.append(stopwatch.news(at_once=True))
    assert 0.05 <= spent[0].cpu_s < 0.2
    assert spent[1].cpu_s == 0


@pytest.mark.parametrize(
    ("cpu_s", "advice"), [(0.3, "It mostly waits: pass concurrency="), (9.0, "Every processor")]
)
def test_who_mostly_waits_is_told_so_where_every_processor_has_a_worker(cpu_s: float, advice: str) -> None:
    stage = "map(fetch)"
    makers = tuple(Maker(worker, {stage: 10.0}, {}, cpu_s=cpu_s) for worker in (0, 1))
    statistics = Statistics(
        batches=10, samples=10, elapsed_s=11.0, wait_s=10.0, first_batch_s=1.0, makers=makers
    )
    setup = Setup(2, True, {stage: 1}, (), 2, False, True, False, False)
    assert judge(statistics, setup).lines[2].startswith(advice)
    on_cluster = judge(statistics, replace(setup, on_cluster=True)).lines[2]
    assert ("Use more than 2 RayWorkers" in on_cluster) == advice.startswith("Every processor")


@pytest.mark.parametrize(
    ("num_workers", "stage", "idle_s", "cpu_s", "wait_s", "limit", "advice"),
    [
        (0, DECODE, 0.8, 9.0, 0.5, DECODE, "Try num_workers=4"),
        # Batches are ready: both take about as long as each other, or the lock is waited for.
        (
            0,
            DECODE,
            0.8,
            9.0,
            0.2,
            "consumer",
            "If steps are faster without the loader, they wait for the interpreter's lock",
        ),
        (0, DECODE, 4.0, 6.0, 0.5, "consumer", "If steps are faster without the loader, they wait"),
        (0, DECODE, 8.0, 2.0, 0.5, "consumer", "Nothing to change"),
        # Nobody holds the lock for long.
        (0, DECODE, 0.8, 1.0, 0.5, "consumer", "Nothing to change"),
        (0, STORE, 0.8, 9.0, 0.5, "consumer", "If steps are faster without the loader, they wait"),
        # Other processes have locks of their own.
        (2, DECODE, 0.8, 9.0, 0.5, "consumer", "Nothing to change"),
    ],
)
def test_a_loop_that_waits_for_the_interpreters_lock_is_not_what_limits(
    num_workers: int, stage: str, idle_s: float, cpu_s: float, wait_s: float, limit: str, advice: str
) -> None:
    maker = Maker(0, {stage: 10.0 - idle_s, IDLE: idle_s}, cpu_s=cpu_s)
    statistics = Statistics(
        batches=10, samples=10, elapsed_s=10.0, wait_s=wait_s, first_batch_s=0.0, makers=(maker,)
    )
    report = judge(statistics, Setup(num_workers, True, {}, (), 4, False, True, False, False))
    assert report.limit == limit, str(report)
    assert ("if it holds the interpreter's lock" in report.lines[1]) == (limit == DECODE)
    assert report.lines[2].startswith(advice)


def judged(stage: str, setup: Setup, batches: int = 100, **of_maker: Any) -> Report:
    """The report on ten seconds of waiting for a stage."""
    maker = Maker(0, **{"stages_s": {stage: 10.0}, "cpu_s": 9.0, **of_maker})
    statistics = Statistics(
        batches=batches, samples=batches, elapsed_s=10.0, wait_s=9.9, first_batch_s=0.1, makers=(maker,)
    )
    return judge(statistics, setup)


ALONE = Setup(0, True, {}, (), 2, False, True, False, False)


def test_without_workers_nothing_is_handed_over_that_could_limit() -> None:
    stages_s = {"map(f)": 3.0, IDLE: 7.0}
    assert judged("map(f)", ALONE, stages_s=stages_s).limit == "map(f)"
    assert judged("map(f)", replace(ALONE, num_workers=2), stages_s=stages_s).limit == "transport"


@pytest.mark.parametrize("stage", ["filter(f)", COLLATE])
def test_what_waits_and_takes_no_concurrency_wants_workers_beyond_the_processors(stage: str) -> None:
    for num_workers in (0, 2):
        advice = judged(stage, replace(ALONE, num_workers=num_workers), cpu_s=0.5).lines[2]
        assert advice.startswith(f"It mostly waits: raise num_workers from {num_workers}. Workers may")
    assert judged(stage, ALONE).lines[2].startswith("Try num_workers=2")


def test_batches_that_are_sooner_made_than_handed_over_want_no_workers() -> None:
    assert judged(COLLATE, ALONE, batches=100_000).lines[2].startswith("Make batches larger")


def test_threads_that_keep_several_processors_busy_take_no_turns() -> None:
    setup = replace(ALONE, concurrency={"map(f)": 8})
    for took_s, cpu_s, delay_s, processors, advice in [
        (60.0, 18.0, 0.0, 4, "Its 8 threads keep processors busy"),
        (60.0, 18.0, 0.0, 2, "Its 8 threads use every processor"),
        (60.0, 9.5, 0.0, 4, "Its 8 threads take turns with the interpreter's lock"),
        # They wait for a processor, or for something else: nobody has seen them wait for the lock.
        (60.0, 9.5, 20.0, 4, "Try num_workers=4"),
        (60.0, 9.5, 0.0, 1, "Every processor is used"),
        (60.0, 6.0, 0.0, 4, "Try num_workers=4"),
        (60.0, 1.0, 0.0, 4, "Its calls mostly wait: raise concurrency from 8"),
    ]:
        calls = {"map(f)": Calls(took_s, cpu_s, delay_s)}
        told = judged("map(f)", replace(setup, processors=processors), calls=calls, cpu_s=0.1)
        assert told.lines[2].startswith(advice), told


def test_what_waits_for_a_processor_is_not_told_to_overlap_its_calls() -> None:
    setup = replace(ALONE, concurrency={"map(f)": 1})
    for work_s, delay_s, throttled_s, limit, advice in [
        (10.0, 0.0, 0.0, "map(f)", "It mostly waits: pass concurrency=16"),
        (6.6, 3.3, 0.0, "map(f)", "Try num_workers=2"),
        (10.0, 0.0, 5.0, "map(f)", "Try num_workers=2"),  # a system that counts only what a quota holds up
        (3.0, 7.0, 0.0, PROCESSOR, "Give the loader more processors"),
        (
            3.0,
            7.0,
            5.0,
            PROCESSOR,
            "Raise the container's processor quota: it delayed its processes by 5.0 s",
        ),
    ]:
        maker = Maker(0, {"map(f)": work_s, PROCESSOR: delay_s}, cpu_s=0.4 * work_s)
        statistics = replace(WAITED, makers=(maker,), throttled_s=throttled_s)
        told = judge(statistics, setup)
        assert (told.limit, told.lines[2].startswith(advice)) == (limit, True), told


def test_starting_workers_is_the_verdict_where_it_dominates() -> None:
    for stages_s, limit in [
        ({STARTING: 6.0, STORE: 3.0, DECODE: 1.0}, "start"),
        ({STARTING: 2.0, STORE: 6.0, DECODE: 2.0}, STORE),
    ]:
        setup = replace(ALONE, num_workers=2)
        assert judged(DECODE, setup, stages_s=stages_s).limit == limit
        assert judged(DECODE, replace(setup, style="map"), stages_s=stages_s).limit == limit
    assert judged(DECODE, ALONE, stages_s={STARTING: 6.0, DECODE: 4.0}).limit == DECODE


WAITED = Statistics(batches=100, samples=100, elapsed_s=10.0, wait_s=9.9, first_batch_s=0.1)


def two_workers(setup: Setup, slow: dict[str, float], network: Network) -> Report:
    """The report on one worker with work, while the other is idle."""
    makers = (Maker(0, slow), Maker(1, {"map(f)": 1.0, IDLE: 9.0}))
    return judge(replace(WAITED, makers=makers, network=network), replace(setup, num_workers=2))


def test_who_waits_out_an_outage_is_no_slow_worker() -> None:
    waiting, working = {STORE: 8.0, "map(f)": 2.0}, {"map(f)": 10.0}
    assert two_workers(ALONE, waiting, Network(requests=40, retries=6)).limit == STORE
    assert two_workers(ALONE, waiting, Network(requests=40)).limit == "lanes"
    assert two_workers(ALONE, working, Network(requests=40, retries=6)).limit == "lanes"


def test_a_cache_that_is_full_is_not_filled() -> None:
    setup = replace(ALONE, caches=True, is_local=False, in_order=False)
    for cached, evicting, limit, advice in [
        (0, 0, STORE, "Check with `asyncloader cache ls` that shards are kept"),
        (3, 0, "cache", "Nothing to change: the next epoch"),
        (3, 20, STORE, "Raise cache_limit"),
    ]:
        network = Network(requests=40, cached=cached, evicting=evicting)
        told = two_workers(setup, {STORE: 10.0}, network)
        assert (told.limit, told.lines[2].startswith(advice)) == (limit, True), told


def test_the_rate_and_the_wait_are_of_the_same_time() -> None:
    statistics = Statistics(
        batches=5,
        samples=50,
        elapsed_s=12.0,
        wait_s=11.0,
        first_batch_s=10.0,
        makers=(Maker(0, {DECODE: 2.0}),),
    )
    assert (
        "20 samples/s. The first batch took 10.00 s. After it, the loop waited 50% of the time."
        in (judge(statistics, ALONE).lines[0])
    )


def test_a_wait_for_what_is_there_is_not_one_for_the_store() -> None:
    stopwatch = Stopwatch()
    stopwatch.enter(DECODE)
    stopwatch.waited(STORE, time.perf_counter())
    began_s = time.perf_counter()
    time.sleep(SOON_S)
    waited_s = stopwatch.waited(STORE, began_s)
    spent = stopwatch.news(at_once=True)
    assert spent is not None
    assert spent.seconds[STORE] == pytest.approx(waited_s, rel=0.01)
    assert stopwatch.enter(COLLATE) == DECODE


@pytest.fixture
def contended() -> Iterator[None]:
    """This thread, and those it starts, have one processor, with two other processes on it."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()
        os.sched_setaffinity(0, allowed)


def spin(seconds: float) -> None:
    """Work as long, however long that takes."""
    until_s = thread_time() + seconds
    while thread_time() < until_s:
        pass


counts_delays = pytest.mark.skipif(read_delay_s(threading.get_native_id()) == 0.0, reason="no schedstat here")


@counts_delays
@pytest.mark.usefixtures("contended")
def test_a_wait_for_a_processor_is_a_stage_of_its_own() -> None:
    stopwatch = Stopwatch()
    stopwatch.enter("map(f)")
    stopwatch.news(at_once=True)
    began_s = time.perf_counter()
    spin(0.3)
    spent = stopwatch.news(at_once=True)
    took_s = time.perf_counter() - began_s
    assert spent is not None
    assert spent.seconds[PROCESSOR] > 0.05
    assert 0.25 <= spent.seconds["map(f)"] < 0.9 * took_s
    assert sum(spent.seconds.values()) == pytest.approx(took_s, rel=0.1)


@counts_delays
@pytest.mark.usefixtures("contended")
@pytest.mark.parametrize("concurrency", [1, 4])
def test_work_on_a_busy_processor_is_not_told_to_wait_less(concurrency: int) -> None:
    def works(sample: Any) -> Any:
        spin(0.004)
        return sample

    numbers = al.from_iterable(range(200)).map(works, concurrency=concurrency)
    with al.DataLoader(numbers, 8) as loader:
        for _ in loader:
            pass
        report, (maker,) = loader.report(), loader.statistics.makers
    assert report.limit == PROCESSOR or report.limit.startswith("map("), report
    assert maker.stages_s[PROCESSOR] > 0.1
    assert "concurrency" not in report.lines[2] and "lock" not in report.lines[2], report


def test_of_lanes_that_are_cut_equally_the_slow_samples_should_be_spread() -> None:
    makers = (Maker(0, {"map(f)": 9.0, IDLE: 1.0}), Maker(1, {"map(f)": 1.0, IDLE: 9.0}))
    statistics = Statistics(
        batches=100, samples=100, elapsed_s=10.0, wait_s=9.9, first_batch_s=0.1, makers=makers
    )
    for is_indexed, advice in (
        (True, "Shuffle, so that slow samples are spread over all lanes"),
        (False, ""),
    ):
        report = judge(statistics, replace(ALONE, num_workers=2, is_indexed=is_indexed))
        assert report.limit == "lanes"
        assert report.lines[2].startswith(advice) and "in_order=False" in report.lines[2]
