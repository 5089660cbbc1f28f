from collections.abc import Callable
from time import perf_counter, sleep, thread_time

from asyncloader.torch_kind.processor_time import ProcessorTime


def spin(seconds: float) -> None:
    until_s = perf_counter() + seconds
    while perf_counter() < until_s:
        pass


def waited(processor: ProcessorTime, count: int, work: Callable[[float], None], each_s: float) -> float:
    """The processor's time that so many waits took, as this thread's clock has it."""
    cpu_s = 0.0
    for _ in range(count):
        began_s = thread_time()
        processor.begin_wait(perf_counter())
        work(each_s)
        processor.end_wait(perf_counter())
        cpu_s += thread_time() - began_s
    return cpu_s


def test_short_waits_are_told_by_those_that_were_measured() -> None:
    processor = ProcessorTime()
    took_s = waited(processor, 500, spin, 0.0001)
    assert took_s / 5 < processor.take() < took_s * 5


def test_a_wait_that_sleeps_takes_no_time_of_the_processor() -> None:
    processor = ProcessorTime()
    waited(processor, 20, sleep, 0.005)
    assert processor.take() < 0.05


def test_each_long_wait_is_measured() -> None:
    processor = ProcessorTime()
    took_s = waited(processor, 5, spin, 0.01) + waited(processor, 5, sleep, 0.01)
    assert took_s / 5 < processor.take() < took_s * 5


def test_what_was_told_is_not_told_again() -> None:
    processor = ProcessorTime()
    waited(processor, 2, spin, 0.002)
    assert processor.take() > 0
    assert processor.take() == 0
    assert not processor.waits


def test_long_waits_among_short_ones_are_measured_too() -> None:
    processor, took_s = ProcessorTime(), 0.0
    for _ in range(60):  # of which the sleeping one would begin too soon after a measured one each time
        took_s += waited(processor, 7, spin, 0.0001) + waited(processor, 1, sleep, 0.004)
    assert processor.take() < 5 * took_s
