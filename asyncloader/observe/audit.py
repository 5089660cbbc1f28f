"""The files of an audit: what each rank has delivered, as it is recorded and as it is read.

A file is JSON Lines of one rank, and is only appended to. A pass begins with a row that says of each of its
lanes how many batches were delivered before. Then come rows of lanes, and a row of its end if the pass was
read to its end:

    {"row": "begin", "id": "9f2c", "began": 1766500000.0, "epoch": 0, "rank": 0, "world_size": 2,
     "workers": 4, "lanes": {"0": 0, "2": 0}, "all_lanes": [0, 2]}
    {"row": "lane", "id": "9f2c", "lane": 2, "first": 0, "stop": 12, "samples": [[[[], 5, 0], [0, 96]], ...],
     "left_out": [["filter(is_long)", [[], 5, 0], [96, 98]], ...]}
    {"row": "end", "id": "9f2c", "stopped": false}

``"samples"`` names a component, a shard by its number, a repetition, and the samples as starts and stops in
turn. They are in order, and a sample that was delivered twice is there twice. ``"left_out"`` is there if
operators have left samples out meanwhile. A sample that was left out again after a restart is there again.

Laws:

* Nothing is written for a batch. Runs of samples are kept in memory and appended every few seconds, whenever
  a state is saved, and at the end. So what a killed process had not written was delivered after its last
  state, and comes again.
* What a killed run delivered after the state that the next one went on from was lost with the weights. The
  next pass over a lane says how many of its batches count, and later rows are dropped. Passes come in the
  order in which they began, by the clocks of their machines.
* An operator that looks at each sample and drops some names these, so that a lost sample is not taken for
  one of them. What is never read, such as the samples after the last one of a ``take``, cannot be named.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, BinaryIO, Literal, NamedTuple, TypeAlias

import msgspec
import numpy as np

from ..atomic_file import write_whole
from ..blocks import Indices, Origin, Origins, Trail, join_origins

#: An operator, and samples that it has left out.
LeftSamples: TypeAlias = tuple[str, Origins]


class Begin(msgspec.Struct, tag_field="row", tag="begin"):
    """The beginning of a pass.

    Attributes:
        id: Of the pass, another for each.
        began: When, in seconds since 1970: passes come in this order.
        epoch: Its number.
        rank: Whose it is.
        world_size: Of how many ranks.
        workers: How many it has.
        lanes: Those that are read, with how many batches of each were delivered before.
        all_lanes: Those of the rank, with those that had ended before.
        leaves_out: What in the dataset may be why a sample does not come.
        named_by: Which of these name each sample that they leave out.
    """

    id: str
    began: float
    epoch: int
    rank: int
    world_size: int
    workers: int
    lanes: dict[int, int]
    all_lanes: Sequence[int]
    leaves_out: Sequence[str] = ()
    named_by: Sequence[str] = ()


class LeftOut(NamedTuple):
    """Samples that an operator has left out.

    Attributes:
        by: The operator.
        origin: Their shard.
        runs: Starts and stops in turn.
    """

    by: str
    origin: Origin
    runs: list[int]


class LaneRow(msgspec.Struct, tag_field="row", tag="lane", omit_defaults=True):
    """What a lane delivered.

    Attributes:
        id: Of the pass.
        lane: The lane.
        first: How many of its batches came before.
        stop: How many there were then.
        samples: By shard, as starts and stops in turn.
        left_out: What operators have left out before the last of these batches was made, or, in a row of no
            batches, before the lane's end.
    """

    id: str
    lane: int
    first: int
    stop: int
    samples: list[tuple[Origin, list[int]]]
    left_out: list[LeftOut] = []


class End(msgspec.Struct, tag_field="row", tag="end"):
    """A pass was read to its end.

    Attributes:
        id: Of the pass.
        stopped: Whether lanes had more, and the rank was stopped with others that had not.
    """

    id: str
    stopped: bool


AuditRow: TypeAlias = Begin | LaneRow | End


def format_row(row: AuditRow) -> bytes:
    """A line, with its end."""
    return msgspec.json.encode(row) + b"\n"


def runs_of(parts: Sequence[Indices]) -> list[int]:
    """Samples as starts and stops in turn: sorted, and each as often as it occurs."""
    ranges = [part for part in parts if isinstance(part, range)]
    arrays = [part for part in parts if not isinstance(part, range)]
    bounds = np.array([(part.start, part.stop) for part in ranges], np.int64).reshape(-1, 2)
    starts = np.concatenate([bounds[:, 0], *arrays])
    stops = np.concatenate([bounds[:, 1], *(part + 1 for part in arrays)])
    # Each by itself: whichever start goes with which stop, each sample is covered as often.
    starts.sort()
    stops.sort()
    is_cut = starts[1:] != stops[:-1]
    runs = starts[np.append(True, is_cut)], stops[np.append(is_cut, True)]
    in_turn: list[int] = np.column_stack(runs).reshape(-1).tolist()
    return in_turn


# --- what is audited ---


@dataclass(frozen=True)
class AuditedSource:
    """A source of the dataset.

    Attributes:
        component: Which component of which mixture it is; empty outside of any.
        name: What it is called there.
        shards: Their URLs, without secrets; None if it does not come in shards.
        samples: How many each has, None where that is not known.
        repetitions: How often all of it comes in an epoch; None if that is not known.
    """

    component: tuple[int, ...]
    name: str
    shards: Sequence[str] | None
    samples: Sequence[int | None] | None
    repetitions: int | None


class Contents(msgspec.Struct, frozen=True):
    """A dataset as the audit knows it.

    Attributes:
        described: What states say of it.
        parts: Its sources.
        asyncloader_audit: The version; it identifies the file.
    """

    described: dict[str, Any]
    parts: Sequence[AuditedSource]
    asyncloader_audit: Literal[2]


def write_contents(path: str, contents: Contents) -> None:
    """Write the file, whole or not at all; raises OSError."""
    write_whole(path, msgspec.json.encode(contents))


def read_contents(path: str) -> Contents:
    """What ``write_contents`` wrote.

    Raises:
        ValueError: It is no such file.
        OSError: It cannot be read.
    """
    with open(path, "rb") as file:
        content = file.read()
    try:
        return msgspec.json.decode(content, type=Contents)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(
            f"expected a file that DataLoader(audit=...) has written, of version 2, but found {path}: {error}"
        ) from None


# --- recording ---

# What a killed process had not written comes again, so that nothing is lost by waiting.
_FLUSH_S = 5.0

# Of what is not yet in the file: some MiB, in case batches come by the hundred thousand.
_MOST_BYTES = 8 << 20
_PART_BYTES = 400


@dataclass(slots=True)
class _LaneNews:
    """What a lane has delivered since the last line.

    Attributes:
        first: How many of its batches came before.
        batches: How many are delivered since.
        parts: Where their samples came from.
        left_out: The samples that each operator has left out.
    """

    first: int
    batches: int = 0
    parts: list[Origins] = field(default_factory=list)
    left_out: dict[str, list[Origins]] = field(default_factory=dict)

    def leave_out(self, left_out: Iterable[LeftSamples]) -> None:
        for by, origins in left_out:
            self.left_out.setdefault(by, []).append(origins)

    def add(self, batch: Origins) -> None:
        self.batches += 1
        last = self.parts[-1] if self.parts else None
        if last is not None and last.is_run and batch.is_run:  # as most do where nothing is shuffled
            whole = join_origins([last, batch])
            if whole.is_run:
                self.parts[-1] = whole
                return
        self.parts.append(batch)

    def row(self, id: str, lane: int) -> LaneRow:
        """The line of it, after which a new one begins."""
        left_out = [
            LeftOut(by, origin, runs)
            for by, parts in self.left_out.items()
            for origin, runs in _runs_by_shard(parts)
        ]
        first, stop = self.first, self.first + self.batches
        row = LaneRow(id, lane, first, stop, _runs_by_shard(self.parts), left_out)
        self.first, self.batches, self.parts, self.left_out = stop, 0, [], {}
        return row


def _runs_by_shard(parts: Sequence[Origins]) -> list[tuple[Origin, list[int]]]:
    """The samples of all parts, as starts and stops in turn."""
    by_shard: dict[Origin, list[Indices]] = {}
    scattered = join_origins([part for part in parts if not part.is_run])
    for part in (scattered, *(part for part in parts if part.is_run)):
        for origin, samples in part.by_shard():
            by_shard.setdefault(origin, []).append(samples)
    return [(origin, runs_of(of_shard)) for origin, of_shard in by_shard.items()]


class Recording:
    """Appends what a pass delivers to the file of its rank.

    Args:
        path: The file; created if there is none, with its folder.
        begin: Of the pass.

    Raises:
        OSError: It cannot be written; here and by every method that writes.
    """

    def __init__(self, path: str, begin: Begin) -> None:
        self._id = begin.id
        self._lanes = {lane: _LaneNews(batches) for lane, batches in begin.lanes.items()}
        self._held_bytes = 0
        self._owner = os.getpid()
        os.makedirs(os.path.dirname(path), exist_ok=True)
        # Unbuffered: each flush is one write at the end of the file, also where other processes append to it.
        self._file: BinaryIO = open(path, "ab+", buffering=0)  # noqa: SIM115  # closed with the pass
        try:
            # A line that a killed process, or a full disk, has cut is ended first.
            size = self._file.seek(0, os.SEEK_END)
            is_cut = size and os.pread(self._file.fileno(), 1, size - 1) != b"\n"
            self._append((b"\n" if is_cut else b"") + format_row(begin))
        except BaseException:
            self._file.close()
            raise
        self._flushed_s = perf_counter()

    def delivered(self, lane: int, batch: Origins, left_out: Sequence[LeftSamples] = ()) -> None:
        """The consumer received a batch of ``lane``, before which operators have left samples out."""
        self._lanes[lane].add(batch)
        self._lanes[lane].leave_out(left_out)
        held = [batch, *(origins for _, origins in left_out)]
        self._held_bytes += sum(_PART_BYTES + origins.size_bytes for origins in held)

    def left_at_end(self, lane: int, left_out: Iterable[LeftSamples]) -> None:
        """All batches of a lane were delivered, and operators have left samples out after the last one."""
        self._lanes[lane].leave_out(left_out)

    def flush_if_due(self, now_s: float) -> None:
        """Write what has gathered, if the last time was long ago; ``now_s`` is of ``time.perf_counter()``."""
        if now_s - self._flushed_s > _FLUSH_S or self._held_bytes > _MOST_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what has gathered: what a state that is saved now says was delivered must be on disk."""
        if self._owner != os.getpid() or self._file.closed:
            return
        lanes = self._lanes.items()
        self._append(
            b"".join(
                format_row(lane.row(self._id, number))
                for number, lane in lanes
                if lane.batches or lane.left_out
            )
        )
        self._held_bytes = 0
        self._flushed_s = perf_counter()

    def close(self, end: bool = False, stopped: bool = False) -> None:
        """Write what is left. Idempotent.

        Args:
            end: Whether the pass was read to its end.
            stopped: Whether it was ended with others that had none left.
        """
        if self._owner != os.getpid() or self._file.closed:
            return
        try:
            self.flush()
            if end:
                self._append(format_row(End(self._id, stopped)))
        finally:
            self._file.close()

    def _append(self, lines: bytes) -> None:
        rest = memoryview(lines)
        while rest:  # a disk that is nearly full takes a part of it, and then raises
            rest = rest[self._file.write(rest) :]


