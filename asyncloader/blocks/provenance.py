"""Where many samples came from, told for all of them at once: what an audit records of a batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["Indices", "Origin", "Provenance", "index_array", "joined", "picked"]

Indices: TypeAlias = range | NDArray[np.int64]
"""Some samples of a block, or of a shard: neighbours as a range with a step of 1, others as ``(n,)``."""


class Origin(NamedTuple):
    """A shard, in one repetition of the data.

    Attributes:
        component: Which component of which mixture, the outermost first; empty outside of any.
        number: Of the shard among the recipe's; without shards, of the lane.
        repetition: Of the data within the epoch.
    """

    component: tuple[int, ...] = ()
    number: int = 0
    repetition: int = 0


class Provenance(NamedTuple):
    """Where samples came from, in their order.

    Attributes:
        origins: Their shards.
        which: For each sample which of these it is of; None where all are of the only one.
        samples: Its index in the shard; without shards, in the lane's iterable.
    """

    origins: Sequence[Origin]
    which: NDArray[np.int64] | None
    samples: Indices

    def of(self, indices: Indices) -> Provenance:
        """That of some of them."""
        which = None if self.which is None else index_array(picked(self.which, indices))
        return Provenance(self.origins, which, picked(self.samples, indices))

    def by_origin(self) -> Iterator[tuple[Origin, Indices]]:
        """The samples of each shard, as often as they are there."""
        if self.which is None:
            yield self.origins[0], self.samples
            return
        order = self.which.argsort(kind="stable")
        labels, samples = self.which[order], index_array(self.samples)[order]
        starts = np.flatnonzero(np.diff(labels)) + 1
        for part, label in zip(np.split(samples, starts), labels[[0, *starts]].tolist(), strict=True):
            yield self.origins[label], part


def joined(parts: Sequence[Provenance]) -> Provenance:
    """That of all parts, one after another; there is at least one."""
    if len(parts) == 1:
        return parts[0]
    numbers: dict[Origin, int] = {}
    of_parts = [[numbers.setdefault(origin, len(numbers)) for origin in part.origins] for part in parts]
    samples = np.concatenate([index_array(part.samples) for part in parts])
    if len(numbers) == 1:
        return Provenance([*numbers], None, samples)
    which = [
        np.full(len(part.samples), mine[0]) if part.which is None else np.array(mine)[part.which]
        for part, mine in zip(parts, of_parts, strict=True)
    ]
    return Provenance([*numbers], np.concatenate(which), samples)


def picked(of: Sequence[int] | NDArray[np.int64], indices: Indices) -> Indices:
    """``of[index]`` for each of the indices."""
    if isinstance(indices, range):
        cut = of[indices.start : indices.stop]
        return cut if isinstance(cut, range) else np.asarray(cut, np.int64)
    if isinstance(of, range):
        return indices + of.start
    return np.asarray(of, np.int64)[indices]


def index_array(indices: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    """Indices as ``(n,) int64``."""
    if isinstance(indices, range):
        return np.arange(indices.start, indices.stop, indices.step)
    return np.asarray(indices, np.int64)
