"""What was kept of a pass, in the Trace Event Format that Perfetto and chrome://tracing open. Pure.

See "Trace Event Format" (Nat Duca and Dan Sinclair, Google, 2016). A process of the format is the consumer or
a worker; a thread of it, a thread. Parts in flight are asynchronous, since they overlap. Times are
microseconds since the pass began.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any
from urllib.parse import urlsplit

import msgspec

from .events import Flight, Mark, Slice

__all__ = ["Event", "Timeline", "timeline"]


class Event(msgspec.Struct, omit_defaults=True, gc=False):
    """One of the format. It takes a third of the time of a dict, also since no collector looks at it.

    Attributes: those of the format, where None stands for what an event of its phase does not have.
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


# Apart, so that the files of ranks can be put together.
_PIDS_OF_RANK = 10_000

_CONSUMER_TID = 1
_MAKER_TID = 2  # and those behind it are of threads that help it


@dataclass
class Timeline:
    """What was kept.

    Attributes:
        consumer: Its slices, one after the other.
        slices: Of the threads of each worker, by its number; 0 without any.
        flights: Each with the worker that asked.
        marks: Likewise, with the worker where it was.
        workers: Whether those are processes of their own.
    """

    consumer: list[Slice] = field(default_factory=list)
    slices: dict[int, list[Slice]] = field(default_factory=dict)
    flights: list[tuple[int, Flight]] = field(default_factory=list)
    marks: list[tuple[int, Mark]] = field(default_factory=list)
    workers: bool = False


def timeline(
    kept: Timeline, start_s: float, end_s: float, process: int = 0, whose: str = "rank 0"
) -> list[Event]:
    """The events, those of each track in the order of their times.

    Args:
        kept: What they are made of.
        start_s: When the pass began; nothing lies before.
        end_s: When it ended; nothing lies behind.
        process: Number of the process whose pass it is, among all that read.
        whose: What that is called.
    """
    clock = _Clock(start_s, end_s)
    consumer = process * _PIDS_OF_RANK + 1

    def pid_of(worker: int) -> int:
        return consumer + 1 + worker if kept.workers else consumer

    events = [*_names(kept, consumer, pid_of, whose)]
    events += [_slice(clock, consumer, _CONSUMER_TID, "consumer", each) for each in kept.consumer]
    for worker, slices in sorted(kept.slices.items()):
        ordered = sorted(slices, key=lambda each: (each.track, each.start_s, each.end_s))
        events += [_slice(clock, pid_of(worker), _MAKER_TID + each.track, "maker", each) for each in ordered]
    for number, (worker, flight) in enumerate(kept.flights):
        events += _flight(clock, pid_of(worker), f"{process}.{number}", flight)
    events += _bytes_in_flight(clock, kept, pid_of)
    events += [_mark(clock, pid_of(worker), mark) for worker, mark in kept.marks]
    named = [event for event in events if event.ph == "M"]
    timed = [event for event in events if event.ph != "M"]
    return named + sorted(timed, key=attrgetter("ts"))  # stable: an end stays behind its beginning


class _Clock:
    def __init__(self, start_s: float, end_s: float) -> None:
        self._start_s, self._end_s = start_s, end_s

    def us(self, at_s: float) -> float:
        """Microseconds, to the nanosecond."""
        if at_s <= self._start_s:
            return 0.0
        return round(((at_s if at_s < self._end_s else self._end_s) - self._start_s) * 1e6, 3)


def _names(kept: Timeline, consumer: int, pid_of: Any, whose: str) -> Iterator[Event]:
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


def _meta(pid: int, tid: int, name: str, args: dict[str, Any]) -> Event:
    return Event("M", pid, tid, 0.0, name, args=args)


def _slice(clock: _Clock, pid: int, tid: int, category: str, each: Slice) -> Event:
    ts = clock.us(each.start_s)
    dur = round(clock.us(each.end_s) - ts, 3)
    return Event("X", pid, tid, ts, each.name, dur, category, args=each.about or None)


def _flight(clock: _Clock, pid: int, number: str, flight: Flight) -> Iterator[Event]:
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
            yield Event(phase, pid, 0, clock.us(at_s), name, cat="part", id=number, args=args)


def _bytes_in_flight(clock: _Clock, kept: Timeline, pid_of: Any) -> Iterator[Event]:
    changes: dict[int, list[tuple[float, int]]] = {}
    for worker, flight in kept.flights:
        size_bytes = flight.size_bytes if flight.is_whole else flight.asked_bytes
        rows = changes.setdefault(pid_of(worker), [])
        rows += [(flight.start_s, size_bytes), (flight.end_s, -size_bytes)]
    for pid, rows in changes.items():
        level = 0
        for at_s, change in sorted(rows, key=lambda row: (row[0], -row[1])):
            level += change
            yield Event("C", pid, 0, clock.us(at_s), "bytes in flight", args={"bytes": level})


def _mark(clock: _Clock, pid: int, mark: Mark) -> Event:
    return Event("i", pid, 0, clock.us(mark.at_s), mark.kind, cat="event", s="p", args=mark.about)
