"""One value of each of many samples, in memory: where it begins, and how long it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...blocks import Column
from ...errors import FormatError

__all__ = ["Leaf", "Values", "rows_of"]


@dataclass(frozen=True, slots=True)
class Values:
    """A value of each sample.

    Attributes:
        run: Bytes of the samples; whoever keeps any copies them, since its memory may be used again.
        starts: Where each value begins in it, ``(n,) int64``.
        lengths: How many bytes each has, ``(n,) int64``.
    """

    run: bytes | memoryview
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts)

    def bytes(self) -> list[bytes]:
        """Each value as it is stored."""
        run, stops = self.run, self.starts + self.lengths
        places = zip(self.starts.tolist(), stops.tolist(), strict=True)
        if type(run) is bytes:
            return [run[start:stop] for start, stop in places]
        return [bytes(run[start:stop]) for start, stop in places]

    def gather(self, size: int, skip: int = 0) -> NDArray[np.uint8]:
        """``(n, size) uint8``: so many bytes of each value, behind its first ``skip``; a copy.

        The caller has seen to it that the values are that long.
        """
        if not len(self) or not size:
            return np.zeros((len(self), size), np.uint8)
        starts = self.starts + skip
        steps = starts[1:] - starts[:-1]
        if len(steps) and (steps != steps[0]).any():
            picked: NDArray[np.uint8] = np.frombuffer(self.run, np.uint8)[starts[:, None] + np.arange(size)]
            return picked
        step = int(steps[0]) if len(steps) else size
        rows: NDArray[np.uint8] = np.ndarray((len(self), size), np.uint8, self.run, int(starts[0]), (step, 1))
        return rows.copy()

    def check(self, right: NDArray[np.bool_], wanted: str) -> None:
        """Raise for the first value whose length is not right."""
        if not right.all():
            found = int(self.lengths[right.argmin()])
            raise FormatError(f"litdata: damaged: a value should have {wanted}, found {found} bytes")


Leaf: TypeAlias = Callable[[Values], Column]
"""Makes the column of a value of each sample; raises FormatError where one cannot be read."""


def rows_of(values: Values, decode: Callable[[bytes], Any]) -> list[Any]:
    """Each value decoded by itself."""
    try:
        return [*map(decode, values.bytes())]
    except (ValueError, ArithmeticError, RecursionError) as error:
        raise FormatError(f"litdata: damaged: {error}") from error
