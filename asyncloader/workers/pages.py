"""Pages of shared memory, and who has something over them."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import numpy as np

from ..tensors import align
from ._libc import empty, map_shared, unmap
from .packing import Bytes

__all__ = ["NOTHING", "OpenSlot", "Pages"]

NOTHING: Bytes = np.empty(0, np.uint8)
"""What is lent of no slot."""


class Pages:
    """A memfd's pages, mapped for as long as anybody refers to them."""

    def __init__(self, descriptor: int, size_bytes: int) -> None:
        address = map_shared(descriptor, size_bytes)
        self.size_bytes = size_bytes
        self.address = address
        self._lease_type = ctypes.c_ubyte * size_bytes  # to make the type takes longer than to make one
        # Not at exit: the process's end unmaps, and daemon threads may still read.
        weakref.finalize(self, unmap, address, size_bytes).atexit = False

    def empty(self) -> None:
        """Give the memory back to the kernel, until something is written again. Nothing lies over it."""
        empty(self.address, self.size_bytes)

    def lend(self) -> tuple[Bytes, Any]:
        """The pages as an array, and the lease that lives as long as something is built over them.

        The lease, a ctypes object made for this loan alone, is the array's base. It, not the array, is
        to be watched: numpy lets a view skip the arrays it was cut from, but never the owner of the memory.
        """
        lease = self._lease_type.from_address(self.address)
        lease.pages = self  # type: ignore[attr-defined]  # the loan keeps its pages mapped
        return np.frombuffer(memoryview(lease), np.uint8), lease


class OpenSlot:
    """A slot that a batch is made in: a ``Lender``, and the packing's ``Made``.

    Attributes:
        slot: Its id.
        size_bytes: See ``Made``.
        used_bytes: See ``Made``.
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
        """See ``Made``."""
        address: int = np.frombuffer(buffer, np.uint8).__array_interface__["data"][0]
        start = address - self.pages.address
        return start if 0 <= start < self.used_bytes else None

    def close(self) -> bool:
        """Lend no more; says whether nothing lies over it any longer."""
        self._memory = NOTHING
        return self._lease() is None
