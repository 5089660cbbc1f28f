"""The fields of many samples at once: where each begins and ends, by what samples say of their lengths.

A sample begins with the lengths of those of its fields that are not always of one length, 32 bits each; then
come all fields, end to end.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...errors import FormatError

__all__ = ["field_edges"]

_LENGTH_BYTES = 4


def field_edges(
    name: str, run: bytes | memoryview, bounds: NDArray[np.int64], sizes: Sequence[int | None]
) -> NDArray[np.int64]:
    """Where in ``run`` the fields of samples begin, and where the last one ends.

    Args:
        name: Of the format, for messages.
        run: The bytes of the samples.
        bounds: Where each begins and the last one ends, ``(n + 1,) int64``.
        sizes: How many bytes each field has; None for those whose samples tell it.

    Returns:
        ``(fields + 1, n) int64``: field ``f`` of sample ``i`` is from ``[f, i]`` up to ``[f + 1, i]``.

    Raises:
        FormatError: The lengths of a sample's fields do not add up to its own.
    """
    begins, stops = bounds[:-1], bounds[1:]
    told_bytes = _LENGTH_BYTES * sum(size is None for size in sizes)
    # First: with it the bytes of the samples bound what many fields of many samples take here.
    least = told_bytes + sum(size for size in sizes if size is not None)
    if (stops - begins < least).any():
        raise _damaged(name, stops - begins, np.full(len(begins), least), "at least ")
    edges = np.empty((len(sizes) + 1, len(begins)), np.int64)
    edges[0] = begins + told_bytes
    if told_bytes:
        places = begins[:, None] + np.arange(told_bytes)
        told = iter(np.frombuffer(run, np.uint8)[places].view("<u4").T)
    for number, size in enumerate(sizes, 1):
        edges[number] = next(told) if size is None else size
    edges = edges.cumsum(axis=0)
    if (edges[-1] != stops).any():
        raise _damaged(name, stops - begins, edges[-1] - begins)
    return edges


def _damaged(name: str, found: NDArray[np.int64], told: NDArray[np.int64], least: str = "") -> FormatError:
    wrong = (found < told if least else found != told).argmax()
    return FormatError(
        f"{name}: damaged: the fields of the sample take {least}{told[wrong]} bytes with their "
        f"lengths, but the table gives it {found[wrong]}"
    )
