"""Records what a pass delivers: a line now and then, on the consumer's own thread, and none for a batch.

What was delivered is kept in memory as runs of samples, and appended to the rank's file every few seconds
that batches are taken, whenever a state is saved, and at the end. So what a killed process lacks in its file
was delivered after its last state, and comes again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from time import perf_counter
from typing import BinaryIO

from ..blocks import MOST_TABLES, Indices, Origin, OriginTable, References, resolve
from ..plan.order import draw_order
from .rows import Begin, End, LaneRow, LeftOut, LeftSamples, format_row, runs_of

__all__ = ["Recording"]

# Whatever a killed process had not written comes again, so that nothing is lost by waiting. A line costs
# least where all of a shuffled window was delivered before it.
_FLUSH_S = 5.0

# Of what is not yet in the file: some MiB, in case batches come by the hundred thousand.
_MOST_BATCHES = 10_000


@dataclass(slots=True)
class _Lane:
    """What a lane has delivered since the last line, and the tables that may still be referred to."""

    first: int
    batches: int = 0
    tables: dict[int, OriginTable] = field(default_factory=dict)
    runs: list[list[int]] = field(default_factory=list)
    left_out: dict[tuple[str, Origin], list[Indices]] = field(default_factory=dict)

    @property
    def has_news(self) -> bool:
        return bool(self.batches or self.left_out)

    def leave_out(self, left_out: Iterable[LeftSamples]) -> None:
        for by, origin, samples in left_out:
            self.left_out.setdefault((by, origin), []).append(samples)

    def add(self, references: References) -> None:
        self.batches += 1
        tables, runs = references
        if tables:
            self.tables.update(tables)
        last = self.runs[-1] if self.runs else [0, 0, 0]
        for number, start, stop in runs:
            if last[0] == number and last[2] == start:  # as most do
                last[2] = stop
            else:
                last = [number, start, stop]
                self.runs.append(last)

    def row(self, id: str, lane: int) -> LaneRow:
        """The line of it, after which a new one begins."""
        by_table: dict[int, list[tuple[int, int]]] = {}
        for number, start, stop in self.runs:
            by_table.setdefault(number, []).append((start, stop))
        by_origin: dict[Origin, list[Indices]] = {}
        for number, runs in by_table.items():
            for origin, samples in resolve(self.tables[number], runs, draw_order):
                by_origin.setdefault(origin, []).append(samples)
        told = [(origin, runs_of(parts)) for origin, parts in by_origin.items()]
        first, stop = self.first, self.first + self.batches
        left_out = [LeftOut(by, origin, runs_of(parts)) for (by, origin), parts in self.left_out.items()]
        self.first, self.batches, self.runs, self.left_out = stop, 0, [], {}
        while len(self.tables) > MOST_TABLES:
            del self.tables[next(iter(self.tables))]
        return LaneRow(id, lane, first, stop, told, left_out)


class Recording:
    """Appends to the file of a rank what a pass of it delivers.

    Args:
        path: The file; made if there is none, with its folder.
        begin: Of the pass.

    Raises:
        OSError: It cannot be written; here and by every method that writes.
    """

    def __init__(self, path: str, begin: Begin) -> None:
        self._id = begin.id
        self._lanes = {lane: _Lane(batches) for lane, batches in begin.lanes.items()}
        self._batches = 0
        self._owner = os.getpid()
        os.makedirs(os.path.dirname(path), exist_ok=True)
        # Unbuffered: each flush is one write at the end of the file, whoever else appends to it.
        self._file: BinaryIO = open(path, "ab", buffering=0)  # noqa: SIM115  # closed with the pass
        try:
            # A line that a killed process, or a full disk, has cut is ended first.
            self._append(("" if _ends_whole(path) else "\n") + format_row(begin))
        except BaseException:
            self._file.close()
            raise
        self._flushed_s = perf_counter()

    def delivered(self, lane: int, references: References, left_out: Iterable[LeftSamples] = ()) -> None:
        """The consumer was given a batch of ``lane``, before which operators have left samples out."""
        self._lanes[lane].add(references)
        self._lanes[lane].leave_out(left_out)
        self._batches += 1

    def left_at_end(self, lane: int, left_out: Iterable[LeftSamples]) -> None:
        """All batches of a lane were delivered, and operators have left samples out behind the last one."""
        self._lanes[lane].leave_out(left_out)

    def flush_if_due(self, now_s: float) -> None:
        """Write what has gathered, if the last time was long ago; ``now_s`` is of ``time.perf_counter()``."""
        if now_s - self._flushed_s > _FLUSH_S or self._batches > _MOST_BATCHES:
            self.flush()

    def flush(self) -> None:
        """Write what has gathered: what a state that is saved now says was delivered must be on disk."""
        if self._owner != os.getpid() or self._file.closed:
            return
        rows = [lane.row(self._id, number) for number, lane in self._lanes.items() if lane.has_news]
        if rows:
            self._append("".join(map(format_row, rows)))
        self._batches = 0
        self._flushed_s = perf_counter()

    def close(self, end: bool = False, stopped: bool = False) -> None:
        """Write what is left. Idempotent.

        Args:
            end: Whether the pass was read to its end.
            stopped: Whether it was ended with others that had no more.
        """
        if self._owner != os.getpid() or self._file.closed:
            return
        try:
            self.flush()
            if end:
                self._append(format_row(End(self._id, stopped)))
        finally:
            self._file.close()

    def _append(self, lines: str) -> None:
        rest = memoryview(lines.encode())
        while rest:  # a disk that is nearly full takes a part of it, and then raises
            rest = rest[self._file.write(rest) :]


def _ends_whole(path: str) -> bool:
    """Whether what is appended begins a line."""
    with open(path, "rb") as file:
        if not file.seek(0, os.SEEK_END):
            return True
        file.seek(-1, os.SEEK_END)
        return file.read() == b"\n"
