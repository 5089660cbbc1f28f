"""Slots: anonymous shared memory for one batch each, reused once the parent's tensors over it are gone.

Laws:

* A slot is a memfd, made by the worker and passed by descriptor once. Both sides map it and close the
  descriptor, so a slot costs no descriptor, has no name, and is gone when its last process is.
* A slot is lent for one batch. Whatever is built over it refers, through however many views, to one
  *lease*; when that is collected the slot is free again, and not before.
* A lease may die in any thread and in the middle of a garbage collection: its death takes no lock, it
  appends to a deque. The freed slots are told to the worker with the next credit.
* The worker never waits for a slot. It takes a free one or makes one, so a user who keeps every batch
  costs memory, not a deadlock; what is free beyond the need is given back to the kernel.
* Free slots are bounded in number and in bytes. One that is larger than all of them may be is emptied as
  its lease dies, in the parent: the worker learns of it only with the next credit, a batch later.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ._libc import empty, map_shared, unmap
from .packing import Bytes, Packed

__all__ = ["InboundSlots", "OutboundSlots"]

# Far below this a batch's cost is its messages, not its pages; pages never touched are never allocated.
_SMALLEST_BYTES = 64 << 10

_NOTHING: Bytes = np.empty(0, np.uint8)


class _Pages:
    """A memfd's pages, mapped for as long as anybody refers to them."""

    def __init__(self, descriptor: int, size_bytes: int) -> None:
        address = map_shared(descriptor, size_bytes)
        self.size_bytes = size_bytes
        self._address = address
        self._lease_type = ctypes.c_ubyte * size_bytes  # to make the type takes longer than to make one
        # Not at exit: the process's end unmaps, and daemon threads may still read.
        weakref.finalize(self, unmap, address, size_bytes).atexit = False

    def empty(self) -> None:
        """Give the memory back to the kernel, until something is written again. Nothing lies over it."""
        empty(self._address, self.size_bytes)

    def lend(self) -> tuple[Bytes, Any]:
        """The pages as an array, and the lease that lives as long as something is built over them.

        The lease, a ctypes object made for this loan alone, is the array's base. It, not the array, is
        to be watched: numpy lets a view skip the arrays it was cut from, but never the owner of the memory.
        """
        lease = self._lease_type.from_address(self._address)
        lease.pages = self  # type: ignore[attr-defined]  # the loan keeps its pages mapped
        return np.frombuffer(memoryview(lease), np.uint8), lease


class _Watched(weakref.ref[Any]):
    """A reference to a lease, which knows what was lent; ``finalize`` costs five times as much."""

    __slots__ = ("pages", "slot")
    slot: int
    pages: _Pages


class InboundSlots:
    """The parent's end: the slots of one worker, mapped, and the ids of those that came free.

    Args:
        spare_bytes: A slot of more gives its memory back when it comes free.
    """

    def __init__(self, spare_bytes: int) -> None:
        self._spare_bytes = spare_bytes
        self._pages: dict[int, _Pages] = {}
        self._lent: dict[int, _Watched] = {}
        self._freed: deque[int] = deque()
        self._on_return = partial(_take_return, self._freed, spare_bytes, os.getpid())

    def __len__(self) -> int:
        return len(self._pages)

    def add(self, slot: int, descriptor: int) -> None:
        """Map a slot the worker made, and close the descriptor."""
        try:
            self._pages[slot] = _Pages(descriptor, os.fstat(descriptor).st_size)
        finally:
            os.close(descriptor)

    def lend(self, slot: int) -> Bytes:
        """The slot's pages; once nothing is built over them the slot is among ``take_freed``.

        Nothing is lent of slot 0, which stands for none.
        """
        if not slot:
            return _NOTHING
        pages = self._pages[slot]
        array, lease = pages.lend()
        self._lent[slot] = watched = _Watched(lease, self._on_return)
        watched.slot, watched.pages = slot, pages
        return array

    def take_freed(self, most: int) -> list[int]:
        # popleft and not a copy: leases may die, and append, at any moment.
        return [self._freed.popleft() for _ in range(min(len(self._freed), most))]

    def drop(self, slot: int) -> None:
        """Forget a slot that the worker has dropped; it was free, so nothing lies over its pages."""
        del self._pages[slot], self._lent[slot]

    def clear(self) -> None:
        """Forget all slots. Those with tensors over them stay mapped until these are gone."""
        self._pages.clear()
        self._lent.clear()


