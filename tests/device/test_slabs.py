from __future__ import annotations

import gc
import weakref

import torch
from fake_backend import FakeBackend, FakeEvent
from hypothesis import given
from hypothesis import strategies as st

from asyncloader.device.slabs import SlabRing


class Pins:
    """Allocates, and counts the bytes that live."""

    def __init__(self) -> None:
        self.made: list[int] = []
        self.live_bytes = 0

    def __call__(self, size_bytes: int) -> torch.Tensor:
        self.made.append(size_bytes)
        self.live_bytes += size_bytes
        slab = torch.empty(size_bytes, dtype=torch.uint8)
        weakref.finalize(slab, self._gone, size_bytes)
        return slab

    def _gone(self, size_bytes: int) -> None:
        self.live_bytes -= size_bytes


def test_slab_comes_back_when_its_event_is_done() -> None:
    pins = Pins()
    ring = SlabRing(pins, 3, None)
    event = FakeEvent(FakeBackend())
    first = ring.take(100)
    ring.lend(first, event, None)
    second = ring.take(100)
    assert second is not first
    event.finish()
    ring.lend(second, FakeEvent(FakeBackend()), None)
    assert ring.take(100) is first
    assert pins.made == [128, 128]


def test_full_ring_waits_for_the_oldest() -> None:
    backend = FakeBackend()
    ring = SlabRing(Pins(), 2, None)
    slabs = [ring.take(10), None]
    ring.lend(slabs[0], FakeEvent(backend), None)
    slabs[1] = ring.take(10)
    ring.lend(slabs[1], FakeEvent(backend), None)
    assert ring.take(10) is slabs[0]
    assert backend.waits == 1


def test_slabs_grow_by_powers_of_two_and_the_too_small_make_place() -> None:
    pins = Pins()
    ring = SlabRing(pins, 1, None)
    for size in (10, 100, 120, 90, 1000):
        event = FakeEvent(FakeBackend())
        ring.lend(ring.take(size), event, None)
        event.finish()
    assert pins.made == [16, 128, 1024]
    assert pins.live_bytes == 1024


def test_budget_makes_it_wait_instead_of_growing() -> None:
    backend, pins = FakeBackend(), Pins()
    ring = SlabRing(pins, 4, 2048)
    for _ in range(5):
        ring.lend(ring.take(1024), FakeEvent(backend), None)
    assert pins.live_bytes == 2048 and backend.waits == 3


def test_batch_over_the_budget_gets_a_slab_alone() -> None:
    backend, pins = FakeBackend(), Pins()
    ring = SlabRing(pins, 4, 64)
    for _ in range(2):
        ring.lend(ring.take(100), FakeEvent(backend), None)
    assert pins.live_bytes == 128


def test_dropped_slab_is_forgotten() -> None:
    pins = Pins()
    ring = SlabRing(pins, 1, None)
    ring.take(10)
    ring.take(10)
    assert pins.live_bytes == 0


def test_sources_are_held_until_the_device_has_read_them() -> None:
    ring = SlabRing(Pins(), 3, None)
    copying, moving = FakeEvent(FakeBackend()), FakeEvent(FakeBackend())
    sources = [torch.zeros(1), torch.zeros(2)]
    alive = [weakref.ref(source) for source in sources]
    ring.lend(None, copying, sources.pop(0))
    ring.keep(moving, sources.pop(0))
    ring.take(0)
    gc.collect()
    assert all(ref() is not None for ref in alive)
    copying.finish()
    moving.finish()
    ring.take(0)
    assert all(ref() is None for ref in alive)


def test_drain_waits_for_the_device_and_frees_everything() -> None:
    backend, pins = FakeBackend(), Pins()
    ring = SlabRing(pins, 3, None)
    events = [FakeEvent(backend) for _ in range(3)]
    ring.lend(ring.take(10), events[0], None)
    ring.lend(ring.take(10), events[1], None)
    ring.keep(events[2], None)
    ring.drain()
    ring.drain()
    assert all(event.done for event in events) and pins.live_bytes == 0


@given(st.data(), st.integers(1, 4), st.one_of(st.none(), st.integers(1, 4096)))
def test_no_slab_is_given_out_while_it_is_read(
    drawn: st.DataObject, count: int, budget_bytes: int | None
) -> None:
    backend = FakeBackend(lambda: drawn.draw(st.booleans()))
    pins = Pins()
    ring = SlabRing(pins, count, budget_bytes)
    lent: list[tuple[torch.Tensor, FakeEvent]] = []
    for size in drawn.draw(st.lists(st.integers(1, 2000), max_size=20)):
        slab = ring.take(size)
        assert slab is not None and slab.numel() >= size
        assert all(event.done for other, event in lent if other is slab)
        lent = [(other, event) for other, event in lent if not event.done]
        assert len(lent) < count
        assert budget_bytes is None or pins.live_bytes <= max(budget_bytes, slab.numel())
        lent.append((slab, FakeEvent(backend)))
        ring.lend(*lent[-1], None)
