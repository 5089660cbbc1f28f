from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable, Generator
from typing import Any

import pytest
from waiting import AT_ONCE_S, until

from asyncloader import testing
from asyncloader.flow import channel as producer_module
from asyncloader.flow.channel import Channel, EndOfChannel, Producer

Items = Generator[Any, None, None]


def producer_of(
    generate: Callable[[], Items],
    capacity: int = 2,
    on_close: Callable[[], None] = int,
    cost_of: Callable[[Any], int] | None = None,
) -> Producer[Any]:
    producer = Producer[Any](generate, capacity, on_close, "test-producer", cost_of)
    producer.start()
    return producer


def count(to: int, made: list[int]) -> Items:
    for number in range(to):
        made.append(number)
        yield number


def test_items_come_in_order_and_then_the_end() -> None:
    with testing.check_leaks():
        producer = producer_of(lambda: count(10, []))
        assert [producer.receive() for _ in range(10)] == list(range(10))
        with pytest.raises(EndOfChannel):
            producer.receive()
        producer.close()


async def test_items_come_in_order_in_a_coroutine_too() -> None:
    producer = producer_of(lambda: count(10, []))
    assert [await producer.receive_async() for _ in range(10)] == list(range(10))
    with pytest.raises(EndOfChannel):
        await producer.receive_async()
    producer.close()


def test_it_runs_ahead_as_far_as_the_capacity_and_no_further() -> None:
    made: list[int] = []
    producer = producer_of(lambda: count(100, made), capacity=3)
    until(lambda: len(made) >= 3)
    time.sleep(0.05)
    assert len(made) == 3, "none that would have to wait to be let in"
    producer.receive()
    until(lambda: len(made) >= 4)
    time.sleep(0.05)
    assert len(made) == 4
    producer.close()
    assert len(made) == 4


def test_an_item_above_the_capacity_is_made_when_the_one_before_has_gone() -> None:
    made: list[int] = []

    def costly() -> Items:
        for number in range(10):
            made.append(number)
            yield number

    producer = producer_of(costly, capacity=3, cost_of=lambda _: 100)
    for received in range(5):
        time.sleep(0.05)
        assert len(made) == received + 1
        assert producer.receive() == received
    producer.close()


def test_an_error_of_the_generator_comes_after_its_items() -> None:
    def fail() -> Items:
        yield 1
        raise KeyError("why")

    producer = producer_of(fail)
    assert producer.receive() == 1
    with pytest.raises(KeyError, match="why"):
        producer.receive()
    producer.close()


def test_closing_closes_the_generator_and_joins_the_thread() -> None:
    closed = threading.Event()

    def generate() -> Items:
        try:
            yield from count(1000, [])
        finally:
            closed.set()

    with testing.check_leaks():
        producer = producer_of(generate)
        producer.receive()
        producer.close()
        assert closed.is_set()
        producer.close()


def test_closing_wakes_a_generator_that_waits_for_something_else() -> None:
    upstream = Channel[int](1)

    def generate() -> Items:
        while True:
            yield upstream.receive()

    producer = producer_of(generate, on_close=upstream.close)
    begun = time.monotonic()
    producer.close()
    assert time.monotonic() - begun < AT_ONCE_S


def test_a_generator_that_does_not_end_is_reported_and_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_module, "_CLOSE_DEADLINE_S", 0.1)
    release = threading.Event()

    def generate() -> Items:
        release.wait()
        yield 1

    with testing.check_leaks():
        producer = producer_of(generate)
        with pytest.warns(RuntimeWarning, match="test-producer is still at work"):
            producer.close()
        release.set()


def test_the_thread_does_not_keep_its_producer_alive() -> None:
    producer = producer_of(lambda: count(1000, []))
    gone = weakref.ref(producer)
    channel = producer._channel
    del producer
    gc.collect()
    assert gone() is None
    channel.close()


def test_closing_one_that_was_never_started_does_nothing() -> None:
    Producer[Any](lambda: count(1, []), 1, int, "never-started").close()


def test_one_that_another_one_has_started_is_joined_by_it() -> None:
    inner_ended = threading.Event()
    outcomes: list[bool] = []

    def generate_inner() -> Items:
        try:
            yield from count(1000, [])
        finally:
            time.sleep(0.1)
            inner_ended.set()

    def generate() -> Items:
        inner = Producer[Any](generate_inner, 1, int, "asyncloader-inner")
        inner.start()
        try:
            while True:
                yield inner.receive()
        finally:
            inner.close()
            outcomes.append(inner_ended.is_set())

    outer = Producer[Any](generate, 1, int, "asyncloader-outer")
    outer.start()
    outer.receive()
    with testing.check_leaks():
        outer.close()
        assert outcomes == [True]


def test_another_thread_of_the_library_does_not_wait_for_it() -> None:
    release = threading.Event()

    def generate() -> Items:
        release.wait()
        yield 1

    producer = producer_of(generate)
    # As a garbage collection may close it wherever it runs.
    collecting = threading.Thread(target=producer.close, name="asyncloader-engine")
    collecting.start()
    collecting.join(1)
    assert not collecting.is_alive()
    release.set()
