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
from hypothesis import given, settings
from hypothesis import strategies as st
from interrupting import Interrupt, interrupted_at
from waiting import AT_ONCE_S, until

from asyncloader.flow.channel import Channel, ChannelClosed, EndOfChannel

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
def test_an_error_comes_after_the_items_before_it_to_whoever_asks(receiver: Door) -> None:
    channel = Channel[str](10)
    channel.send("before")
    channel.finish(KeyError("why"))
    assert receiver.receive(channel) == "before"
    frames = []
    for _ in range(3):
        with pytest.raises(KeyError, match="why") as raised:
            receiver.receive(channel)
        frames.append(len(raised.traceback))
    assert frames == [frames[0]] * 3, "each asking added its frames to those before"
    channel.close()
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


def test_who_waits_for_room_holds_nothing_and_nobody_up() -> None:
    channel = Channel[str](10)
    channel.wait_room(100)
    channel.send("a", 10)
    with in_thread(lambda: channel.wait_room(5)) as outcome:
        assert waits(outcome)
        with in_thread(lambda: channel.send("b", 7)) as sent:
            assert waits(sent)
            assert channel.receive() == "a"
            outcome.result(5)
            sent.result(5)
    with in_thread(lambda: channel.wait_room(5)) as outcome:
        assert waits(outcome)
        channel.close()
        with pytest.raises(ChannelClosed):
            outcome.result(5)


def test_a_timeout_leaves_the_channel_as_it_was() -> None:
    channel = Channel[str](1)
    begun = time.monotonic()
    with pytest.raises(TimeoutError, match=r"0\.05 s"):
        channel.receive(0.05)
    assert 0.05 <= time.monotonic() - begun < AT_ONCE_S
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


def run_to_the_end(
    channel: Channel[Any], senders: list[threading.Thread], receivers: list[threading.Thread]
) -> None:
    for thread in senders + receivers:
        thread.start()
    for thread in senders:
        thread.join(20)
    channel.finish()
    for thread in receivers:
        thread.join(20)


class Counting(Channel[Any]):
    """Counts how often its rules are asked."""

    looks = 0

    def _try_send(self, *call: Any) -> Any:
        self.looks += 1
        return super()._try_send(*call)

    def _try_receive(self, *call: Any) -> Any:
        self.looks += 1
        return super()._try_receive(*call)


def waiters() -> int:
    gc.collect()
    kinds = ("ThreadWaiter", "LoopWaiter", "Event")
    return sum(type(each).__name__ in kinds for each in gc.get_objects())


def test_whoever_times_out_leaves_nothing_in_the_channel() -> None:
    channel = Channel[str](1)
    before = waiters()
    for _ in range(20):
        with pytest.raises(TimeoutError):
            channel.receive(0.001)
    assert waiters() == before


async def test_whoever_is_cancelled_leaves_nothing_in_the_channel() -> None:
    empty, full = Channel[str](1), Channel[str](1)
    full.send("a")
    before = waiters()
    tasks: list[asyncio.Task[Any]] = [asyncio.create_task(empty.receive_async()) for _ in range(20)]
    tasks += [asyncio.create_task(full.send_async("b")) for _ in range(20)]
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    del tasks, task
    assert waiters() == before


async def test_one_item_wakes_one_receiver() -> None:
    channel = Counting(100)
    tasks = [asyncio.create_task(channel.receive_async()) for _ in range(20)]
    await asyncio.sleep(0)
    channel.looks = 0
    for item in range(20):
        channel.send(item)
        await asyncio.sleep(0.001)
    assert channel.looks == 2 * 20, "each sends, and looks for itself, once"
    assert [await task for task in tasks] == list(range(20)), "in the order in which they came"


async def test_freed_room_wakes_the_senders_that_fit_into_it() -> None:
    channel = Counting(10)
    channel.send("large", 10)
    tasks = [asyncio.create_task(channel.send_async(number, 5)) for number in range(20)]
    await asyncio.sleep(0)
    channel.looks = 0
    assert channel.receive() == "large"
    await asyncio.sleep(0.001)
    assert (channel.looks, len(channel)) == (1 + 2, 2)
    assert sorted([await channel.receive_async() for _ in range(20)]) == list(range(20))
    await asyncio.gather(*tasks)


