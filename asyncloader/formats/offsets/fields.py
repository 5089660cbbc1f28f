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
    _check_lengths(name, stops - begins, np.full(len(begins), least), at_least=True)
    lengths = np.empty((len(sizes) + 1, len(begins)), np.int64)
    lengths[0] = begins + told_bytes
    if told_bytes:
        places = begins[:, None] + np.arange(told_bytes)
        told = iter(np.frombuffer(run, np.uint8)[places].view("<u4").T)
    for number, size in enumerate(sizes, 1):
        lengths[number] = next(told) if size is None else size
    edges = np.cumsum(lengths, axis=0)
    _check_lengths(name, stops - begins, edges[-1] - begins)
    return edges


def _check_lengths(
    name: str, found: NDArray[np.int64], told: NDArray[np.int64], *, at_least: bool = False
) -> None:
    wrong = np.flatnonzero(found < told if at_least else found != told)
    if len(wrong):
        least = "at least " if at_least else ""
        raise FormatError(
            f"{name}: damaged: the fields of the sample take {least}{told[wrong[0]]} bytes with their "
            f"lengths, but the table gives it {found[wrong[0]]}"
        )
