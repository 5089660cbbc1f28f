"""What became of the samples of each shard, put together from the lanes: delivered, or left out. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..blocks import Origin
from .reading import LaneLog

__all__ = ["Runs", "delivered_runs", "left_out_runs", "with_runs"]


class Runs(NamedTuple):
    """Runs of samples of one shard in one repetition, by where they begin; some may be there twice.

    Attributes:
        starts: ``(runs,) int64``, as all of them.
        stops: Behind the last of each.
        ranks: Who delivered it, or left it out.
        lanes: In which lane.
    """

    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    ranks: NDArray[np.int64]
    lanes: NDArray[np.int64]

    @property
    def reached(self) -> NDArray[np.int64]:
        """How far each run and those before it go."""
        return np.maximum.accumulate(self.stops)

    def merged(self) -> NDArray[np.int64]:
        """Runs that hold each sample once, with others between them: ``(n, 2) int64``."""
        reached = self.reached
        first_ones = np.flatnonzero(np.concatenate([[True], self.starts[1:] > reached[:-1]]))
        last_ones = np.append(first_ones[1:] - 1, len(reached) - 1)
        return np.column_stack([self.starts[first_ones], reached[last_ones]])

    def count_once(self) -> int:
        """How many samples there are, each counted once."""
        return int(np.diff(self.merged()).sum())


def delivered_runs(logs: Mapping[int, LaneLog]) -> dict[Origin, Runs]:
    """What was delivered of each shard."""
    return _gathered(
        (origin, bounds, rank, lane)
        for lane, log in logs.items()
        for rank, row in log.rows
        for origin, bounds in row.samples
    )


def left_out_runs(
    logs: Mapping[int, LaneLog], components: Collection[tuple[int, ...]]
) -> dict[str, dict[Origin, Runs]]:
    """What each operator says it has left out, of the sources that are followed."""
    rows: dict[str, list[tuple[Origin, Sequence[int], int, int]]] = {}
    for lane, log in logs.items():
        for rank, row in log.rows:
            for by, origin, bounds in row.left_out:
                if origin.component in components:
                    rows.setdefault(by, []).append((origin, bounds, rank, lane))
    return {by: _gathered(told) for by, told in rows.items()}


def with_runs(first: Mapping[Origin, Runs], second: Mapping[Origin, Runs]) -> dict[Origin, Runs]:
    """Those of both."""
    return {
        **first,
        **{
            origin: _sorted(np.hstack([first[origin], runs]).T) if origin in first else runs
            for origin, runs in second.items()
        },
    }


def _gathered(rows: Iterable[tuple[Origin, Sequence[int], int, int]]) -> dict[Origin, Runs]:
    tables: dict[Origin, list[NDArray[np.int64]]] = {}
    for origin, bounds, rank, lane in rows:
        runs = np.array(bounds, np.int64).reshape(-1, 2)
        who = np.broadcast_to(np.array([rank, lane]), runs.shape)
        tables.setdefault(origin, []).append(np.hstack([runs, who]))
    return {origin: _sorted(np.concatenate(parts)) for origin, parts in tables.items()}


def _sorted(table: NDArray[np.int64]) -> Runs:
    return Runs(*table[np.lexsort((table[:, 1], table[:, 0]))].T)
