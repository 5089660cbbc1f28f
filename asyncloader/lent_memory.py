"""The memory that batches are made in: ordinary, or what a transport lends, which then need not copy them."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

__all__ = ["LEAST_BYTES", "Lender", "borrowing", "copied", "empty", "filled", "lend", "stacked"]

# Copying 16 KiB takes about a microsecond, as long as setting up a view; labels, lengths and ids of a
# batch are below it, what makes a batch large is above.
LEAST_BYTES = 16 << 10


class Lender(Protocol):
    """Whoever has memory for one batch."""

    def take(self, size_bytes: int) -> NDArray[np.uint8] | None:
        """So many bytes, aligned for every dtype, with anything in them; None if there are not so many."""
        ...


class _Lent(threading.local):
    lender: Lender | None = None
    is_borrowing = False


_lent = _Lent()


def lend(lender: Lender | None) -> None:
    """Have this thread make the next batch in the memory of ``lender``, which looks after what is over it."""
    _lent.lender = lender


@contextmanager
def borrowing() -> Iterator[None]:
    """Make large arrays in what this thread was lent meanwhile: a batch is collated."""
    _lent.is_borrowing = True
    try:
        yield
    finally:
        _lent.is_borrowing = False


def empty(shape: Sequence[int], dtype: DTypeLike) -> NDArray[Any]:
    """An array for a batch, with anything in it."""
    dtype = np.dtype(dtype)
    size_bytes = math.prod(shape) * dtype.itemsize
    if _lent.is_borrowing and size_bytes >= LEAST_BYTES and (lender := _lent.lender) is not None:
        memory = lender.take(size_bytes)
        if memory is not None:
            return np.ndarray(shape, dtype, memory)
    return np.empty(shape, dtype)


def filled(shape: Sequence[int], fill: Any, dtype: DTypeLike) -> NDArray[Any]:
    """An array for a batch, of nothing but ``fill``."""
    if not fill and not _lent.is_borrowing:
        # zeros() gets pages that are zero already from the system, which fill() would write once more.
        return np.zeros(shape, dtype)
    array = empty(shape, dtype)
    if fill:
        array.fill(fill)
    else:
        array.reshape(-1).view(np.uint8).fill(0)  # in half the time
    return array


def stacked(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """``np.stack`` of arrays of one shape and dtype."""
    first = arrays[0]
    return np.stack(arrays, out=empty((len(arrays), *first.shape), first.dtype))


def copied(array: NDArray[Any]) -> NDArray[Any]:
    """The same values in memory of the batch's own, in C order."""
    copy = empty(array.shape, array.dtype)
    copy[...] = array
    return copy
