"""Slots: anonymous shared memory for one batch each, reused once the parent's tensors over it are gone.

Laws:

* A slot is a file without a name (a memfd where there are such), made by the worker and passed by descriptor
  once. Both sides map it and close the descriptor, so a slot costs no descriptor, and is gone when its last
  process is.
* A slot is lent for one batch. Whatever is built over it refers, through however many views, to one
  *lease*; when that is collected the slot is free again, and not before.
* A lease may be collected in any thread and in the middle of a garbage collection: that takes no lock, it
  appends to a deque. The next credit names the freed slots to the worker.
* A batch may be made in a free slot, and is sent in it only if the worker holds no reference to it any more:
  what user code keeps, and may write to, is not what the parent reads.
* A process that the user forks may continue to read what was lent when it was forked, and this process does
  not see when it ends: such a slot is not used again.
* The worker never waits for a slot. It takes a free one or makes one, so a user who keeps every batch
  costs memory, not a deadlock; surplus free slots are given back to the kernel.
* Free slots are bounded in number and in bytes. One that exceeds the bound alone is emptied by the parent as
  its lease is collected: the worker hears of it only with the next credit, a batch later. Where the system
  cannot empty it, it is not used again.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import pickle
import signal
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache, partial
from itertools import accumulate
from typing import Any, BinaryIO

import numpy as np

from ..blocks.memory import align
from ..flow.process import has_linux
from .packing import Bytes, Packed

# The few C library calls that Python does not offer, or not in the form needed here.

_MADV_REMOVE = 9  # the same number on all of Linux's architectures
_MAP_FAILED = ctypes.c_void_p(-1).value
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    if hasattr(libc, "prctl"):
        libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
    return libc


def make_file(name: str) -> int:
    """A file without a name, in memory where the system has such files; tools show ``name`` of it."""
    if has_linux():
        return os.memfd_create(name, os.MFD_CLOEXEC)
    from tempfile import mkstemp

    # A file system in memory, if there is one. If not, pages that are in use seldom go to the disk.
    folder = "/dev/shm"
    descriptor, path = mkstemp(prefix=name, dir=folder if os.path.isdir(folder) else None)
    os.unlink(path)
    return descriptor


def map_shared(descriptor: int, size_bytes: int) -> int:
    """Map the file, readable and writable, and return the address.

    Not ``mmap.mmap``: before Python 3.13 that keeps a duplicate of the descriptor for as long as the
    mapping lives, so a user who keeps batches would run out of descriptors.
    """
    access = mmap.PROT_READ | mmap.PROT_WRITE
    address: int = _libc().mmap(None, size_bytes, access, mmap.MAP_SHARED, descriptor, 0)
    if address == _MAP_FAILED:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot map {size_bytes} bytes of shared memory: {os.strerror(number)}")
    return address


def die_with_parent(parent: int, life: int | None) -> None:
    """Have this process killed when its parent ends, however it ends.

    Args:
        parent: The parent's process id.
        life: A pipe's end, the other end of which the parent alone holds. None has the kernel do it.
    """
    if life is not None:
        threading.Thread(target=_die_after, args=(life,), name="asyncloader-life", daemon=True).start()
        return
    _libc().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)  # it ended before the kernel was asked


def _die_after(life: int) -> None:
    os.read(life, 1)
    os.kill(os.getpid(), signal.SIGKILL)


def name_process(name: str) -> None:
    """The name shown by ``top`` and the out-of-memory killer, on Linux; the kernel keeps 15 bytes of it."""
    if not has_linux():
        return
    text = ctypes.create_string_buffer(name.encode()[:15])
    _libc().prctl(_PR_SET_NAME, ctypes.addressof(text), 0, 0, 0)


def keep_freed_memory() -> None:
    """Let malloc reuse what was freed instead of giving it back to the kernel.

    By default glibc maps each buffer above 128 KiB anew and trims the heap's end. Bodies and batches are
    of that size, so each pays a page fault per 4 KiB, which costs more than parsing the HTTP they came
    in. 32 MiB is the highest mmap threshold glibc accepts.
    """
    with suppress(AttributeError):  # only glibc has such knobs
        mallopt = _libc().mallopt
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        mallopt(_M_TRIM_THRESHOLD, 1 << 30)


# Pages of shared memory, and the leases that keep them in use.

NOTHING: Bytes = np.empty(0, np.uint8)
"""The memory of slot 0, which stands for none."""


class Pages:
    """A file's pages, mapped as long as something refers to this."""

    def __init__(self, descriptor: int, size_bytes: int) -> None:
        address = map_shared(descriptor, size_bytes)
        self.size_bytes = size_bytes
        self.address = address
        self._lease_type = ctypes.c_ubyte * size_bytes  # to make the type takes longer than to make one
        # Not at exit: the process's end unmaps, and daemon threads may still read.
        weakref.finalize(self, _libc().munmap, address, size_bytes).atexit = False

    def empty(self) -> bool:
        """Give the memory back to the kernel, for all who map it; it reads as zeros. Nothing lies over it.

        Returns:
            Whether the system can do that.
        """
        return has_linux() and not _libc().madvise(self.address, self.size_bytes, _MADV_REMOVE)

    def lend(self) -> tuple[Bytes, Any]:
        """The pages as an array, and the lease that lives as long as something is built over them.

        The lease, a ctypes object made for this loan alone, is the array's base. It, not the array, is
        to be watched: numpy lets a view skip the arrays it was cut from, but never the owner of the memory.
        """
        lease = self._lease_type.from_address(self.address)
        lease.pages = self  # type: ignore[attr-defined]  # the loan keeps its pages mapped
        return np.frombuffer(memoryview(lease), np.uint8), lease


