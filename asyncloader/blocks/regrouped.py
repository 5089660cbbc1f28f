"""Trails of samples that were picked out of other blocks, or joined from several."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from ..types import Position
from .provenance import Indices, Provenance, index_array, joined, picked
from .trails import Place, Referred, Trail

__all__ = ["JoinedTrail", "PickedTrail", "runs_on"]


@dataclass(slots=True)
class PickedTrail:
    """The positions of some samples of another block, by their indices there.

    Attributes:
        known: The provenance of all of them, once somebody has asked for that of any.
    """

    trail: Trail
    indices: Sequence[int]
    known: Provenance | None = field(default=None, init=False, compare=False)

    def after(self, index: int) -> Position:
        return self.trail.after(int(self.indices[index]))  # of an array too, since positions are JSON

    def place(self, index: int) -> Place:
        return self.trail.place(int(self.indices[index]))

    def components(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.trail.components(index_array(self.indices)[indices])

    def provenance(self, indices: Indices) -> Provenance:
        if isinstance(self.indices, range):
            return self.trail.provenance(picked(self.indices, indices))
        if self.known is None:  # a window is asked for in pieces
            self.known = self.trail.provenance(index_array(self.indices))
        return self.known.of(indices)

    def bases(self, start: int, stop: int) -> list[Referred]:
        if isinstance(self.indices, range):
            return self.trail.bases(start + self.indices.start, stop + self.indices.start)
        return runs_on(self.trail, self.indices[start:stop])

    def table(self) -> tuple[Provenance, tuple[int, ...]]:
        return self.provenance(range(len(self.indices))), ()


class JoinedTrail:
    """The positions of samples of several blocks, one after another.

    Args:
        parts: For each block its trail, and which of its samples they are.
    """

    __slots__ = ("_ends", "_parts", "_provenance")

    def __init__(self, parts: Sequence[tuple[Trail, range]]) -> None:
        self._parts = parts
        #: For each part how many samples there are up to its end; made for the first who asks.
        self._ends: list[int] | None = None
        #: Of all samples; likewise.
        self._provenance: Provenance | None = None

    def after(self, index: int) -> Position:
        trail, inside = self._find(index)
        return trail.after(inside)

    def place(self, index: int) -> Place:
        trail, inside = self._find(index)
        return trail.place(inside)

    def components(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        of_parts = [trail.components(index_array(inside)) for trail, inside in self._parts]
        return np.concatenate(of_parts)[indices]

    def provenance(self, indices: Indices) -> Provenance:
        if self._provenance is None:
            self._provenance = joined([trail.provenance(inside) for trail, inside in self._parts])
        return self._provenance.of(indices)

    def bases(self, start: int, stop: int) -> list[Referred]:
        found: list[Referred] = []
        for trail, inside in self._parts:
            low, high = max(start, 0), min(stop, len(inside))
            if low < high:
                found += trail.bases(inside.start + low, inside.start + high)
            start, stop = start - len(inside), stop - len(inside)
        return found

    def table(self) -> tuple[Provenance, tuple[int, ...]]:
        return joined([trail.provenance(inside) for trail, inside in self._parts]), ()

    def _find(self, index: int) -> tuple[Trail, int]:
        if self._ends is None:
            self._ends = list(accumulate(len(indices) for _, indices in self._parts))
        nth = bisect_right(self._ends, index)
        if nth == len(self._parts):
            raise IndexError("behind the last sample of the last block")
        trail, indices = self._parts[nth]
        return trail, indices[index - self._ends[nth] + len(indices)]


def runs_on(trail: Trail, indices: Sequence[int]) -> list[Referred]:
    """The ``bases`` of these samples, neighbours together."""
    found: list[Referred] = []
    first = 0
    for at in range(1, len(indices) + 1):
        if at == len(indices) or indices[at] != indices[at - 1] + 1:
            found += trail.bases(indices[first], indices[at - 1] + 1)
            first = at
    return found
