from __future__ import annotations

import asyncio
import gc
import random
import time
import weakref
from typing import Any

import pytest
import torch
from batches import DTYPES, random_tensor, same
from examples_drawn import examples
from fake_backend import FakeBackend
from hypothesis import given
from hypothesis import strategies as st
from staging import BOTH, backend_has_event, drained, filled, make_stage, settle, wait_until

from asyncloader.device.carriers import LARGE_BYTES
from asyncloader.flow.channel import Channel, EndOfChannel

LARGE = LARGE_BYTES // 8  # int64 elements


@BOTH
def test_batches_keep_their_order_values_and_notes(to_device: bool) -> None:
    batches = [{"x": torch.arange(5) + k, "big": torch.full((LARGE,), k), "k": k} for k in range(20)]
    stage = make_stage(filled(batches), FakeBackend(), to_device=to_device)
    received = drained(stage)
    assert [note["number"] for _, note in received] == list(range(20))
    for old, (new, _) in zip(batches, received, strict=True):
        assert new["k"] == old["k"] and same(new["x"], old["x"]) and same(new["big"], old["big"])
        assert new["x"].data_ptr() != old["x"].data_ptr()
    settle(stage)


@BOTH
def test_every_dtype_arrives_as_it_was(to_device: bool) -> None:
    batch = {
        f"{dtype}{shape}": random_tensor(dtype, shape)
        for dtype in DTYPES
        for shape in [(), (0,), (3, 5), (2, 0, 2)]
    }
    batch["strided"] = torch.arange(100).reshape(10, 10)[::3, 1::2]
    batch["channels_last"] = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
    backend = FakeBackend()
    # Pinning an empty tensor of its own needs an accelerator.
    if not to_device:
        batch = {key: tensor for key, tensor in batch.items() if tensor.numel()}
    stage = make_stage(filled([batch]), backend, to_device=to_device)
    new, _ = stage.receive()
    assert all(same(new[key], old) for key, old in batch.items())
    assert new["channels_last"].stride() == batch["channels_last"].stride()
    settle(stage)


def test_small_tensors_of_a_pinned_batch_share_one_allocation() -> None:
    backend = FakeBackend()
    batch = {str(k): torch.arange(k + 1) for k in range(114)}
    stage = make_stage(filled([batch]), backend, to_device=False)
    new, _ = stage.receive()
    assert len(backend.slabs) == 1
    assert all(backend.is_pinned(tensor) for tensor in new.values())
    settle(stage)


def test_small_tensors_reach_the_device_in_one_copy() -> None:
    backend = FakeBackend()
    stage = make_stage(filled([[torch.arange(k + 1) for k in range(528)]]), backend)
    stage.receive()
    assert backend.copies == 1
    settle(stage)


def test_tensors_that_are_pinned_already_are_passed_on() -> None:
    backend = FakeBackend()
    old = backend.pin(torch.arange(LARGE))
    stage = make_stage(filled([old]), backend, to_device=False)
    assert stage.receive()[0] is old and backend.slabs == []
    settle(stage)


def test_tensors_that_are_pinned_already_are_copied_from_where_they_lie() -> None:
    backend = FakeBackend()
    rows = backend.pin(torch.arange(3 * LARGE).reshape(3, -1))
    stage = make_stage(filled([[rows[1], rows[1:].t()]]), backend)
    (row, columns), _ = stage.receive()
    assert same(row, rows[1]) and same(columns, rows[1:].t()) and columns.stride() == rows.t().stride()
    assert backend.slabs == []
    settle(stage)


def test_source_is_held_until_the_device_has_read_it() -> None:
    backend = FakeBackend()
    source: Channel[Any] = Channel(4)
    old = backend.pin(torch.arange(LARGE))
    alive = weakref.ref(old)
    source.send((old, None))
    stage = make_stage(source, backend)
    backend_has_event(backend)
    del old
    gc.collect()
    assert alive() is not None
    stage.receive()
    settle(stage)
    gc.collect()
    assert alive() is None


@BOTH
def test_batch_that_lies_ready_does_not_keep_the_one_it_was_made_of(to_device: bool) -> None:
    backend = FakeBackend()
    source: Channel[Any] = Channel(4)
    alive = []
    for size in (5, 6):
        old = torch.arange(size)
        alive.append(weakref.ref(old))
        source.send(([old, torch.zeros(2)], None))
    del old
    # The first lies ready, the second waits in the thread's hands.
    stage = make_stage(source, backend, to_device=to_device, depth=1)
    wait_until(lambda: not any(ref() is not None for ref in alive))
    assert [stage.receive()[0][0].tolist() for _ in range(2)] == [[*range(5)], [*range(6)]]
    settle(stage)