class OpenSlot:
    """A slot that a batch is made in; it lends memory to collation (``blocks.memory.Lender``).

    Attributes:
        slot: Its id.
        size_bytes: How large it is.
        used_bytes: How much of it was taken, from its beginning.
    """

    def __init__(self, slot: int, pages: Pages) -> None:
        self.slot = slot
        self.pages = pages
        self.size_bytes = pages.size_bytes
        self.used_bytes = 0
        self._memory, lease = pages.lend()
        self._lease = weakref.ref(lease)

    def take(self, size_bytes: int) -> Bytes | None:
        """See ``Lender``."""
        start = align(self.used_bytes)
        if start + size_bytes > self.size_bytes:
            return None
        self.used_bytes = start + size_bytes
        return self._memory[start : self.used_bytes]

    def place_of(self, buffer: memoryview) -> int | None:
        """Where in it a buffer lies; None if it does not."""
        address: int = np.frombuffer(buffer, np.uint8).__array_interface__["data"][0]
        start = address - self.pages.address
        return start if 0 <= start < self.used_bytes else None

    def close(self) -> bool:
        """Stop lending; returns whether nothing lies over it any more."""
        self._memory = NOTHING
        return self._lease() is None


# Far below this a batch's cost is its messages, not its pages; pages never touched are never allocated.
_SMALLEST_BYTES = 64 << 10


_forks = 0


def _count_fork() -> None:
    global _forks
    _forks += 1


@cache
def _count_forks() -> None:
    os.register_at_fork(after_in_parent=_count_fork)


