"""A stage that reads on by itself is held to what its consumer asks for."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from fake_backend import FakeBackend
from staging import Scripted, make_stage

from asyncloader._flow.asking import Asked, Asking, Asks
from asyncloader._flow.channel import EndOfChannel


class Counted(Scripted):
    read = 0

    def receive(self, timeout_s: float | None = None) -> Any:
        self.read += 1
        return super().receive()


def test_a_stage_reads_a_batch_only_when_it_is_asked_for() -> None:
    source, asks = Counted([(torch.zeros(3), number) for number in range(4)]), Asks()
    backend = FakeBackend()
    stage = make_stage(Asked(source, asks), backend)
    consumer = Asking(stage, asks)
    for number in range(4):
        time.sleep(0.02)
        assert source.read == number
        _, note = consumer.receive()
        assert note == number
    with pytest.raises(EndOfChannel):
        consumer.receive()
    backend.consumer = None
    consumer.close()
    assert source.closed == 1


def test_closing_wakes_a_stage_that_was_not_asked() -> None:
    source, asks, backend = Counted([(torch.zeros(3), 0)]), Asks(), FakeBackend()
    stage = make_stage(Asked(source, asks), backend)
    backend.consumer = None
    began = time.monotonic()
    Asking(stage, asks).close()
    assert time.monotonic() - began < 4 and source.read == 0