class Movable:
    """A type of the user's that can be pinned and moved."""

    def __init__(self, path: tuple[Any, ...] = ()) -> None:
        self.path = path

    def pin_memory(self) -> Movable:
        return Movable((*self.path, "pinned"))

    def to(self, device: Any, non_blocking: bool = False) -> Movable:
        return Movable((*self.path, "moved", non_blocking))


class PinnedOnly:
    def pin_memory(self) -> str:
        return "pinned"


def test_types_with_their_own_ways_are_pinned_here_and_moved_by_the_consumer() -> None:
    stage = make_stage(filled([[Movable(), PinnedOnly(), torch.arange(2)]]), FakeBackend())
    (movable, pinned, tensor), _ = stage.receive()
    assert movable.path == ("pinned", "moved", True)
    assert pinned == "pinned" and tensor.tolist() == [0, 1]
    settle(stage)


def test_odd_tensors_are_moved_by_the_consumer() -> None:
    backend = FakeBackend()
    odd = [torch.zeros(3).to_sparse(), torch.ones(2, requires_grad=True), torch.zeros(0, 4)]
    stage = make_stage(filled([odd]), backend)
    stage.receive()
    assert [id(thing) for thing in backend.moved] == [id(tensor) for tensor in odd]
    settle(stage)


@BOTH
def test_tensors_on_a_device_stay_there(to_device: bool) -> None:
    there = torch.zeros(3, device="meta")
    stage = make_stage(filled([[there]]), FakeBackend(), to_device=to_device)
    assert stage.receive()[0][0] is there
    settle(stage)


@BOTH
def test_batch_without_tensors_passes(to_device: bool) -> None:
    stage = make_stage(filled([None, "text", [], {"a": 1}]), FakeBackend(), to_device=to_device)
    assert [batch for batch, _ in drained(stage)] == [None, "text", [], {"a": 1}]
    settle(stage)


# --- bounds ---


def test_no_more_than_depth_batches_lie_ready() -> None:
    source = filled([torch.arange(3)] * 10)
    stage = make_stage(source, FakeBackend(), depth=2)
    # Two lie ready and one is in the thread's hands.
    wait_until(lambda: len(source) == 7)
    time.sleep(0.02)
    assert len(source) == 7
    stage.receive()
    wait_until(lambda: len(source) == 6)
    settle(stage)


def test_budget_bounds_what_lies_ready_in_bytes() -> None:
    source = filled([torch.zeros(1000, dtype=torch.uint8)] * 10)
    stage = make_stage(source, FakeBackend(), depth=8, budget_bytes=2500)
    wait_until(lambda: len(source) == 7)
    time.sleep(0.02)
    assert len(source) == 7
    assert len(drained(stage)) == 10
    settle(stage)


def test_batch_over_the_budget_still_passes() -> None:
    stage = make_stage(filled([torch.arange(1000)] * 3), FakeBackend(), budget_bytes=1)
    assert len(drained(stage)) == 3
    settle(stage)


@examples(60)
@given(st.data(), st.integers(1, 3), st.one_of(st.none(), st.integers(1, 100_000)))
def test_slabs_are_never_rewritten_under_a_copy(
    drawn: st.DataObject, depth: int, budget_bytes: int | None
) -> None:
    lengths = drawn.draw(st.lists(st.integers(0, 2000), max_size=12))
    # Seeded, not drawn: how often the stage asks depends on the threads.
    luck = random.Random(drawn.draw(st.integers(0, 1000)))
    backend = FakeBackend(lambda: luck.random() < 0.5)
    batches = [torch.full((length,), k) for k, length in enumerate(lengths)]
    stage = make_stage(filled(batches), backend, depth=depth, budget_bytes=budget_bytes)
    for old, (new, _) in zip(batches, drained(stage), strict=True):
        assert same(old, new)
    settle(stage)
    assert all(event.done for event in backend.events)


# --- waiting ---


def test_wait_with_a_timeout_ends_and_loses_nothing() -> None:
    source: Channel[Any] = Channel(1)
    stage = make_stage(source, FakeBackend())
    with pytest.raises(TimeoutError):
        stage.receive(0.01)
    source.send((torch.tensor(1), "note"))
    assert stage.receive(5)[1] == "note"
    settle(stage)


async def test_batches_come_to_a_coroutine_in_order() -> None:
    stage = make_stage(filled([torch.full((3,), k) for k in range(5)]), FakeBackend())
    values = [(await stage.receive_async())[0][0].item() for _ in range(5)]
    assert values == [0, 1, 2, 3, 4]
    with pytest.raises(EndOfChannel):
        await stage.receive_async()
    settle(stage)


async def test_cancelled_wait_loses_no_batch() -> None:
    source: Channel[Any] = Channel(2)
    stage = make_stage(source, FakeBackend())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await stage.receive_async()
    source.send((torch.tensor(1), "note"))
    assert (await stage.receive_async())[1] == "note"
    settle(stage)
