"""The user's clients live as long as the engine, and no longer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from asyncloader.flow import engine as residents
from asyncloader.flow.channel import Channel
from asyncloader.flow.engine import Engine, EngineStopped


def test_a_client_is_left_in_its_own_task_after_the_last_task_has_ended() -> None:
    told: list[str] = []

    @asynccontextmanager
    async def client() -> AsyncIterator[str]:
        entered_in = asyncio.current_task()
        yield "value"
        assert asyncio.current_task() is entered_in
        told.append("left")

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            told.append("ended")

    with Engine() as engine:
        assert engine.enter(client) == "value"
        engine.submit(work, Channel[None](1))
    assert told == ["ended", "left"]


def test_one_that_hangs_while_leaving_is_cancelled_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residents, "_LEAVE_DEADLINE_S", 0.1)

    @asynccontextmanager
    async def client() -> AsyncIterator[None]:
        yield
        await asyncio.sleep(60)

    engine = Engine()
    engine.start()
    engine.enter(client)
    with pytest.raises(TimeoutError) as caught:
        engine.stop()
    assert any("leaving took more than" in note for note in caught.value.__notes__)
    engine.stop()  # told once


def test_one_that_is_still_being_entered_is_cancelled() -> None:
    entering = threading.Event()

    @asynccontextmanager
    async def client() -> AsyncIterator[None]:
        entering.set()
        await asyncio.sleep(60)
        yield

    engine = Engine()
    engine.start()
    found: list[BaseException] = []

    def enter() -> None:
        try:
            engine.enter(client)
        except EngineStopped as error:
            found.append(error)

    thread = threading.Thread(target=enter)
    thread.start()
    assert entering.wait(20)
    engine.stop()
    thread.join(20)
    assert len(found) == 1


def test_one_that_fails_does_not_keep_the_others_from_being_left() -> None:
    told: list[str] = []

    @asynccontextmanager
    async def failing() -> AsyncIterator[None]:
        yield
        raise OSError("gone")

    @asynccontextmanager
    async def sound() -> AsyncIterator[None]:
        yield
        await asyncio.sleep(0.01)
        told.append("left")

    engine = Engine()
    engine.start()
    for make in (failing, sound, failing):
        engine.enter(make)
    with pytest.raises(OSError, match="gone"):
        engine.stop()
    assert told == ["left"]
