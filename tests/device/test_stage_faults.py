from __future__ import annotations

import gc
import threading
import time
import weakref
from typing import Any

import pytest
import torch
from fake_backend import FakeBackend
from staging import BOTH, Scripted, backend_has_event, filled, make_stage, settle, wait_until
from waiting import AT_ONCE_S

from asyncloader.device.stage import DeviceStage
from asyncloader.flow.channel import Channel, ChannelClosed, EndOfChannel

# --- errors ---


def outcomes(stage: DeviceStage) -> list[Any]:
    found: list[Any] = []
    while True:
        try:
            found.append(stage.receive()[1])
        except EndOfChannel:
            return found
        except Exception as error:
            if found and error is found[-1]:
                return found  # the stream has ended with it
            found.append(error)


def test_error_of_the_source_comes_at_its_place_and_the_rest_after_it() -> None:
    broken = KeyError("sample")
    steps = [(torch.zeros(1), 0), broken, (torch.zeros(1), 2)]
    stage = make_stage(Scripted(steps), FakeBackend())
    assert outcomes(stage) == [0, broken, 2]
    assert not hasattr(broken, "__notes__")
    settle(stage)


def test_error_of_a_channel_ends_the_stream() -> None:
    source: Channel[Any] = Channel(2)
    source.send((torch.zeros(1), 0))
    broken = ValueError("broken")
    source.finish(broken)
    stage = make_stage(source, FakeBackend())
    assert outcomes(stage) == [0, broken]
    with pytest.raises(ValueError, match="broken"):  # and never reads as a quiet end
        stage.receive()
    settle(stage)


@pytest.mark.parametrize("where", ["fail_pinning", "fail_copying"])
def test_error_of_the_device_keeps_its_type_and_says_where(where: str) -> None:
    backend = FakeBackend()
    setattr(backend, where, MemoryError("no pages"))
    stage = make_stage(filled([torch.zeros(4), "text"]), backend)
    error, last = outcomes(stage)
    assert type(error) is MemoryError and error.__notes__ == ["in the pinned-memory stage"]
    assert last == {"number": 1}
    settle(stage)


class Broken:
    def pin_memory(self) -> Any:
        raise LookupError("not this one")


@BOTH
def test_error_of_a_users_type_does_not_stop_the_others(to_device: bool) -> None:
    stage = make_stage(filled([Broken(), torch.zeros(1)]), FakeBackend(), to_device=to_device)
    error, last = outcomes(stage)
    assert type(error) is LookupError and last == {"number": 1}
    settle(stage)


def test_raised_error_keeps_no_batch_alive() -> None:
    tensor = torch.arange(10)
    alive = weakref.ref(tensor)
    stage = make_stage(filled([[tensor, Broken()]]), FakeBackend())
    del tensor
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(LookupError) as caught:
            stage.receive()
        del caught
        assert alive() is None
    finally:
        gc.enable()
    settle(stage)


def test_device_that_cannot_be_entered_is_an_error_of_the_stream() -> None:
    class Absent(FakeBackend):
        def enter_thread(self) -> None:
            raise RuntimeError("invalid device ordinal")

    stage = make_stage(filled([torch.zeros(1)]), Absent())
    with pytest.raises(RuntimeError, match="ordinal"):
        stage.receive()
    settle(stage)


# --- closing ---


def test_close_while_the_source_has_nothing() -> None:
    source: Channel[Any] = Channel(1)
    stage = make_stage(source, FakeBackend())
    started = time.monotonic()
    stage.close()
    stage.close()
    assert time.monotonic() - started < AT_ONCE_S
    with pytest.raises(ChannelClosed):
        source.send((1, 1))
    with pytest.raises(EndOfChannel):
        stage.receive()


@BOTH
def test_close_while_everything_is_full(to_device: bool) -> None:
    source = filled([torch.zeros(4)] * 10)
    backend = FakeBackend()
    stage = make_stage(source, backend, to_device=to_device)
    wait_until(lambda: len(source) == 7)
    settle(stage)
    assert all(event.done for event in backend.events)


@pytest.mark.parametrize("received", range(8))
def test_close_after_any_number_of_batches(received: int) -> None:
    stage = make_stage(filled([torch.zeros(4)] * 7), FakeBackend())
    for _ in range(min(received, 7)):
        stage.receive()
    settle(stage)


def test_close_before_start_closes_the_source() -> None:
    source = Scripted([])
    DeviceStage(source, FakeBackend(), to_device=True, depth=1, budget_bytes=None).close()
    assert source.closed == 1


def test_close_wakes_a_consumer_that_waits() -> None:
    source: Channel[Any] = Channel(1)
    stage = make_stage(source, FakeBackend())
    closer = threading.Timer(0.02, stage.close)
    closer.start()
    with pytest.raises(EndOfChannel):
        stage.receive()
    closer.join()


def test_close_in_the_stages_own_thread_does_not_wait_for_itself() -> None:
    stages: list[DeviceStage] = []

    class Closing:
        def pin_memory(self) -> None:
            stages[0].close()

    source: Channel[Any] = Channel(2)
    stages.append(make_stage(source, FakeBackend()))
    source.send((Closing(), None))
    with pytest.raises(EndOfChannel):
        stages[0].receive()


def test_close_frees_what_was_moved_late() -> None:
    backend = FakeBackend()
    stage = make_stage(filled([torch.ones(2, requires_grad=True)]), backend)
    stage.receive()
    settle(stage)
    assert all(event.done for event in backend.events)


def test_failing_device_does_not_keep_the_stage_from_closing() -> None:
    backend = FakeBackend()
    stage = make_stage(filled([torch.zeros(4)] * 10), backend)
    backend_has_event(backend, 3)
    for event in backend.events:
        event.synchronize = event.query = broken_device
    stage.close()


def broken_device() -> bool:
    raise RuntimeError("an illegal memory access was encountered")


def test_source_whose_close_fails_is_reported_after_the_thread_has_ended() -> None:
    class Failing(Scripted):
        def close(self) -> None:
            raise OSError("close failed")

    stage = make_stage(Failing([(1, 1)] * 10), FakeBackend())
    with pytest.raises(OSError, match="close failed"):
        stage.close()
