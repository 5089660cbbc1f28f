"""Where the samples of batches came from, told in a few numbers a batch.

To name each sample would cost more than some batches do to make. So what many batches share, a decoded block
or a window that is handed on in an order of its own, is told once, as a table of its samples; a batch then
refers to runs of that. Whoever receives the batches puts the two together, when it pleases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .provenance import Indices, Origin, Provenance
from .trails import Referred, Trail

__all__ = ["MOST_TABLES", "References", "Table", "Tables", "resolve"]

# Blocks and windows that batches are made of at a time: of each component of a mixture, some.
MOST_TABLES = 64


class Table(NamedTuple):
    """The provenance of all samples of a trail, as it is sent: arrays as the bytes of ``int64``.

    Attributes:
        origins: See ``Provenance``, as plain tuples.
        which: Likewise.
        samples: Likewise.
        order: What draws the order in which they are handed on; empty for this one.
    """

    origins: Sequence[tuple[Any, ...]]
    which: bytes | None
    samples: range | bytes
    order: tuple[int, ...]


class References(NamedTuple):
    """Where the samples of a batch came from.

    Attributes:
        tables: Those that are told with this batch, by number.
        runs: Of its samples, in whatever order: a table, and a start and a stop in it.
    """

    tables: Sequence[tuple[int, Table]]
    runs: Sequence[tuple[int, int, int]]


class Tables:
    """Numbers the tables of a lane, and tells each with the first batch that refers to it.

    Args:
        first: The number of the first one. A worker that replaces another one must not give numbers that
            were given before; the time will do.
    """

    def __init__(self, first: int) -> None:
        # With the trails, so that another one cannot have the same identity.
        self._known: dict[int, tuple[Trail, int]] = {}
        self._next = first

    def refer(self, referred: Iterable[Referred]) -> References:
        """What to send beside a batch of these samples."""
        tables: list[tuple[int, Table]] = []
        runs: list[tuple[int, int, int]] = []
        for trail, start, stop in referred:
            known = self._known.get(id(trail))
            if known is None:
                known = self._number(trail)
                tables.append((known[1], _table_of(trail)))
            runs.append((known[1], start, stop))
        return References(tables, runs)

    def _number(self, trail: Trail) -> tuple[Trail, int]:
        while len(self._known) >= MOST_TABLES:
            del self._known[next(iter(self._known))]
        self._next += 1
        known = self._known[id(trail)] = (trail, self._next)
        return known


def _table_of(trail: Trail) -> Table:
    (origins, which, samples), order = trail.table()
    return Table(
        [tuple(origin) for origin in origins],
        None if which is None else which.tobytes(),
        samples if isinstance(samples, range) else samples.tobytes(),
        order,
    )


def resolve(
    table: Table, runs: Sequence[tuple[int, int]], draw: Callable[..., NDArray[np.int64]]
) -> Iterator[tuple[Origin, Indices]]:
    """The samples of runs of a table, by their shards.

    Args:
        table: What they refer to.
        runs: A start and a stop each, in order.
        draw: Draws an order, of a count and the numbers of ``Table.order``.
    """
    samples = table.samples if isinstance(table.samples, range) else np.frombuffer(table.samples, np.int64)
    which = None if table.which is None else np.frombuffer(table.which, np.int64)
    whole = Provenance([Origin(*origin) for origin in table.origins], which, samples)
    if table.order and list(runs) != [(0, len(samples))]:
        # Of a window of which all was delivered, the order does not matter.
        order = draw(len(samples), *table.order)
        yield from whole.of(np.concatenate([order[start:stop] for start, stop in runs])).by_origin()
        return
    for start, stop in runs:
        yield from whole.of(range(start, stop)).by_origin()
