"""Arrays of MDS: columns over the bytes of many samples, and no object for each where that can be."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...blocks import Column, Objects, Ragged, offsets_of
from ..offsets.values import gathered, joined

__all__ = ["DTYPES", "arrays_of", "fixed_of"]

#: By the number that stands before an array whose column has no dtype.
DTYPES = {
    8: "uint8",
    9: "int8",
    16: "uint16",
    17: "int16",
    18: "float16",
    32: "uint32",
    33: "int32",
    34: "float32",
    64: "uint64",
    65: "int64",
    66: "float64",
}

_Places = NDArray[np.int64]


def fixed_of(
    dtype: np.dtype[Any], shape: tuple[int, ...], run: bytes | memoryview, starts: _Places, stops: _Places
) -> NDArray[Any]:
    """Values of one dtype and shape as an array ``(n, *shape)``."""
    count, size = len(starts), prod(shape) * dtype.itemsize
    if (starts[1:] == starts[:-1] + size).all():
        there = np.frombuffer(run, dtype, count * prod(shape), int(starts[0]))
        # Memory that is lent is used again; and few like numbers that lie between the places for them.
        flat = there if type(run) is bytes and there.flags.aligned else there.copy()
    else:
        flat = gathered(run, starts, size).reshape(-1).view(dtype)
    return flat.reshape(count, *shape)


def arrays_of(
    dtype: np.dtype[Any] | None, run: bytes | memoryview, starts: _Places, stops: _Places
) -> Column:
    """Values that tell their own shape, and their dtype where that is None.

    Those of one dimension and one dtype are a ``Ragged``, others a list of arrays.

    Raises:
        ValueError: A value is not as long as its shape says, or of an unknown dtype.
    """
    octets = np.frombuffer(run, np.uint8)
    begins = starts
    if dtype is None:
        if (stops <= starts).any():
            raise ValueError("it has no byte, and should have one for its dtype")
        codes = octets[starts]
        if (codes != codes[0]).any():
            return Objects(_array(None, bytes(run[a:b])) for a, b in zip(starts, stops, strict=True))
        dtype, begins = _dtype(int(codes[0])), starts + 1
    lengths = _lengths(octets, begins, stops)
    if lengths is None:
        return Objects(_array(dtype, bytes(run[a:b])) for a, b in zip(begins, stops, strict=True))
    begins, counts = lengths
    wrong = np.flatnonzero(stops - begins != counts * dtype.itemsize)
    if len(wrong):
        _fail((int(counts[wrong[0]]),), dtype, int((stops - begins)[wrong[0]]))
    return Ragged(joined(run, begins, stops).view(dtype), offsets_of(counts))


def _lengths(octets: NDArray[np.uint8], begins: _Places, stops: _Places) -> tuple[_Places, _Places] | None:
    """Where the values of arrays of one dimension begin, and how many they are; None if some have more."""
    if (stops <= begins).any():
        raise ValueError("it has no byte, and should have one for its number of dimensions")
    heads = octets[begins]
    if (heads >> 2 != 1).any():
        return None
    counts = np.zeros(len(begins), np.int64)
    widths = 1 << (heads & 3).astype(np.int64)
    if (begins + 1 + widths > stops).any():
        raise ValueError("it ends within its shape")
    for width in np.unique(widths).tolist():
        (which,) = np.nonzero(widths == width)
        places = begins[which, None] + np.arange(1, 1 + width)
        told = octets[places].view(f"<u{width}").reshape(-1)
        # Longer than any shard already; and not to be counted in bytes, which may not fit.
        counts[which] = np.minimum(told, np.uint64(1 << 40)) if width == 8 else told
    return begins + 1 + widths, counts


def _array(dtype: np.dtype[Any] | None, content: bytes) -> NDArray[Any]:
    """One array of any number of dimensions."""
    if dtype is None:
        dtype, content = _dtype(content[0] if content else -1), content[1:]
    if not content:
        raise ValueError("it has no byte, and should have one for its number of dimensions")
    axes, width = content[0] >> 2, 1 << (content[0] & 3)
    stop = 1 + axes * width
    if stop > len(content):
        raise ValueError("it ends within its shape")
    shape = tuple(np.frombuffer(content, f"<u{width}", axes, 1).tolist())
    if prod(shape) * dtype.itemsize != len(content) - stop:
        _fail(shape, dtype, len(content) - stop)
    return np.frombuffer(content[stop:], dtype).reshape(shape)


def _dtype(code: int) -> np.dtype[Any]:
    if code not in DTYPES:
        raise ValueError(f"no dtype has the number {code}")
    return np.dtype(DTYPES[code]).newbyteorder("<")


def _fail(shape: tuple[int, ...], dtype: np.dtype[Any], found: int) -> None:
    raise ValueError(f"an array of shape {shape} and {dtype} takes other than the {found} bytes that it has")