async def test_a_sender_that_gives_up_makes_way_for_those_behind_it() -> None:
    channel = Channel[str](10)
    channel.send("a", 5)
    channel.send("b", 5)
    large = asyncio.create_task(channel.send_async("large", 10))
    small = asyncio.create_task(channel.send_async("small", 1))
    await asyncio.sleep(0.01)
    assert channel.receive() == "a"
    await asyncio.sleep(0.01)
    assert not small.done(), "what is large would never get in if it were passed by"
    large.cancel()
    await asyncio.wait_for(small, 5)


@pytest.mark.parametrize("dies", ["before the item", "before it looked"])
def test_the_wake_of_a_receiver_whose_loop_has_died_goes_to_the_next(dies: str) -> None:
    channel = Channel[str](10)
    loop = asyncio.new_event_loop()
    task = loop.create_task(channel.receive_async())
    loop.run_until_complete(asyncio.sleep(0))
    with in_thread(lambda: channel.receive()) as outcome:
        assert waits(outcome)
        if dies == "before the item":
            loop.close()
        channel.send("a")
        if dies == "before it looked":
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                loop.run_until_complete(task)
            loop.close()
        assert outcome.result(5) == "a"
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # as intended


steps = st.lists(
    st.one_of(
        st.just(("receive", 0)),
        st.tuples(st.just("send"), st.integers(1, 4)),
        st.tuples(st.just("cancel"), st.integers(0, 20)),
        st.just(("turn", 0)),
    ),
    max_size=40,
)


@given(capacity=st.integers(1, 5), steps=steps)
@settings(deadline=None)
def test_nobody_is_left_waiting_for_what_is_there(capacity: int, steps: list[tuple[str, int]]) -> None:
    """Whatever comes in which order, and is cancelled at whatever point."""

    async def play() -> None:
        channel = Channel[int](capacity)
        receives: list[asyncio.Task[int]] = []
        sends: list[asyncio.Task[None]] = []
        for step, number in steps:
            if step == "receive":
                receives.append(asyncio.create_task(channel.receive_async()))
            elif step == "send":
                sends.append(asyncio.create_task(channel.send_async(len(sends), number)))
            elif step == "cancel" and receives + sends:
                tasks: list[asyncio.Task[Any]] = [*receives, *sends]
                tasks[number % len(tasks)].cancel()
            else:
                await asyncio.sleep(0)
        for _ in range(100):
            await asyncio.sleep(0)
        starved = [task for task in receives if not task.done()]
        stuck = [task for task in sends if not task.done()]
        assert not (starved and len(channel)), "a receiver waits beside an item"
        assert not (stuck and not len(channel)), "a sender waits beside an empty channel"
        assert not (stuck and starved)
        got = [task.result() for task in receives if task.done() and not task.cancelled()]
        sent = [number for number, task in enumerate(sends) if task.done() and not task.cancelled()]
        assert sorted(got + [await channel.receive_async() for _ in range(len(channel))])[: len(sent)] == sent
        for task in (*starved, *stuck):
            task.cancel()
        await asyncio.gather(*starved, *stuck, return_exceptions=True)

    asyncio.run(play())


def test_impatient_receivers_and_senders_of_all_kinds_lose_nothing_and_all_come_through() -> None:
    channel = Channel[tuple[int, int]](3)
    received: list[tuple[int, int]] = []

    def send(number: int) -> None:
        for item in range(200):
            channel.send((number, item), random.Random(item).randint(1, 4))

    async def send_impatiently(number: int) -> None:
        for item in range(200):
            sent = False
            while not sent:
                task = asyncio.create_task(channel.send_async((number, item), 2))
                await asyncio.wait([task], timeout=random.choice([0, 0.0001, 1]))
                task.cancel()
                await asyncio.wait([task])
                sent = not task.cancelled()

    def receive() -> None:
        while True:
            try:
                received.append(channel.receive(random.choice([0, 0.0001, 5])))
            except TimeoutError:
                continue
            except EndOfChannel:
                return

    async def receive_impatiently() -> None:
        while True:
            task = asyncio.create_task(channel.receive_async())
            await asyncio.wait([task], timeout=random.choice([0, 0.0001, 5]))
            task.cancel()
            await asyncio.wait([task])
            if task.cancelled():
                continue
            if isinstance(task.exception(), EndOfChannel):
                return
            received.append(task.result())

    senders = [threading.Thread(target=send, args=(number,)) for number in range(2)]
    senders += [threading.Thread(target=asyncio.run, args=(send_impatiently(number),)) for number in (2, 3)]
    receivers = [threading.Thread(target=receive) for _ in range(2)]
    receivers += [threading.Thread(target=asyncio.run, args=(receive_impatiently(),)) for _ in range(2)]
    run_to_the_end(channel, senders, receivers)
    assert sorted(received) == [(number, item) for number in range(4) for item in range(200)]


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
    run_to_the_end(channel, senders, receivers)
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


