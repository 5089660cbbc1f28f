"""The file of a traced pass: its name, its events in the Trace Event Format, and what it may contain."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Annotated, Any, Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from ..atomic_file import AtomicFile, write_whole
from .statistics import Count, Seconds, Statistics
from .tracing import Flight, Incident, Slice

# What a file of a pass may hold beside its events, as far as it is read: types and bounds. Pure.
#
# The file may come from anywhere, so that each number has a bound, and none may be missing.

VERSION = 1

_Share = Annotated[float, Meta(ge=0, le=1)]

# From a microsecond to three hundred years, in bins of ``Latencies``.
_Bin = Annotated[int, Meta(ge=-120, le=200)]


class SavedReport(msgspec.Struct):
    lines: tuple[str, str, str]
    wait_share: _Share


class SavedSeries(msgspec.Struct):
    bin_s: Annotated[float, Meta(ge=1e-3, le=1e10)]
    rows: dict[str, list[Annotated[float, Meta(ge=0, le=1e20)]]]


class SavedLatency(msgspec.Struct):
    bins_per_decade: Literal[20]
    bins: dict[_Bin, Count]
    count: Count
    p50_s: Annotated[float, Meta(gt=1e-7, le=1e10)] | None
    p95_s: Annotated[float, Meta(gt=1e-7, le=1e10)] | None
    p99_s: Annotated[float, Meta(gt=1e-7, le=1e10)] | None

    def __post_init__(self) -> None:
        has_all = None not in (self.p50_s, self.p95_s, self.p99_s)
        if sum(self.bins.values()) != self.count or has_all != bool(self.count):
            raise ValueError("count does not go with bins and percentiles")


class SavedDropped(msgspec.Struct):
    slices: Count
    seconds: Seconds
    flights: Count
    marks: Count


class SavedRun(msgspec.Struct):
    """What the page and the command read."""

    version: Literal[1]
    loader: str
    rank: Count
    world_size: Count
    num_workers: Count
    epoch: Count | None
    passes: Count
    began_unix_s: Seconds
    statistics: dict[str, Any]
    report: SavedReport
    series: SavedSeries
    latency: SavedLatency
    dropped: SavedDropped
    # Missing in files of earlier versions.
    replica: Count = 0
    replicas: Count = 1


# The events of a pass, in the Trace Event Format that Perfetto and chrome://tracing open. Pure.
#
# See "Trace Event Format" (Nat Duca and Dan Sinclair, Google, 2016). A process of the format is the consumer
# or a worker; its threads are threads. Parts in flight are asynchronous, since they overlap. Times are
# microseconds since the pass began.


class TraceEvent(msgspec.Struct, omit_defaults=True, gc=False):
    """One event. It takes a third of the time of a dict, also because garbage collections skip it.

    Attributes: those of the format; None for those that an event of its phase does not have.
    """

    ph: str
    pid: int
    tid: int
    ts: float
    name: str
    dur: float | None = None
    cat: str | None = None
    id: str | None = None
    s: str | None = None
    args: Mapping[str, Any] | None = None


# Numbers of processes do not overlap, so that the files of ranks can be merged.
_PIDS_OF_RANK = 10_000

#: Microseconds of the pass, of a time by ``time.perf_counter()``.
_Us: TypeAlias = Callable[[float], float]
#: The process of a worker.
_PidOf: TypeAlias = Callable[[int], int]

_CONSUMER_TID = 1
_MAKER_TID = 2  # higher ones are of threads that help it


@dataclass
class TraceTimeline:
    """What was recorded and kept.

    Attributes:
        consumer: Its slices, in order.
        slices: Of the threads of each worker, by its number; 0 without workers.
        flights: Requests of each worker, by its number.
        marks: Each with the worker where it happened.
        workers: Whether those are processes of their own.
    """

    consumer: list[Slice] = field(default_factory=list)
    slices: dict[int, list[Slice]] = field(default_factory=dict)
    flights: dict[int, list[Flight]] = field(default_factory=dict)
    marks: list[tuple[int, Incident]] = field(default_factory=list)
    workers: bool = False


def timeline(
    kept: TraceTimeline, start_s: float, end_s: float, process: int = 0, whose: str = "rank 0"
) -> list[TraceEvent]:
    """The events, those of each track in the order of their times.

    Args:
        kept: What they are made of.
        start_s: When the pass began; no event is earlier.
        end_s: When it ended; no event is later.
        process: Number of the process whose pass it is, among all that read.
        whose: What that is called.
    """
    consumer = process * _PIDS_OF_RANK + 1

    def us(at_s: float) -> float:
        """Microseconds, to the nanosecond."""
        return round((min(at_s, end_s) - start_s) * 1e6, 3) if at_s > start_s else 0.0

    def pid_of(worker: int) -> int:
        return consumer + 1 + worker if kept.workers else consumer

    events = [_slice(us, consumer, _CONSUMER_TID, "consumer", each) for each in kept.consumer]
    for worker, slices in sorted(kept.slices.items()):
        ordered = sorted(slices, key=lambda each: (each.track, each.start_s, each.end_s))
        events += [_slice(us, pid_of(worker), _MAKER_TID + each.track, "maker", each) for each in ordered]
    for worker, flights in sorted(kept.flights.items()):
        for number, flight in enumerate(flights):
            events += _flight(us, pid_of(worker), f"{process}.{worker}.{number}", flight)
        events += _bytes_in_flight(us, pid_of(worker), flights)
    events += [_mark(us, pid_of(worker), mark) for worker, mark in kept.marks]
    events.sort(key=attrgetter("ts"))  # stable: an end stays after its beginning
    return [*_names(kept, consumer, pid_of, whose), *events]


def _names(kept: TraceTimeline, consumer: int, pid_of: _PidOf, whose: str) -> Iterator[TraceEvent]:
    yield _meta(consumer, 0, "process_name", {"name": whose})
    yield _meta(consumer, 0, "process_sort_index", {"sort_index": consumer})
    yield _meta(consumer, _CONSUMER_TID, "thread_name", {"name": "consumer"})
    yield _meta(consumer, _CONSUMER_TID, "thread_sort_index", {"sort_index": 0})
    for worker, slices in sorted(kept.slices.items()):
        pid = pid_of(worker)
        if kept.workers:
            yield _meta(pid, 0, "process_name", {"name": f"{whose}, worker {worker}"})
            yield _meta(pid, 0, "process_sort_index", {"sort_index": pid})
        for track in sorted({each.track for each in slices}):
            name = "makes batches" if track == 0 else f"decodes ahead {track}"
            yield _meta(pid, _MAKER_TID + track, "thread_name", {"name": name})


def _meta(pid: int, tid: int, name: str, args: dict[str, Any]) -> TraceEvent:
    return TraceEvent("M", pid, tid, 0.0, name, args=args)


def _slice(us: _Us, pid: int, tid: int, category: str, each: Slice) -> TraceEvent:
    ts = us(each.start_s)
    dur = round(us(each.end_s) - ts, 3)
    return TraceEvent("X", pid, tid, ts, each.name, dur, category, args=each.about or None)


def _flight(us: _Us, pid: int, number: str, flight: Flight) -> Iterator[TraceEvent]:
    name = urlsplit(flight.shard).path.rpartition("/")[2] or flight.shard
    asked = {"shard": flight.shard, "offset": flight.offset, "asked_bytes": flight.asked_bytes}
    ended = {"size_bytes": flight.size_bytes, "whole": flight.is_whole}
    steps: tuple[tuple[str, float | None, Mapping[str, Any]], ...] = (
        ("b", flight.start_s, asked),
        ("n", flight.answered_s, {"answer": "begins"}),
        ("e", flight.end_s, ended),
    )
    for phase, at_s, args in steps:
        if at_s is not None:
            yield TraceEvent(phase, pid, 0, us(at_s), name, cat="part", id=number, args=args)


def _bytes_in_flight(us: _Us, pid: int, flights: Sequence[Flight]) -> Iterator[TraceEvent]:
    changes: list[tuple[float, int]] = []
    for flight in flights:
        size_bytes = flight.size_bytes if flight.is_whole else flight.asked_bytes
        changes += [(flight.start_s, size_bytes), (flight.end_s, -size_bytes)]
    level = 0
    for at_s, change in sorted(changes, key=lambda each: (each[0], -each[1])):
        level += change
        yield TraceEvent("C", pid, 0, us(at_s), "bytes in flight", args={"bytes": level})


def _mark(us: _Us, pid: int, mark: Incident) -> TraceEvent:
    return TraceEvent("i", pid, 0, us(mark.at_s), mark.kind, cat="event", s="p", args=mark.about)


#: The key beside ``traceEvents`` that has all other values.
FORMAT = "asyncloader"

# Many times the size of a pass, for files into which those of ranks were merged.
_MOST_BYTES = 1 << 29

# The statistics that files of all versions have.
_STATISTICS = {
    *("batches", "samples", "size_bytes", "elapsed_s", "first_batch_s", "network"),
    *("worker_restarts", "skipped", "makers"),
}


def run_path(path: str, *, epoch: int, whose: str, taken: Collection[str]) -> str:
    """The file of one pass: the path itself for the first epoch of a process that is alone.

    Args:
        path: As the user gave it.
        epoch: Added before the suffix where it is not 0.
        whose: What the process is called among others, such as ``"rank 1"``; empty where it is alone.
        taken: Names of earlier passes of the same loader; none is used twice.
    """
    stem, suffix = os.path.splitext(path)
    if whose:
        stem += "-" + whose.replace(",", "").replace(" ", "-")
    if epoch:
        stem += f"-epoch-{epoch}"
    name, again = stem + suffix, 1
    while name in taken:
        again += 1
        name = f"{stem}-{again}{suffix}"
    return name


def write_run(path: str, events: Sequence[TraceEvent], summary: Mapping[str, Any]) -> None:
    """Write the file, which has its name only when it is complete.

    Raises:
        OSError: The folder does not exist or is not writable.
    """
    run = {"displayTimeUnit": "ms", FORMAT: {"version": VERSION, **summary}, "traceEvents": events}
    with _naming(path, "the trace of a pass, which has ended, was not written"):
        write_whole(path, msgspec.json.encode(run))


def check_run_path(path: str) -> None:
    """Check that the file can be written, before the pass begins.

    Raises:
        OSError: Its folder does not exist or is not writable, or the path is a folder.
    """
    with _naming(path, "no trace could be written; name another file, or make its folder writable"):
        if os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        AtomicFile(path).discard()


@contextmanager
def _naming(path: str, what: str) -> Iterator[None]:
    """Add what failed, and the path, to errors."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise type(error)(error.errno, f"trace={path!r}: {what}: {reason}") from None


def read_run(path: str) -> dict[str, Any]:
    """What the file of a pass has beside its events; all that ``SavedRun`` names is checked.

    Raises:
        OSError: It cannot be read.
        ValueError: It is no such file, or of another version of the library.
    """
    with open(path, "rb") as file:
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise ValueError(f"{path}: expected a file of at most {_MOST_BYTES:,} bytes, but it has more")
    try:
        # The events, which are nearly all of it, are skipped.
        run = msgspec.json.decode(content, type=_File).asyncloader
        if run.get("version") == VERSION:
            saved = msgspec.convert(run, SavedRun, str_keys=True)
            if lacking := _STATISTICS - saved.statistics.keys():
                raise ValueError(f"its statistics lack {', '.join(sorted(lacking))}")
            # With those that the file of an older version lacks.
            run["statistics"] = Statistics.from_dict(saved.statistics).as_dict()
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: expected a file that DataLoader(trace=...) has written: {error}") from None
    if run.get("version") != VERSION:
        raise ValueError(
            f"{path}: expected version {VERSION} of what DataLoader(trace=...) writes, but it is "
            f"{run.get('version')!r}; read it with the version of the library that has written it"
        )
    return run


class _File(msgspec.Struct):
    asyncloader: dict[str, Any]