class InboundSlots:
    """The parent's end: the slots of one worker, mapped, and the ids of those that came free.

    Args:
        spare_bytes: A slot of more gives its memory back when it comes free.
    """

    def __init__(self, spare_bytes: int) -> None:
        self._spare_bytes = spare_bytes
        self._pages: dict[int, Pages] = {}
        self._lent: dict[int, weakref.ref[Any]] = {}
        self._freed: deque[int] = deque()
        self._retired: deque[int] = deque()
        self._owner = os.getpid()
        _count_forks()

    def __len__(self) -> int:
        return len(self._pages)

    def add(self, slot: int, descriptor: int) -> None:
        """Map a slot the worker made, and close the descriptor."""
        try:
            self._pages[slot] = Pages(descriptor, os.fstat(descriptor).st_size)
        finally:
            os.close(descriptor)

    def lend(self, slot: int) -> Bytes:
        """The slot's pages; once nothing is built over them the slot is among ``take_returned``.

        Nothing is lent of slot 0, which stands for none.
        """
        if not slot:
            return NOTHING
        pages = self._pages[slot]
        array, lease = pages.lend()
        # Not ``finalize``, which costs five times as much.
        self._lent[slot] = weakref.ref(lease, partial(self._take_return, slot, pages, _forks))
        return array

    def _take_return(self, slot: int, pages: Pages, forks: int, _: object) -> None:
        if forks != _forks:
            self._retired.append(slot)
            return
        if pages.size_bytes > self._spare_bytes:
            if os.getpid() != self._owner:
                return  # what is collected in a process forked by the user may still be in use in its parent
            if not pages.empty():
                self._retired.append(slot)
                return
        self._freed.append(slot)

    def take_returned(self, most: int) -> tuple[Sequence[int], Sequence[int]]:
        """The slots that came free, and those that must not be used again, which are forgotten here."""
        if not self._freed and not self._retired:
            return (), ()
        # popleft and not a copy: leases may die, and append, at any moment.
        freed = [self._freed.popleft() for _ in range(min(len(self._freed), most))]
        retired = [self._retired.popleft() for _ in range(min(len(self._retired), most))]
        for slot in retired:
            self.drop(slot)
        return freed, retired

    def drop(self, slot: int) -> None:
        """Forget a slot that the worker has dropped, or is to drop; nothing lies over its pages."""
        del self._pages[slot], self._lent[slot]

    def clear(self) -> None:
        """Forget all slots. Those with tensors over them stay mapped until these are gone."""
        self._pages.clear()
        self._lent.clear()


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
        self._lent: dict[int, Pages] = {}
        self._free: dict[int, Pages] = {}
        self._made = 0
        self._are_kept = False

    def open(self, needed_bytes: int) -> OpenSlot | None:
        """A free slot to make a batch in; None if there is none that may be large enough.

        Args:
            needed_bytes: What the batch may take, such as the last one did; 0 for none.
        """
        slot = self._fitting(needed_bytes) if needed_bytes and not self._are_kept else 0
        return OpenSlot(slot, self._free.pop(slot)) if slot else None

    def fill(self, packed: Packed) -> tuple[int, list[int], list[int]]:
        """Write to a slot what of ``packed`` has to lie in one.

        Args:
            packed: The batch; nothing else refers to it here, except what user code keeps of it.

        Returns:
            The slot, or 0 if none is needed; its descriptor, if it is a new one, which the caller sends and
            closes; and slots that the parent has to forget first.
        """
        opened = packed.made_in
        if opened is not None and packed.stays and opened.close():
            self._lent[opened.slot] = opened.pages
            if not packed.is_written:
                packed.write(opened.pages.lend()[0])
            return opened.slot, [], self._drop_surplus(0)
        dropped = self._drop_surplus(packed.slot_bytes)
        slot, descriptors = 0, list[int]()
        if packed.slot_bytes:
            if found := self._fitting(packed.slot_bytes):
                slot, pages = found, self._free.pop(found)
            else:
                slot, pages, descriptors = self._make(packed.slot_bytes)
            self._lent[slot] = pages
            target = pages.lend()[0]
            if opened is not None and packed.stays:
                target[: opened.used_bytes] = opened.pages.lend()[0][: opened.used_bytes]
            packed.write(target)
        if opened is not None:
            if opened.close():
                self._free[opened.slot] = opened.pages
            else:
                # User code keeps something in it, and will again: each batch would cost a slot.
                dropped.append(opened.slot)
                self._are_kept = True
        return slot, descriptors, dropped

    def _fitting(self, needed_bytes: int) -> int:
        """The smallest free slot that is large enough; 0 if there is none."""
        fitting = [(p.size_bytes, slot) for slot, p in self._free.items() if p.size_bytes >= needed_bytes]
        return min(fitting)[1] if fitting else 0

    def take_back(self, slots: Iterable[int]) -> None:
        for slot in slots:
            self._free[slot] = self._lent.pop(slot)

    def retire(self, slots: Iterable[int]) -> None:
        """Forget slots that must not be used again."""
        for slot in slots:
            del self._lent[slot]

    def clear(self) -> None:
        """Forget all slots."""
        self._free.clear()
        self._lent.clear()

    def _drop_surplus(self, needed_bytes: int) -> list[int]:
        """Unmap the free slots that are not worth keeping, and return them.

        A batch that fits no free slot replaces the smallest one, so that the slots grow to the size of
        the batches while their number stays what it was.
        """
        sizes = {slot: pages.size_bytes for slot, pages in self._free.items()}
        by_size = sorted(sizes, key=sizes.__getitem__)
        fits_none = bool(by_size) and sizes[by_size[-1]] < needed_bytes
        surplus = max(len(by_size) - self._spare, 1 if fits_none else 0)
        dropped, kept = by_size[:surplus], by_size[surplus:]
        to_fill = next((slot for slot in kept if sizes[slot] >= needed_bytes), None)
        kept_bytes = 0
        for slot in kept:
            if slot != to_fill:
                kept_bytes += sizes[slot]
                if kept_bytes > self._spare_bytes:
                    dropped.append(slot)
        for slot in dropped:
            del self._free[slot]
        return dropped

    def _make(self, needed_bytes: int) -> tuple[int, Pages, list[int]]:
        size_bytes = _rounded(needed_bytes)
        descriptor = make_file("asyncloader-slot")
        try:
            os.truncate(descriptor, size_bytes)
            pages = Pages(descriptor, size_bytes)
        except BaseException:
            os.close(descriptor)
            raise
        self._made += 1
        return self._made, pages, [descriptor]


