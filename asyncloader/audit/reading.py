"""Reads the files of an audit, and finds out what counts of them.

A run that was killed delivered batches after the state that the next one went on from. Those were lost with
the weights, and come again: the next pass over a lane says how many batches of it counted, and rows behind
these are dropped. Passes come in the order in which they began, by the clocks of their machines.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from .contents import Contents, read_contents
from .rows import Begin, End, LaneRow, parse_row

__all__ = ["Audited", "LaneLog", "Pass", "logs_of", "read_audits"]

_ROWS, _CONTENTS, _RANK = ".jsonl", ".json", "-rank"


@dataclass
class Pass:
    """A pass of one rank."""

    begin: Begin
    rows: list[LaneRow] = field(default_factory=list)
    end: End | None = None


@dataclass
class Audited:
    """All that was recorded of one recipe; its contents are lacking where their file is."""

    contents: Contents | None = None
    passes: list[Pass] = field(default_factory=list)


@dataclass
class LaneLog:
    """What counts of a lane in an epoch.

    Attributes:
        rows: Of it, in order, each with the rank that delivered it.
        stop: How many batches they are.
        ended: Whether the lane has no more, or was stopped.
        stopped: Whether it had more, and was ended with ranks that had not.
        faults: What is wrong with the record itself.
    """

    rows: list[tuple[int, LaneRow]] = field(default_factory=list)
    stop: int = 0
    ended: bool = False
    stopped: bool = False
    faults: list[str] = field(default_factory=list)

    def reopen(self, first: int) -> None:
        """A pass goes on behind so many batches."""
        while self.rows and self.rows[-1][1].first >= first:
            self.rows.pop()
        self.stop = self.rows[-1][1].stop if self.rows else 0
        self.ended = self.stopped = False
        self._check(first)

    def add(self, rank: int, row: LaneRow) -> None:
        self._check(row.first)
        self.rows.append((rank, row))
        self.stop = row.stop

    def _check(self, first: int) -> None:
        if self.stop < first:
            self.faults.append(
                f"batches {self.stop} to {first - 1} were delivered and not recorded; is a file lacking?"
            )
        elif self.stop > first:
            self.faults.append(
                f"a pass went on behind batch {first}, of which a line up to batch {self.stop} does not tell "
                "what came after; the state that it went on from was not saved by state_dict()"
            )


def read_audits(paths: Iterable[str | os.PathLike[str]]) -> dict[str, Audited]:
    """The records in these folders and files, by the name of their recipe.

    Raises:
        ValueError: There are none, or a line is nothing of an audit's.
        OSError: A file cannot be read.
    """
    audited: dict[str, Audited] = {}
    for path in _files_of(paths):
        name = os.path.basename(path)
        if name.endswith(_CONTENTS):
            recipe = name.removesuffix(_CONTENTS)
            audited.setdefault(recipe, Audited()).contents = read_contents(path)
        else:
            recipe = name.rpartition(_RANK)[0]
            audited.setdefault(recipe, Audited()).passes += _read_passes(path)
    if not any(each.passes for each in audited.values()):
        raise ValueError(f"there is no audit in {', '.join(str(path) for path in paths)}")
    return audited


def logs_of(passes: Iterable[Pass]) -> dict[int, LaneLog]:
    """What counts of each lane, of the passes of one epoch."""
    logs: dict[int, LaneLog] = {}
    for each in sorted(passes, key=lambda each: (each.begin.began, each.begin.id)):
        begin = each.begin
        for lane, first in begin.lanes.items():
            logs.setdefault(lane, LaneLog()).reopen(first)
        for row in each.rows:
            logs[row.lane].add(begin.rank, row)
        if each.end is not None:
            for lane in begin.all_lanes:
                log = logs.setdefault(lane, LaneLog())
                # Of the latest end: what an earlier one left out may have been delivered since.
                log.ended, log.stopped = True, each.end.stopped
    return logs


def _files_of(paths: Iterable[str | os.PathLike[str]]) -> Iterator[str]:
    for given in paths:
        path = os.fspath(given)
        if not os.path.isdir(path):
            yield path
            continue
        for name in sorted(os.listdir(path)):
            if name.endswith(_CONTENTS) or (name.endswith(_ROWS) and _RANK in name):
                yield os.path.join(path, name)


def _read_passes(path: str) -> list[Pass]:
    passes: dict[str, Pass] = {}
    with open(path, encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            try:
                row = parse_row(line)
                if isinstance(row, Begin):
                    passes[row.id] = Pass(row)
                elif isinstance(row, LaneRow):
                    passes[row.id].rows.append(row)
                elif row is not None:
                    passes[row.id].end = row
            except (KeyError, ValueError) as error:
                why = f"the pass {error} has no beginning" if isinstance(error, KeyError) else error
                raise ValueError(f"{path}, line {number}: {why}") from None
    return list(passes.values())