# --- exceptions of signals' handlers ---


def test_a_receiver_that_is_interrupted_anywhere_loses_no_item_and_no_wake_of_a_sender() -> None:
    for nth in range(1, 1000):
        channel = Channel[int](2)
        received: list[int] = []
        with in_thread(lambda: [channel.send(number) for number in range(6)]):  # noqa: B023
            until(lambda: len(channel) == 2)  # noqa: B023
            try:
                received.append(interrupted_at(nth, channel.receive))
                is_through = True
            except Interrupt:
                is_through = False
            while len(received) < 6:
                received.append(channel.receive(AT_ONCE_S))
        assert received == list(range(6)), nth
        if is_through:
            break
    assert nth > 5


def test_a_receiver_that_is_interrupted_while_it_waits_leaves_the_item_to_the_next() -> None:
    for nth in range(1, 1000):
        channel = Channel[int](2)
        received: list[int] = []
        with in_thread(lambda: (time.sleep(0.005), channel.send(0), channel.send(1))):  # noqa: B023
            try:
                received.append(interrupted_at(nth, channel.receive))
                is_through = True
            except Interrupt:
                is_through = False
            with in_thread(lambda: channel.receive(AT_ONCE_S)) as outcome:  # noqa: B023
                received += [channel.receive(AT_ONCE_S) for _ in range(1 - len(received))]
                received.append(outcome.result(AT_ONCE_S))
        assert sorted(received) == [0, 1], nth
        if is_through:
            break
    assert nth > 5


def test_a_sender_that_is_interrupted_anywhere_leaves_no_receiver_beside_an_item() -> None:
    for nth in range(1, 1000):
        channel = Channel[int](2)
        with in_thread(channel.receive) as outcome:
            time.sleep(0.002)
            try:
                interrupted_at(nth, lambda: channel.send(1))  # noqa: B023
                is_through = True
            except Interrupt:
                is_through = False
            until(lambda: outcome.done() or not len(channel))  # noqa: B023
            channel.send(2)
            got = [outcome.result(AT_ONCE_S), *(channel.receive() for _ in range(len(channel)))]
        assert got in ([[1, 2]] if is_through else [[1, 2], [2]]), nth
        if is_through:
            break
    assert nth > 5


def test_a_sender_that_is_interrupted_while_it_waits_makes_way_for_those_behind_it() -> None:
    for nth in range(1, 1000):
        channel = Channel[str](10)
        channel.send("a", 10)
        with in_thread(lambda: (time.sleep(0.005), channel.receive())) as first:  # noqa: B023
            try:
                interrupted_at(nth, lambda: channel.send("large", 10))  # noqa: B023
                is_through = True
            except Interrupt:
                is_through = False
            with in_thread(lambda: channel.send("small", 1)):  # noqa: B023
                first.result(AT_ONCE_S)
                got = [""]
                while got[-1] != "small":
                    got.append(channel.receive(AT_ONCE_S))
        assert is_through <= (got == ["", "large", "small"]), nth
        if is_through:
            break
    assert nth > 5


def test_closing_that_is_interrupted_anywhere_can_be_repeated() -> None:
    for nth in range(1, 1000):
        channel = Channel[int](1)
        channel.send(0)
        calls: list[str] = []
        channel.on_close(lambda: calls.append("closed"))  # noqa: B023
        with in_thread(lambda: channel.send(1)) as outcome:  # noqa: B023
            time.sleep(0.002)
            try:
                interrupted_at(nth, channel.close)
                is_through = True
            except Interrupt:
                is_through = False
                channel.close()
            with pytest.raises(ChannelClosed):
                outcome.result(AT_ONCE_S)
        assert calls, nth
        if is_through:
            break
    assert nth > 5


def test_finishing_that_is_interrupted_anywhere_can_be_repeated() -> None:
    for nth in range(1, 1000):
        channel = Channel[int](1)
        with in_thread(channel.receive) as outcome:
            time.sleep(0.002)
            try:
                interrupted_at(nth, channel.finish)
                is_through = True
            except Interrupt:
                is_through = False
                channel.finish()
            with pytest.raises(EndOfChannel):
                outcome.result(AT_ONCE_S)
        if is_through:
            break
    assert nth > 3