def _rounded(size_bytes: int) -> int:
    """Up by at most a quarter, so that the next batch, a little larger, fits as well.

    Only address space is wasted: pages beyond the batch are never touched.
    """
    size_bytes = max(size_bytes, _SMALLEST_BYTES)
    step = 1 << (size_bytes.bit_length() - 3)
    return -(-size_bytes // step) * step


# What all workers of a pool are given alike: stored once, and mapped by each of them.
#
# Large buffers of it, such as the columns of an index, are pages that the workers share as long as none of
# them writes there; a worker that does gets its own copy of that page.


def store_shared(pickled: bytes, buffers: Sequence[pickle.PickleBuffer]) -> BinaryIO:
    """A file without a name with something pickled, and its buffers behind it, for ``load_shared``.

    Args:
        pickled: By protocol 5.
        buffers: Those that are not in ``pickled``.
    """
    file = open(make_file("asyncloader-shared"), "wb")  # noqa: SIM115  # the caller closes it
    try:
        raw = [buffer.raw() for buffer in buffers]
        pickle.dump((pickled, [len(each) for each in raw]), file, protocol=5)
        for each in raw:
            file.seek(align(file.tell()))
            file.write(each)
        file.truncate(align(file.tell()))
    except BaseException:
        file.close()
        raise
    return file


def load_shared(descriptor: int) -> Any:
    """What was stored, over the pages of the file; closes the descriptor."""
    try:
        # Private: a user's function may write to an array that it refers to. And not read through the
        # descriptor: its duplicates share one position in the file, which other workers would move.
        mapped = mmap.mmap(descriptor, 0, access=mmap.ACCESS_COPY)
    finally:
        os.close(descriptor)
    pickled, sizes = pickle.load(mapped)
    first, pages = align(mapped.tell()), memoryview(mapped)
    begins = accumulate(sizes, lambda begin, size: align(begin + size), initial=first)
    views = [pages[begin : begin + size] for begin, size in zip(begins, sizes, strict=False)]
    return pickle.loads(pickled, buffers=views)