class LeavesOut:
    """Gathers what operators of a lane leave out, until it is sent beside the lane's next batch.

    Operators report whole blocks, from any thread, and it costs nothing where no sample is left out. What
    comes again after a restart is left out again, and reported again.
    """

    def __init__(self) -> None:
        self._gathered: deque[LeftSamples] = deque()

    def __bool__(self) -> bool:
        return bool(self._gathered)

    def add(self, by: str, trail: Trail, indices: Indices) -> None:
        """Leave out these samples of a block.

        Args:
            by: What leaves them out, as the dataset's description calls it.
            trail: Of the block.
            indices: Of the samples in it.
        """
        if len(indices):
            self._gathered.append((by, trail.origins.of(indices)))

    def take(self) -> tuple[LeftSamples, ...]:
        """What was reported since the previous call."""
        found: dict[str, list[Origins]] = {}
        while self._gathered:
            by, origins = self._gathered.popleft()
            found.setdefault(by, []).append(origins)
        return tuple((by, join_origins(parts)) for by, parts in found.items())


# --- reading ---

_ROWS, _CONTENTS, _RANK = ".jsonl", ".json", "-rank"


@dataclass
class RecordedPass:
    """A pass of one rank."""

    begin: Begin
    rows: list[LaneRow] = field(default_factory=list)
    end: End | None = None


