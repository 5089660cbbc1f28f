"""Blocks of columns: an array for each field, and no object for a sample until somebody wants one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .block import Column
from .ragged import Ragged
from .trails import PickedTrail, Trail

__all__ = ["Columns", "part_of", "take_of"]


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
        fields = {name: part_of(column, start, stop) for name, column in self.fields.items()}
        return Columns(fields, PickedTrail(self.trail, range(start, stop)))

    def take(self, indices: Sequence[int]) -> Columns:
        fields = {name: take_of(column, indices) for name, column in self.fields.items()}
        return Columns(fields, PickedTrail(self.trail, indices))

    def follow(self, trail: Trail) -> Columns:
        return Columns(self.fields, trail)

    def rows(self) -> list[Any]:
        """Dicts, made anew: numbers as NumPy scalars, which keep their dtype; sequences as views."""
        names = tuple(self.fields)
        values = [column if isinstance(column, list) else list(column) for column in self.fields.values()]
        return [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]

    def column(self, name: str) -> Column:
        return self.fields[name]


def part_of(column: Column, start: int, stop: int) -> Column:
    """A slice of a column, over the same memory where it is one."""
    return column.part(start, stop) if isinstance(column, Ragged) else column[start:stop]


def take_of(column: Column, indices: Sequence[int]) -> Column:
    """The entries of these indices, in this order."""
    if isinstance(column, np.ndarray):
        return column[np.asarray(indices, np.int64)]
    return column.take(indices) if isinstance(column, Ragged) else [column[index] for index in indices]
