"""Pinned slabs, each used again and again, and never before the device has read what was in it.

Laws:

* A slab is written only while no copy out of it is pending: it comes back when the event recorded after
  the copy is done, and so do tensors that were copied from where they lay.
* At most ``count`` batches are being copied and as many slabs exist; who takes one waits for the oldest.
* Slabs grow to the largest batch, by powers of two: that is what torch's host allocator would give
  anyway, and a new largest batch must not lock new pages each time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .backend import Event

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["SlabRing"]


@dataclass(frozen=True, slots=True)
class _Loan:
    """What the device may be reading until ``event`` is done."""

    event: Event
    slab: Tensor | None
    sources: object


class SlabRing:
    """The slabs of one stage, used by its thread; only ``keep`` may be called by another.

    Args:
        allocate: Makes pinned memory of a number of bytes, as uint8.
        count: The most batches that are being copied at a time.
        budget_bytes: The most bytes in slabs, but one is always had; None for no such bound.
    """

    def __init__(self, allocate: Callable[[int], Tensor], count: int, budget_bytes: int | None) -> None:
        self._allocate = allocate
        self._count = count
        self._budget_bytes = budget_bytes
        self._free: list[Tensor] = []  # the smallest first
        self._loans: deque[_Loan] = deque()  # the oldest first
        self._kept: deque[_Loan] = deque()

    def take(self, size_bytes: int) -> Tensor | None:
        """A slab of at least ``size_bytes`` to write to, None for no bytes; waits for room.

        It is the caller's until ``lend``; one that is dropped instead is simply not in the ring any more.
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

    def lend(self, slab: Tensor | None, event: Event, sources: object) -> None:
        """Have the slab back, and let go of ``sources``, when ``event`` is done."""
        self._loans.append(_Loan(event, slab, sources))

    def keep(self, event: Event, sources: object) -> None:
        """Let go of ``sources`` when ``event`` is done, which is on a stream of the consumer's."""
        self._kept.append(_Loan(event, None, sources))

    def drain(self) -> None:
        """Wait for the device to have read everything, and free it. Idempotent.

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
        while self._kept and self._kept[0].event.query():
            self._kept.popleft()
        for _ in range(len(self._loans)):
            loan = self._loans.popleft()
            if loan.event.query():
                self._end_loan(loan)
            else:
                self._loans.append(loan)

    def _end_loan(self, loan: _Loan) -> None:
        loan.event.synchronize()  # returns at once if it is done
        if loan.slab is not None:
            self._free.append(loan.slab)
            self._free.sort(key=_size)


def _size(slab: Tensor) -> int:
    return slab.numel()
