"""Blocks of columns: an array for each field, and no object for a sample until somebody wants one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .block import Column, lacks_field
from .nulls import WithNulls
from .parsed import Objects
from .ragged import Ragged
from .regrouped import PickedTrail
from .trails import Trail

__all__ = ["Columns", "take_of"]


@dataclass(slots=True)
class Columns:
    """Samples with the same fields; see ``Block``.

    Args:
        fields: A column each, all of one length; at least one.
        trail: Of the samples.
    """

    fields: Mapping[str, Column]
    trail: Trail

    def __len__(self) -> int:
        return len(next(iter(self.fields.values())))

    def part(self, start: int, stop: int) -> Columns:
        """See ``Block``; over the same memory."""
        fields = {name: _part_of(column, start, stop) for name, column in self.fields.items()}
        return Columns(fields, PickedTrail(self.trail, range(start, stop)))

    def take(self, indices: Sequence[int]) -> Columns:
        """See ``Block``; what is taken is copied."""
        picked = np.asarray(indices, np.int64)
        fields = {name: take_of(column, picked) for name, column in self.fields.items()}
        return Columns(fields, PickedTrail(self.trail, indices))

    def follow(self, trail: Trail) -> Columns:
        return Columns(self.fields, trail)

    def rows(self) -> list[Any]:
        """Dicts, made anew: numbers as NumPy scalars, which keep their dtype; sequences as views.

        A sequence of sequences is a ``Ragged``, one of objects a list.
        """
        names = tuple(self.fields)
        return [dict(zip(names, row, strict=True)) for row in zip(*self.fields.values(), strict=True)]

    def column(self, name: str) -> Column:
        if name not in self.fields:
            raise lacks_field(name, self.fields, self.trail, 0)
        return self.fields[name]


def take_of(column: Column, indices: NDArray[np.int64]) -> Column:
    """The entries of these indices, in this order."""
    if isinstance(column, np.ndarray):
        return column[indices]
    if isinstance(column, Ragged):
        return column.take(indices)
    taken = [column[index] for index in indices.tolist()]
    return column.again(taken) if isinstance(column, WithNulls | Objects) else taken


def _part_of(column: Column, start: int, stop: int) -> Column:
    if isinstance(column, Ragged):
        return column.part(start, stop)
    part = column[start:stop]
    return column.again(part) if isinstance(column, WithNulls | Objects) else part
