"""What lies in Arrow's buffers, as NumPy sees it: https://arrow.apache.org/docs/format/Columnar.html.

Not by pyarrow's own ``to_numpy`` and ``fill_null``: where pandas is installed these import it, half a second
of a processor before the first batch, in each process.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["bits", "integers", "is_null", "lengths"]


def integers(array: Any) -> NDArray[Any]:
    """The numbers of an array of integers, ``(n,)`` of their own dtype; anything where one is null."""
    buffer = array.buffers()[1]
    dtype = np.dtype(str(array.type))
    if buffer is None or not len(array):
        return np.zeros(len(array), dtype)
    return np.frombuffer(buffer, dtype, len(array), array.offset * dtype.itemsize)


def bits(array: Any) -> NDArray[np.bool_]:
    """The values of an array of booleans, ``(n,) bool``; anything where one is null."""
    return _unpacked(array.buffers()[1], array)


def is_null(array: Any) -> NDArray[np.bool_]:
    """Where an array with a bitmap of what is valid has nulls, ``(n,) bool``."""
    valid = array.buffers()[0]
    return np.zeros(len(array), np.bool_) if valid is None else ~_unpacked(valid, array)


def lengths(array: Any) -> NDArray[np.int64]:
    """How long each list, string or bytes value is, ``(n,) int64``: 0 where it is null."""
    kind = str(array.type)
    if kind.removeprefix("large_").partition("<")[0] in ("string", "binary", "list"):
        dtype = np.dtype(np.int64 if kind.startswith("large") else np.int32)
        buffer = array.buffers()[1]
        if buffer is None or not len(array):
            return np.zeros(len(array), np.int64)
        found = np.diff(np.frombuffer(buffer, dtype, len(array) + 1, array.offset * dtype.itemsize))
    else:
        found = integers(array.value_lengths())
    return np.where(is_null(array), 0, found).astype(np.int64)


def _unpacked(buffer: Any, array: Any) -> NDArray[np.bool_]:
    """The bits of a bitmap that are of the array's own entries."""
    if buffer is None or not len(array):
        return np.zeros(len(array), np.bool_)
    first, last = array.offset // 8, (array.offset + len(array) + 7) // 8
    unpacked = np.unpackbits(np.frombuffer(buffer, np.uint8, last - first, first), bitorder="little")
    begin = array.offset - 8 * first
    return unpacked[begin : begin + len(array)].view(np.bool_)
