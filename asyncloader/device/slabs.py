"""Pinned slabs, each used again and again, and never before the device has read what was in it.

Laws:

* A slab is written only while no copy out of it is pending: it comes back when the event recorded after
  the copy is done, and so do tensors that were copied from where they lay.
* At most ``count`` batches are being copied and as many slabs exist; taking one waits for the oldest.
* Slabs grow to the largest batch, by powers of two: that is what torch's host allocator would give
  anyway, and a new largest batch must not lock new pages each time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class _SlabLoan:
    """What the device may be reading until ``event`` is done."""

    event: torch.cuda.Event
    slab: Tensor | None
    sources: object


class SlabRing:
    """The slabs of one stage, used by its thread; only ``keep`` may be called by another.

    Args:
        allocate: Makes pinned memory of a number of bytes, as uint8.
        count: The most batches that are being copied at a time.
        budget_bytes: The most bytes in slabs, but one slab is always allowed; None for no such bound.
    """

    def __init__(self, allocate: Callable[[int], Tensor], count: int, budget_bytes: int | None) -> None:
        self._allocate = allocate
        self._count = count
        self._budget_bytes = budget_bytes
        self._free: list[Tensor] = []  # the smallest first
        self._loans: deque[_SlabLoan] = deque()  # the oldest first
        self._kept: deque[_SlabLoan] = deque()

    def take(self, size_bytes: int) -> Tensor | None:
        """A slab of at least ``size_bytes`` to write to, None for no bytes; waits for room.

        It is the caller's until ``lend``; one that is dropped instead has left the ring.
        """
        self._reclaim()
        while True:
            if len(self._loans) < self._count:
                if size_bytes == 0:
                    return None
                slab = self._take_now(1 << (size_bytes - 1).bit_length())
                if slab is not None:
                    return slab
            self._end_loan(self._loans.popleft())

    def lend(self, slab: Tensor | None, event: torch.cuda.Event, sources: object) -> None:
        """Have the slab back, and let go of ``sources``, when ``event`` is done."""
        self._loans.append(_SlabLoan(event, slab, sources))

    def keep(self, event: torch.cuda.Event, sources: object) -> None:
        """Let go of ``sources`` when ``event`` is done, which is on a stream of the consumer's."""
        self._kept.append(_SlabLoan(event, None, sources))

    def drain(self) -> None:
        """Wait until the device has read everything, and free it. Idempotent.

        Raises:
            Exception: What waiting for the device raises, at the first loan; call again for the others.
        """
        self._free.clear()
        # One by one: the consumer may add to what is kept in the meantime.
        for loans in (self._loans, self._kept):
            while loans:
                loans.popleft().event.synchronize()

    def _take_now(self, size_bytes: int) -> Tensor | None:
        """A free slab that is large enough, or a new one if there is room; None: wait for a loan."""
        while True:
            for index, slab in enumerate(self._free):
                if slab.numel() >= size_bytes:
                    return self._free.pop(index)
            if self._has_room(size_bytes):
                return self._allocate(size_bytes)
            if self._free:
                self._free.pop(0)  # too small for this batch; a larger one takes its place
            elif self._loans:
                return None
            else:
                return self._allocate(size_bytes)

    def _has_room(self, size_bytes: int) -> bool:
        slabs = [*self._free, *(loan.slab for loan in self._loans if loan.slab is not None)]
        held_bytes = sum(slab.numel() for slab in slabs)
        within = self._budget_bytes is None or held_bytes + size_bytes <= self._budget_bytes
        return within and len(slabs) < self._count

    def _reclaim(self) -> None:
        # A stream reads in order: behind a loan that is not done there is none that is.
        for loans in (self._loans, self._kept):
            while loans and loans[0].event.query():  # type: ignore[no-untyped-call]  # as torch has it
                self._end_loan(loans.popleft())

    def _end_loan(self, loan: _SlabLoan) -> None:
        loan.event.synchronize()  # returns at once if it is done
        if loan.slab is not None:
            self._free.append(loan.slab)
            self._free.sort(key=lambda slab: slab.numel())


class Accelerator:
    """One device, its side stream, and its page-locked host memory; constructing touches none of them.

    Pinning works for every accelerator that torch can pin memory for; copies need CUDA, or ROCm, which torch
    gives the same names. All methods but ``hand_over`` and ``move`` are called by the stage's own thread.

    Args:
        device: The device, with its index.
    """

    def __init__(self, device: torch.device) -> None:
        assert device.index is not None, "the current device of this thread is not that of the stage's"
        self._device = device

    def enter_thread(self) -> None:
        """Make the device and its side stream current in this thread, which is the stage's."""
        # Both are a thread's own settings, so the consumer's are left alone, and end with the thread.
        getattr(torch, self._device.type).set_device(self._device)
        if self._device.type == "cuda":
            stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]  # as torch has it
            torch.cuda.set_stream(stream)

    def is_pinned(self, tensor: Tensor) -> bool:
        """Whether the device may read ``tensor`` directly, whatever has locked its pages."""
        return tensor.is_pinned()

    def pinned(self, size_bytes: int) -> Tensor:
        """New page-locked host memory, as ``(size_bytes,)`` uint8."""
        # From torch's caching host allocator, as Tensor.pin_memory takes it. Locking pages costs
        # milliseconds and stalls the device; the allocator recycles them when the last tensor over them
        # is gone and, for copies made by torch, when the stream has read them. A pool of our own could
        # not see the copies a user makes of a pinned batch.
        return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)

    def on_device(self, size_bytes: int) -> Tensor:
        """New device memory, as ``(size_bytes,)`` uint8, for use on the side stream."""
        return torch.empty(size_bytes, dtype=torch.uint8, device=self._device)

    def copy(self, target: Tensor, source: Tensor) -> None:
        """Queue a copy of pinned ``source`` to device memory on the side stream, and return at once."""
        target.copy_(source, non_blocking=True)

    def record(self) -> torch.cuda.Event:
        """An event after everything queued on the side stream so far."""
        # A blocking event: a thread that waits for it sleeps. Others spin, on a core that decoding could use.
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # as torch has it
        event.record(torch.cuda.current_stream(self._device))
        return event

    def hand_over(self, event: torch.cuda.Event, buffers: Sequence[Tensor]) -> None:
        """Let the caller's current stream use ``buffers``, from ``event`` on, without blocking.

        Their memory must not be given out again before that stream's work so far, at the time they are
        dropped, is done.
        """
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(event)
        for buffer in buffers:
            # The memory belongs to the side stream. Without this, the allocator would give it to the
            # next copy as soon as the consumer drops the batch, while queued kernels still read it.
            buffer.record_stream(stream)

    def move(self, things: Sequence[Any]) -> tuple[list[Any], torch.cuda.Event]:
        """Each thing's ``.to(device, non_blocking=True)`` on the caller's current stream.

        Returns:
            The moved things, and an event after which the originals are not read any more.
        """
        moved = [thing.to(self._device, non_blocking=True) for thing in things]
        return moved, self.record()
