"""On a real device: what the other tests take for granted of the backend."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from batches import DTYPES, random_tensor, same

from asyncloader.device.carriers import LARGE_BYTES
from asyncloader.device.stage import open_stage
from asyncloader.flow.channel import Channel, EndOfChannel

pytestmark = pytest.mark.gpu

LARGE = LARGE_BYTES // 4  # float32 elements


def opened(batches: list[Any], **options: Any) -> Any:
    source: Channel[Any] = Channel(len(batches) + 1)
    for number, batch in enumerate(batches):
        source.send((batch, number))
    source.finish()
    return open_stage(source, **{"pin_memory": True, **options})


@pytest.fixture
def no_synchronisation() -> Iterator[None]:
    """Fail what makes the host wait for the device."""
    torch.cuda.init()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # It warns that it does not see everything.
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def every_kind() -> dict[str, torch.Tensor]:
    batch = {
        f"{dtype}{shape}": random_tensor(dtype, shape)
        for dtype in DTYPES
        for shape in [(), (0,), (3, 5), (300, 301, 4)]
    }
    batch["strided"] = torch.arange(100).reshape(10, 10)[::3, 1::2]
    batch["channels_last"] = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
    return batch


def test_pinned_batches_are_pinned_and_equal() -> None:
    batch = every_kind()
    stage = opened([batch])
    new, _ = stage.receive()
    stage.close()
    assert all(same(new[key], old) for key, old in batch.items())
    assert all(tensor.is_pinned() for tensor in new.values() if tensor.numel())


def test_batches_on_the_device_are_equal() -> None:
    batch = every_kind()
    stage = opened([batch], device="cuda")
    new, _ = stage.receive()
    stage.close()
    assert all(tensor.device == torch.device("cuda", 0) for tensor in new.values())
    assert all(same(new[key], old) for key, old in batch.items())
    assert new["channels_last"].stride() == batch["channels_last"].stride()


@pytest.mark.parametrize("already_pinned", [False, True], ids=["pageable", "pinned"])
def test_values_are_right_on_any_stream_under_load(already_pinned: bool) -> None:
    def make(number: int) -> Any:
        large = torch.full((8 * LARGE,), float(number))
        return [large.pin_memory() if already_pinned else large, torch.full((100,), number)]

    stage = opened([make(number) for number in range(60)], device="cuda:0")
    matrix = torch.rand(2048, 2048, device="cuda")
    sums = []
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    for number in range(60):
        with torch.cuda.stream(streams[number % 3]):
            (large, small), note = stage.receive()
            assert note == number
            # Keeps the stream busy, so that memory given back too early would be written first.
            for _ in range(4):
                matrix @ matrix
            sums.append((large.double().mean(), small.double().mean()))
            del large, small
    stage.close()
    torch.cuda.synchronize()
    assert [(first.item(), second.item()) for first, second in sums] == [(n, n) for n in range(60)]


def test_consumer_never_synchronises(no_synchronisation: None) -> None:
    stage = opened([[torch.rand(8 * LARGE), torch.rand(10)] for _ in range(20)], device="cuda")
    count = 0
    try:
        while True:
            (large, small), _ = stage.receive()
            large.mul_(2)
            small.add_(1)
            count += 1
    except EndOfChannel:
        pass
    stage.close()
    assert count == 20


def test_consumers_stream_and_device_are_left_alone() -> None:
    before = (torch.cuda.current_stream(), torch.cuda.current_device())
    stage = opened([torch.rand(10)] * 3, device="cuda")
    stage.receive()
    assert (torch.cuda.current_stream(), torch.cuda.current_device()) == before
    stage.close()


def test_odd_tensors_and_types_arrive_on_the_device() -> None:
    packed = torch.nn.utils.rnn.pack_sequence([torch.rand(3), torch.rand(2)])
    sparse = torch.eye(4).to_sparse()
    odd = [packed, sparse, torch.ones(2, requires_grad=True), torch.zeros(0, 4)]
    stage = opened([odd], device="cuda")
    new, _ = stage.receive()
    stage.close()
    assert new[0].data.device.type == "cuda" and same(new[0].data, packed.data)
    assert new[1].is_sparse and torch.equal(new[1].to_dense().cpu(), sparse.to_dense())
    assert new[2].requires_grad and new[2].tolist() == [1, 1]
    assert new[3].device.type == "cuda" and new[3].shape == (0, 4)


def test_tensors_on_the_device_stay_where_they_are() -> None:
    there = torch.rand(3, device="cuda")
    for options in ({}, {"device": "cuda"}):
        stage = opened([[there]], **options)
        assert stage.receive()[0][0] is there
        stage.close()


def test_keeping_every_batch_is_allowed() -> None:
    batches = [torch.full((LARGE,), float(number)) for number in range(20)]
    stage = opened(batches, device="cuda")
    kept = [stage.receive()[0] for _ in batches]
    stage.close()
    assert all(same(new, old) for new, old in zip(kept, batches, strict=True))


def test_closing_at_any_moment_leaves_the_device_usable() -> None:
    for received in range(5):
        stage = opened([torch.rand(8 * LARGE)] * 8, device="cuda")
        for _ in range(received):
            stage.receive()
        stage.close()
    torch.cuda.synchronize()
