"""A stage that reads on by itself is held to what its consumer asks for."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from fake_backend import FakeBackend
from staging import Scripted, make_stage, settle

from asyncloader._flow.channel import EndOfChannel


class Counted(Scripted):
    read = 0

    def receive(self) -> Any:
        self.read += 1
        return super().receive()


def test_a_stage_reads_a_batch_only_when_it_is_asked_for() -> None:
    source = Counted([(torch.zeros(3), number) for number in range(4)])
    backend = FakeBackend()
    stage = make_stage(source, backend, on_demand=True)
    for number in range(4):
        time.sleep(0.02)
        assert source.read == number
        _, note = stage.receive()
        assert note == number
    with pytest.raises(EndOfChannel):
        stage.receive()
    settle(stage)
    assert source.closed == 1


def test_an_error_answers_one_ask() -> None:
    batches = [(torch.zeros(3), number) for number in range(3)]
    source = Counted([batches[0], ValueError("the user's"), *batches[1:]])
    backend = FakeBackend()
    stage = make_stage(source, backend, on_demand=True)
    stage.receive()
    with pytest.raises(ValueError, match="the user's"):
        stage.receive()
    time.sleep(0.02)
    assert source.read == 2
    assert stage.receive()[1] == 1
    settle(stage)


def test_closing_wakes_a_stage_that_was_not_asked() -> None:
    source, backend = Counted([(torch.zeros(3), 0)]), FakeBackend()
    stage = make_stage(source, backend, on_demand=True)
    began = time.monotonic()
    settle(stage)
    assert time.monotonic() - began < 4 and source.read == 0
