"""Memory for bytes on their way from a socket or a file to a decoder, used again when nobody looks at it.

Laws:

* A buffer is lent for as long as anything lies over it: slices, arrays, whatever holds them and wherever it
  is. Only then it is used again, so that nothing that anybody holds ever changes.
* A loan may end in any thread and in the middle of a garbage collection: its end takes no lock.
* Free buffers are few, and go with whoever lends them; what is lent is bounded by what may be under way.
"""

from __future__ import annotations

import ctypes
import weakref
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["BUFFER_BYTES", "Buffers"]

#: A read, a loan, and above all to wake the thread that decodes, are lost among so many bytes: with half as
#: many, 1 GB of tar from a server on loopback took a fifth more of the processor's time.
BUFFER_BYTES = 2 << 20

# As many as come free before others are asked for, where what was read is decoded in one go.
_MOST_FREE = 8


class _Loan(weakref.ref[Any]):
    """A reference to a lease, which knows what was lent."""

    __slots__ = ("memory",)
    memory: NDArray[np.uint8]


class Buffers:
    """Lends buffers, to one thread, though loans may end in any.

    Attributes:
        each_bytes: How long they are, as said when it is made.
    """

    def __init__(self, each_bytes: int = BUFFER_BYTES) -> None:
        self.each_bytes = each_bytes
        self._free: list[NDArray[np.uint8]] = []
        self._loans: dict[int, _Loan] = {}
        self._lease_type = ctypes.c_ubyte * each_bytes
        self._on_end = partial(_take_back, self._free, self._loans)

    def take(self, size_bytes: int) -> memoryview:
        """Memory to write to, with anything in it, and of any length.

        Args:
            size_bytes: How much is of use.
        """
        # Less is had from the allocator: the rest of a buffer would lie idle.
        if size_bytes < self.each_bytes // 2:
            return np.empty(size_bytes, np.uint8).data
        memory = self._free.pop() if self._free else np.empty(self.each_bytes, np.uint8)
        # Made for this loan alone. NumPy lets a view skip the arrays that it was cut from, but never the
        # owner of the memory: so that is what is watched.
        lease = self._lease_type.from_buffer(memory.data)
        loan = _Loan(lease, self._on_end)
        loan.memory = memory
        self._loans[id(memory)] = loan
        return np.frombuffer(memoryview(lease), np.uint8).data


def _take_back(free: list[NDArray[np.uint8]], loans: dict[int, _Loan], loan: _Loan) -> None:
    memory = loans.pop(id(loan.memory)).memory
    if len(free) < _MOST_FREE:
        free.append(memory)
