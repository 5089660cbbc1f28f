"""Who makes an item only when it is asked for, and so many unasked."""

from __future__ import annotations

import threading
from contextlib import suppress

import pytest

from asyncloader._flow.asking import Asks
from asyncloader._flow.channel import EndOfChannel


def test_so_many_are_made_unasked_and_each_more_for_an_ask() -> None:
    asks, made = Asks(2), threading.Semaphore(0)

    def make() -> None:
        with suppress(EndOfChannel):
            while True:
                asks.wait()
                made.release()

    thread = threading.Thread(target=make)
    thread.start()
    for _ in range(3):
        asks.ask()
    assert all(made.acquire(timeout=5) for _ in range(5))
    assert not made.acquire(timeout=0.05)
    asks.ask()
    assert made.acquire(timeout=5)
    asks.finish()
    thread.join()


def test_any_number_may_be_made_unasked() -> None:
    asks = Asks(1 << 62)
    for _ in range(100):
        asks.ask()
        asks.wait()
    assert len(asks._asked) == 0, "an ask is used up before the next one"


def test_the_end_comes_before_what_may_still_be_made_unasked() -> None:
    asks = Asks(100)
    asks.wait()
    asks.finish()
    with pytest.raises(EndOfChannel):
        asks.wait()


def test_the_end_wakes_who_waits_to_be_asked() -> None:
    asks, ended = Asks(), threading.Event()

    def wait() -> None:
        with pytest.raises(EndOfChannel):
            asks.wait()
        ended.set()

    thread = threading.Thread(target=wait)
    thread.start()
    asks.finish()
    assert ended.wait(5)
    thread.join()