def _take_return(freed: deque[int], spare_bytes: int, owner: int, lease: _Watched) -> None:
    if lease.pages.size_bytes > spare_bytes:
        if os.getpid() != owner:
            return  # what dies in a process forked by the user may still be in use here
        lease.pages.empty()
    freed.append(lease.slot)


class OutboundSlots:
    """The worker's end: makes slots, fills them, and takes them back.

    Args:
        spare: How many free slots to keep; more are dropped, so that what a user kept for a while does
            not stay allocated for ever.
        spare_bytes: How much they may hold together, but for the one that is filled next.
    """

    def __init__(self, spare: int, spare_bytes: int) -> None:
        self._spare = spare
        self._spare_bytes = spare_bytes
        self._lent: dict[int, _Pages] = {}
        self._free: dict[int, _Pages] = {}
        self._made = 0

    def fill(self, packed: Packed) -> tuple[int, int | None]:
        """Write to a slot what of ``packed`` has to lie in one.

        Returns:
            The slot, 0 if nothing has to; and its descriptor if it is a new one: the caller sends and
            closes it.
        """
        needed_bytes = packed.slot_bytes
        if not needed_bytes:
            return 0, None
        fitting = [(p.size_bytes, slot) for slot, p in self._free.items() if p.size_bytes >= needed_bytes]
        descriptor = None
        if fitting:
            _, slot = min(fitting)
            pages = self._free.pop(slot)
        else:
            slot, pages, descriptor = self._make(needed_bytes)
        self._lent[slot] = pages
        packed.write(pages.lend()[0])
        return slot, descriptor

    def take_back(self, slots: Iterable[int]) -> None:
        for slot in slots:
            self._free[slot] = self._lent.pop(slot)

    def drop_surplus(self, needed_bytes: int) -> Sequence[int]:
        """Unmap the free slots that are not worth keeping, and return them.

        A batch that fits no free slot replaces the smallest one, so that the slots grow to the size of
        the batches while their number stays what it was.
        """
        sizes = {slot: pages.size_bytes for slot, pages in self._free.items()}
        if self._are_worth_keeping(sizes.values(), needed_bytes):
            return ()
        by_size = sorted(sizes, key=lambda slot: sizes[slot])
        surplus = max(len(by_size) - self._spare, 0)
        if by_size and sizes[by_size[-1]] < needed_bytes:
            surplus = max(surplus, 1)
        dropped, kept = by_size[:surplus], by_size[surplus:]
        to_fill = next((slot for slot in kept if sizes[slot] >= needed_bytes), None)
        held_bytes = sum(sizes[slot] for slot in kept if slot != to_fill)
        for slot in reversed(kept):
            if slot != to_fill and held_bytes > self._spare_bytes:
                dropped.append(slot)
                held_bytes -= sizes[slot]
        for slot in dropped:
            del self._free[slot]
        return dropped

    def _are_worth_keeping(self, sizes: Collection[int], needed_bytes: int) -> bool:
        """Whether nothing is to be dropped, which is so for nearly every batch."""
        if not sizes:
            return True
        return len(sizes) <= self._spare and sum(sizes) <= self._spare_bytes and max(sizes) >= needed_bytes

    def _make(self, needed_bytes: int) -> tuple[int, _Pages, int]:
        size_bytes = _rounded(needed_bytes)
        descriptor = os.memfd_create("asyncloader-slot", os.MFD_CLOEXEC)
        try:
            os.truncate(descriptor, size_bytes)
            pages = _Pages(descriptor, size_bytes)
        except BaseException:
            os.close(descriptor)
            raise
        self._made += 1
        return self._made, pages, descriptor


def _rounded(size_bytes: int) -> int:
    """Up by at most a quarter, so that the next batch, a little larger, fits as well.

    Only address space is wasted: pages beyond the batch are never touched.
    """
    size_bytes = max(size_bytes, _SMALLEST_BYTES)
    step = 1 << (size_bytes.bit_length() - 3)
    return -(-size_bytes // step) * step
