"""One value of each of many samples, in memory: where it begins, and how long it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...blocks import Column
from ...errors import FormatError
from ..offsets.values import gathered, joined, values_of

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
        return values_of(self.run, self.starts, self.starts + self.lengths)

    def joined(self) -> NDArray[np.uint8]:
        """All of them end to end, ``(bytes of all,) uint8``; a copy."""
        return joined(self.run, self.starts, self.starts + self.lengths)

    def gather(self, size: int, skip: int = 0) -> NDArray[np.uint8]:
        """``(n, size) uint8``: so many bytes of each value, behind its first ``skip``; a copy.

        The caller has seen to it that the values are that long.
        """
        return gathered(self.run, self.starts + skip, size)

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
