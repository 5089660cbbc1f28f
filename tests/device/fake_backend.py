"""A device in ordinary memory that reads late, and says so if anybody relied on its having read early.

A copy queued on its side stream happens when its event is done, not before: a slab or a source that was
written again, or let go, in between shows as a wrong batch. Events are done when the consumer's stream
gets to them, when the stage waits for them, or when ``lucky`` says so, in any order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass
class FakeEvent:
    backend: FakeBackend
    copies: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    done: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def finish(self) -> None:
        # The stage and the consumer may both come here; neither goes on before the copies are made.
        with self.lock:
            for target, source in self.copies:
                target.copy_(source)
            self.copies.clear()
            self.done = True

    def query(self) -> bool:
        if not self.done and self.backend.lucky():
            self.finish()
        return self.done

    def synchronize(self) -> None:
        assert not self.backend.consuming(), "the consumer waited for the device"
        if not self.done:
            self.backend.waits += 1
        self.finish()


class FakeBackend:
    """Has the methods of ``Accelerator``, and checks which thread calls each."""

    def __init__(self, lucky: Callable[[], bool] = lambda: False) -> None:
        self.lucky = lucky
        self.stage_thread: threading.Thread | None = None
        self.consumer: threading.Thread | None = None
        self.waits = 0
        self.copies = 0
        self.slabs: list[int] = []
        self.events: list[FakeEvent] = []
        self.moved: list[Any] = []
        self.pinned_addresses: set[int] = set()
        self.fail_pinning: Exception | None = None
        self.fail_copying: Exception | None = None
        self._queued: list[tuple[Tensor, Tensor]] = []
        self._buffers: dict[int, FakeEvent | None] = {}

    def consuming(self) -> bool:
        return threading.current_thread() is self.consumer

    def pin(self, tensor: Tensor) -> Tensor:
        """Pretend that the caller has pinned ``tensor``."""
        self.pinned_addresses.add(tensor.untyped_storage().data_ptr())
        return tensor

    def enter_thread(self) -> None:
        assert self.stage_thread is None
        self.stage_thread = threading.current_thread()

    def is_pinned(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self.pinned_addresses

    def pinned(self, size_bytes: int) -> Tensor:
        self._check_stage()
        if self.fail_pinning is not None:
            raise self.fail_pinning
        self.slabs.append(size_bytes)
        return self.pin(torch.empty(size_bytes, dtype=torch.uint8))

    def on_device(self, size_bytes: int) -> Tensor:
        self._check_stage()
        buffer = torch.full((size_bytes,), 0xEE, dtype=torch.uint8)
        self._buffers[buffer.data_ptr()] = None
        return buffer

    def copy(self, target: Tensor, source: Tensor) -> None:
        self._check_stage()
        if self.fail_copying is not None:
            raise self.fail_copying
        assert self.is_pinned(source) and target.numel() == source.numel()
        assert target.data_ptr() in self._buffers
        self._queued.append((target, source))
        self.copies += 1

    def record(self) -> FakeEvent:
        self._check_stage()
        event = FakeEvent(self, self._queued)
        for target, _ in self._queued:
            self._buffers[target.data_ptr()] = event
        self._queued = []
        self.events.append(event)
        return event

    def hand_over(self, event: FakeEvent, buffers: Sequence[Tensor]) -> None:
        assert threading.current_thread() is not self.stage_thread
        mine = {address for address, its in self._buffers.items() if its is event}
        assert mine == {buffer.data_ptr() for buffer in buffers}, "not all memory was handed over"
        for address in mine:
            del self._buffers[address]
        event.finish()

    def move(self, things: Sequence[Any]) -> tuple[list[Any], FakeEvent]:
        assert threading.current_thread() is not self.stage_thread
        self.moved += things
        event = FakeEvent(self)
        self.events.append(event)
        return [thing.to("cpu", non_blocking=True) for thing in things], event

    def _check_stage(self) -> None:
        assert threading.current_thread() is self.stage_thread, "called outside the stage's thread"
