"""Stages over the fake device, and sources for them."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from fake_backend import FakeBackend

from asyncloader.device.stage import DeviceStage
from asyncloader.flow.channel import Channel, EndOfChannel

BOTH = pytest.mark.parametrize("to_device", [False, True], ids=["pinned", "device"])


def filled(batches: list[Any]) -> Channel[Any]:
    source: Channel[Any] = Channel(len(batches) + 1)
    for number, batch in enumerate(batches):
        source.send((batch, {"number": number}))
    source.finish()
    return source


def make_stage(source: Any, backend: FakeBackend, **options: Any) -> DeviceStage:
    stage = DeviceStage(source, backend, **{"to_device": True, "depth": 2, "budget_bytes": None, **options})
    backend.consumer = threading.current_thread()
    stage.start()
    return stage


def drained(stage: DeviceStage) -> list[Any]:
    received = []
    try:
        while True:
            received.append(stage.receive())
    except EndOfChannel:
        return received


def settle(stage: DeviceStage) -> None:
    """Close as an owner does that is no consumer any more: then waiting for the device is allowed."""
    stage._backend.consumer = None
    stage.close()


def backend_has_event(backend: FakeBackend, count: int = 1) -> None:
    wait_until(lambda: len(backend.events) >= count)


def wait_until(holds: Any) -> None:
    deadline = time.monotonic() + 5
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.001)


class Scripted:
    """A source that goes on after its errors, as map-style loading does."""

    def __init__(self, steps: list[Any]) -> None:
        self._steps = iter(steps)
        self.closed = 0

    def receive(self) -> Any:
        step = next(self._steps, None)
        if step is None:
            raise EndOfChannel
        if isinstance(step, BaseException):
            raise step
        return step

    async def receive_async(self) -> Any:
        raise AssertionError("the stage has a thread of its own")

    def close(self) -> None:
        self.closed += 1
