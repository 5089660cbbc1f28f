"""Columns of parsed text, which has no dtypes: their entries are Python's own objects, as in rows of it.

Rows of such columns are those that the text says, and who is given columns gets what is made of such rows.
Both are only had for less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .ragged import Ragged

__all__ = ["IntegerLists", "Objects"]


class IntegerLists(Ragged):
    """Lists of integers that all fit int64, held as one array.

    Whoever indexes or iterates gets lists of ints, made anew; whoever knows how to use an array, as padding
    does, has ``flat`` and ``offsets``.
    """

    __slots__ = ()

    values: NDArray[np.int64]

    def __getitem__(self, index: int) -> list[int]:
        return _ints(np.asarray(super().__getitem__(index)))

    def __iter__(self) -> Iterator[list[int]]:
        values = self.values
        return (_ints(values[start:stop]) for start, stop in pairwise(self.offsets.tolist()))

    def settle(self) -> Ragged:
        """The column that is made of such lists."""
        return Ragged.over(self.values, self.offsets)


def _ints(array: NDArray[np.int64]) -> list[int]:
    ints: list[int] = array.tolist()
    return ints


class Objects(list[Any]):
    """Any objects; the column that is made of them depends on all that are there, as that of rows does."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Callable[..., Objects], tuple[list[Any]]]:
        return Objects, (list(self),)

    def again(self, values: Iterable[Any]) -> Objects:
        """Some of the entries, as a column of this kind."""
        return Objects(values)
