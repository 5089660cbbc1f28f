"""Both doors of a channel, a thread's and a coroutine's, keep the same rules."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pytest

from asyncloader._flow.channel import Channel, ChannelClosed, EndOfChannel

# --- each rule through either door ---


class Thread:
    """Uses a channel by its blocking methods."""

    def send(self, channel: Channel[Any], item: Any, cost: int = 1) -> None:
        channel.send(item, cost)

    def receive(self, channel: Channel[Any]) -> Any:
        return channel.receive()


class Loop:
    """Uses a channel by its asynchronous methods, on a loop of its own."""

    def send(self, channel: Channel[Any], item: Any, cost: int = 1) -> None:
        asyncio.run(channel.send_async(item, cost))

    def receive(self, channel: Channel[Any]) -> Any:
        return asyncio.run(channel.receive_async())


Door = Thread | Loop
sender = pytest.mark.parametrize("sender", [Thread(), Loop()], ids=["thread", "loop"])
receiver = pytest.mark.parametrize("receiver", [Thread(), Loop()], ids=["thread", "loop"])


@contextmanager
def in_thread(call: Callable[[], Any]) -> Iterator[Future[Any]]:
    """Run ``call`` in a thread; it must have ended when the block does."""
    outcome: Future[Any] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:
            outcome.set_exception(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield outcome
    finally:
        thread.join(5)
        assert not thread.is_alive(), "nobody woke it"


def waits(outcome: Future[Any]) -> bool:
    """Whether it is still not done after a moment."""
    time.sleep(0.05)
    return not outcome.done()


@sender
@receiver
def test_items_come_in_order_and_then_the_end_for_ever(sender: Door, receiver: Door) -> None:
    channel = Channel[int | None](10)
    for item in (1, None, 3):  # None is an item like any other
        sender.send(channel, item)
    channel.finish()
    assert [receiver.receive(channel) for _ in range(3)] == [1, None, 3]
    for _ in range(2):
        with pytest.raises(EndOfChannel):
            receiver.receive(channel)


@sender
@receiver
def test_a_full_channel_makes_the_sender_wait_until_something_is_received(
    sender: Door, receiver: Door
) -> None:
    channel = Channel[str](10)
    sender.send(channel, "a", 6)
    sender.send(channel, "b", 4)
    with in_thread(lambda: sender.send(channel, "c", 5)) as outcome:
        assert waits(outcome)
        assert receiver.receive(channel) == "a"
        outcome.result(5)
    assert len(channel) == 2


@sender
@receiver
def test_an_empty_channel_makes_the_receiver_wait_until_something_is_sent(
    sender: Door, receiver: Door
) -> None:
    channel = Channel[str](10)
    with in_thread(lambda: receiver.receive(channel)) as outcome:
        assert waits(outcome)
        sender.send(channel, "a")
        assert outcome.result(5) == "a"


@sender
def test_an_item_larger_than_the_capacity_is_let_in_alone(sender: Door) -> None:
    channel = Channel[str](10)
    sender.send(channel, "huge", 1000)
    with in_thread(lambda: sender.send(channel, "tiny", 1)) as outcome:
        assert waits(outcome)
        assert channel.receive() == "huge"
        outcome.result(5)


@receiver
def test_an_error_comes_once_after_the_items_before_it(receiver: Door) -> None:
    channel = Channel[str](10)
    channel.send("before")
    channel.finish(KeyError("why"))
    assert receiver.receive(channel) == "before"
    with pytest.raises(KeyError, match="why"):
        receiver.receive(channel)
    with pytest.raises(EndOfChannel):
        receiver.receive(channel)


@receiver
def test_finishing_wakes_a_receiver_that_waits(receiver: Door) -> None:
    channel = Channel[str](10)
    with in_thread(lambda: receiver.receive(channel)) as outcome:
        assert waits(outcome)
        channel.finish(KeyError("why"))
        with pytest.raises(KeyError):
            outcome.result(5)


def test_only_the_first_finish_counts() -> None:
    channel = Channel[str](10)
    channel.finish()
    channel.finish(KeyError("late"))
    with pytest.raises(EndOfChannel):
        channel.receive()


@sender
def test_closing_wakes_a_sender_that_waits_and_refuses_others(sender: Door) -> None:
    channel = Channel[str](1)
    sender.send(channel, "a")
    with in_thread(lambda: sender.send(channel, "b")) as outcome:
        assert waits(outcome)
        channel.close()
        with pytest.raises(ChannelClosed):
            outcome.result(5)
    with pytest.raises(ChannelClosed):
        sender.send(channel, "c")
    assert len(channel) == 0, "what was held is dropped"


@receiver
def test_closing_wakes_a_receiver_that_waits_in_another_thread(receiver: Door) -> None:
    channel = Channel[str](1)
    with in_thread(lambda: receiver.receive(channel)) as outcome:
        assert waits(outcome)
        channel.close()
        with pytest.raises(EndOfChannel):
            outcome.result(5)


def test_closing_drops_what_is_held_at_once() -> None:
    class Held:
        def __init__(self, gone: threading.Event) -> None:
            self._gone = gone

        def __del__(self) -> None:
            self._gone.set()

    gone = threading.Event()
    channel = Channel[Held](10)
    channel.send(Held(gone))
    channel.close()
    gc.collect()
    assert gone.is_set()


def test_closing_twice_does_nothing() -> None:
    channel = Channel[str](1)
    calls: list[str] = []
    channel.on_close(lambda: calls.append("closed"))
    channel.close()
    channel.close()
    assert calls == ["closed"]


def test_on_close_is_called_at_once_if_it_is_closed_and_never_if_it_has_finished() -> None:
    calls: list[str] = []
    closed, finished = Channel[str](1), Channel[str](1)
    closed.close()
    closed.on_close(lambda: calls.append("closed"))
    finished.on_close(lambda: calls.append("before"))
    finished.finish()
    finished.on_close(lambda: calls.append("after"))
    finished.close()
    assert calls == ["closed"]


# --- waiting ---


def test_a_timeout_leaves_the_channel_as_it_was() -> None:
    channel = Channel[str](1)
    begun = time.monotonic()
    with pytest.raises(TimeoutError, match=r"0\.05 s"):
        channel.receive(0.05)
    assert 0.05 <= time.monotonic() - begun < 1
    channel.send("a")
    assert channel.receive(0.05) == "a"
    assert channel.receive.__self__ is channel


async def test_a_cancelled_receive_loses_no_item() -> None:
    channel = Channel[int](100)
    received: list[int] = []
    for number in range(50):
        task = asyncio.create_task(channel.receive_async())
        await asyncio.sleep(0)
        channel.send(number)
        if number % 3:
            task.cancel()
        try:
            received.append(await task)
        except asyncio.CancelledError:
            received.append(await channel.receive_async())
    assert received == list(range(50))


async def test_a_cancelled_send_has_not_sent() -> None:
    channel = Channel[str](1)
    await channel.send_async("a")
    task = asyncio.create_task(channel.send_async("b"))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await channel.receive_async() == "a"
    assert len(channel) == 0


def test_a_waiter_whose_loop_has_closed_disturbs_nobody() -> None:
    channel = Channel[str](1)

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await channel.receive_async()

    asyncio.run(give_up())
    channel.send("a")
    assert channel.receive() == "a"


@pytest.mark.parametrize("capacity", [1, 7])
def test_many_senders_and_receivers_through_both_doors_lose_and_repeat_nothing(capacity: int) -> None:
    channel = Channel[tuple[int, int]](capacity)
    received: list[tuple[int, int]] = []
    lock = threading.Lock()

    def send(door: Door, number: int) -> None:
        for item in range(150):
            door.send(channel, (number, item), random.Random(item).randint(1, 3))

    def receive(door: Door) -> None:
        while True:
            try:
                item = door.receive(channel)
            except EndOfChannel:
                return
            with lock:
                received.append(item)

    doors: list[Door] = [Thread(), Loop()]
    senders = [threading.Thread(target=send, args=(door, number)) for number, door in enumerate(doors * 2)]
    receivers = [threading.Thread(target=receive, args=(door,)) for door in doors * 2]
    for thread in senders + receivers:
        thread.start()
    for thread in senders:
        thread.join(20)
    channel.finish()
    for thread in receivers:
        thread.join(20)
    assert sorted(received) == [(number, item) for number in range(4) for item in range(150)]


def test_with_one_receiver_each_senders_items_come_in_its_order() -> None:
    channel = Channel[tuple[int, int]](3)

    def send(number: int) -> None:
        for item in range(100):
            channel.send((number, item))

    threads = [threading.Thread(target=send, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    received = [channel.receive() for _ in range(300)]
    for thread in threads:
        thread.join()
    for number in range(3):
        assert [item for sender, item in received if sender == number] == list(range(100))