@dataclass
class Audited:
    """All that was recorded of one dataset; the contents are None where their file is missing."""

    contents: Contents | None = None
    passes: list[RecordedPass] = field(default_factory=list)


@dataclass
class LaneLog:
    """What counts of a lane in an epoch.

    Attributes:
        rows: Of it, in order, each with the rank that delivered it.
        stop: How many batches they are.
        ended: Whether the lane was read to its end, or was stopped.
        stopped: Whether it had more, and was ended with ranks that had not.
        faults: What is wrong with the record.
    """

    rows: list[tuple[int, LaneRow]] = field(default_factory=list)
    stop: int = 0
    ended: bool = False
    stopped: bool = False
    faults: list[str] = field(default_factory=list)

    def reopen(self, first: int) -> None:
        """A pass goes on after so many batches."""
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
                f"batches {self.stop} to {first - 1} were delivered, but not recorded; is a file missing?"
            )
        elif self.stop > first:
            self.faults.append(
                f"a pass resumed after {first} batches, within a row up to batch {self.stop}; its state was "
                "not saved by state_dict()"
            )


def read_audits(paths: Iterable[str | os.PathLike[str]]) -> dict[str, Audited]:
    """The records in these folders and files, by the name of their dataset.

    Raises:
        ValueError: There are none, or a line is no row of an audit.
        OSError: A file cannot be read.
    """
    audited: dict[str, Audited] = {}
    for path in _files_of(paths):
        name = os.path.basename(path)
        if name.endswith(_CONTENTS):
            audited.setdefault(name.removesuffix(_CONTENTS), Audited()).contents = read_contents(path)
        else:
            audited.setdefault(name.rpartition(_RANK)[0], Audited()).passes += _read_passes(path)
    if not any(each.passes for each in audited.values()):
        raise ValueError(f"there is no audit in {', '.join(map(str, paths))}")
    return audited


def logs_of(passes: Iterable[RecordedPass]) -> dict[int, LaneLog]:
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
                # The latest end counts: what an earlier one left out may have been delivered since.
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


def _read_passes(path: str) -> list[RecordedPass]:
    passes: dict[str, RecordedPass] = {}
    with open(path, encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            where = f"{path}, line {number}"
            try:
                row: AuditRow = msgspec.json.decode(line, type=AuditRow)
            except msgspec.ValidationError as error:
                found = f"found {line.strip()[:80]!r}: {error}"
                raise ValueError(f"{where}: expected a row of an audit, {found}") from None
            except msgspec.DecodeError:  # a killed process has left it incomplete
                continue
            if isinstance(row, Begin):
                passes[row.id] = RecordedPass(row)
            elif row.id not in passes:
                raise ValueError(f"{where}: the pass {row.id!r} has no row of its beginning")
            elif isinstance(row, LaneRow):
                passes[row.id].rows.append(row)
            else:
                passes[row.id].end = row
    return list(passes.values())
