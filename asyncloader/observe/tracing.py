"""What is recorded of a pass where it happens, until it is told; by ``time.perf_counter()``."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

from ..blocks.memory import StandIn
from .stopwatch import Spent, Stopwatch


class Slice(NamedTuple):
    """A thread was at one stage.

    Attributes:
        track: Which thread of its process: 0 for the one that makes batches, others help it.
        name: The stage.
        start_s: From when.
        end_s: And until when.
        about: What else there is to say; empty for most.
    """

    track: int
    name: str
    start_s: float
    end_s: float
    about: Mapping[str, Any] = {}


class Flight(NamedTuple):
    """A part of a shard was asked for.

    Attributes:
        shard: Its URL, redacted.
        offset: Of the first byte asked for.
        asked_bytes: How many were, at most.
        size_bytes: How many came.
        start_s: When it was asked for.
        answered_s: When the answer began; None if none came.
        end_s: When it was over.
        is_whole: Whether it ended well: others failed, or were let go.
    """

    shard: str
    offset: int
    asked_bytes: int
    size_bytes: int
    start_s: float
    answered_s: float | None
    end_s: float
    is_whole: bool


class Incident(NamedTuple):
    """Something happened.

    Attributes:
        kind: ``"retry"``, ``"throttled"``, ``"hedge"``, ``"skipped"``, ``"worker restarted"``.
        at_s: When.
        about: Where, and why.
    """

    kind: str
    at_s: float
    about: Mapping[str, Any]


class Padded(NamedTuple):
    """A padded batch was made.

    Attributes:
        at_s: When.
        real: How many of its cells hold data.
        cells: How many it has.
    """

    at_s: float
    real: int
    cells: int


class Dropped(NamedTuple):
    """What was recorded and not kept, for want of room.

    Attributes:
        slices: Of threads, the shortest ones.
        seconds: How long those were, together.
        flights: Parts, the shortest ones.
        marks: Which came last.
    """

    slices: int = 0
    seconds: float = 0.0
    flights: int = 0
    marks: int = 0

    def plus(self, more: Dropped) -> Dropped:
        """Together with those."""
        return Dropped._make(map(sum, zip(self, more, strict=True)))


class Traced(NamedTuple):
    """What a process has recorded since it told before.

    Attributes:
        until_s: When it told.
        slices: Of its threads; of each thread in order.
        flights: That have ended.
        marks: In order.
        padded: Batches.
        dropped: What there was more.
    """

    until_s: float
    slices: Sequence[Slice] = ()
    flights: Sequence[Flight] = ()
    marks: Sequence[Incident] = ()
    padded: Sequence[Padded] = ()
    dropped: Dropped = Dropped()

    def shifted(self, by_s: float) -> Traced:
        """The same by another clock, which is so much ahead."""
        return Traced(
            self.until_s + by_s,
            [each._replace(start_s=each.start_s + by_s, end_s=each.end_s + by_s) for each in self.slices],
            [_shifted_flight(each, by_s) for each in self.flights],
            [each._replace(at_s=each.at_s + by_s) for each in self.marks],
            [each._replace(at_s=each.at_s + by_s) for each in self.padded],
            self.dropped,
        )


def _shifted_flight(flight: Flight, by_s: float) -> Flight:
    answered_s = None if flight.answered_s is None else flight.answered_s + by_s
    return flight._replace(start_s=flight.start_s + by_s, answered_s=answered_s, end_s=flight.end_s + by_s)


AnyLasting = TypeVar("AnyLasting", Slice, Flight)


def longest(events: Iterable[AnyLasting], most: int) -> tuple[list[AnyLasting], list[AnyLasting]]:
    """The longest of the events, as many as there may be, and the others; both in the order they came in."""
    events = list(events)
    if len(events) <= most:
        return events, []
    shortest_first = sorted(range(len(events)), key=lambda place: events[place].end_s - events[place].start_s)
    left_out = set(shortest_first[: len(events) - most])
    kept = [event for place, event in enumerate(events) if place not in left_out]
    return kept, [events[place] for place in sorted(left_out)]


# What one process has recorded and not yet told, from whatever thread.

T = TypeVar("T")

# Between two notes, mostly a tenth of a second: more would be nobody's to look at, and the batch beside it
# would wait for them.
_MOST_TOLD = 2_000

# Of a thread that never waits for long: what comes beyond is not even compared.
_MOST_HELD = 20_000


class Recorder:
    """Holds what was recorded in one process until it is told; bounded."""

    def __init__(self) -> None:
        # Appended to by any thread, and emptied by the one that tells.
        self._slices: deque[Slice] = deque()
        self._flights: deque[Flight] = deque()
        self._marks: deque[Incident] = deque()
        self._padded: deque[Padded] = deque()
        # Of what follows; re-entrant, for the finalizers of a garbage collection.
        self._lock = threading.RLock()
        self._dropped = Dropped()
        self._tracks = 0

    def new_track(self) -> int:
        """The number of a thread that begins to record."""
        with self._lock:
            self._tracks += 1
            return self._tracks - 1

    def slice(self, track: int, name: str, start_s: float, end_s: float) -> None:
        """A thread was at a stage."""
        if len(self._slices) < _MOST_HELD:
            self._slices.append(Slice(track, name, start_s, end_s))
        else:
            self._drop(Dropped(slices=1, seconds=end_s - start_s))

    def flight(self, flight: Flight) -> None:
        """A part has come, or failed."""
        if len(self._flights) < _MOST_HELD:
            self._flights.append(flight)
        else:
            self._drop(Dropped(flights=1))

    def mark(self, kind: str, about: dict[str, Any]) -> None:
        """Something happens just now."""
        if len(self._marks) < _MOST_TOLD:
            self._marks.append(Incident(kind, perf_counter(), about))
        else:
            self._drop(Dropped(marks=1))

    def padded(self, real: int, cells: int) -> None:
        """A padded batch was made; with each one there is a note that tells."""
        self._padded.append(Padded(perf_counter(), real, cells))

    def take(self, until_s: float) -> Traced:
        """All of it, to be told."""
        slices, short = longest(_emptied(self._slices), _MOST_TOLD)
        flights, quick = longest(_emptied(self._flights), _MOST_TOLD)
        self._drop(Dropped(len(short), sum(each.end_s - each.start_s for each in short), len(quick)))
        with self._lock:
            dropped, self._dropped = self._dropped, Dropped()
        return Traced(until_s, slices, flights, _emptied(self._marks), _emptied(self._padded), dropped)

    def _drop(self, more: Dropped) -> None:
        with self._lock:
            self._dropped = self._dropped.plus(more)


def _emptied(events: deque[T]) -> list[T]:
    """What is there by now."""
    return [events.popleft() for _ in range(len(events))]


# A stopwatch that also records each stretch of time it measures.


class TracingStopwatch(Stopwatch):
    """Records when its thread was at which stage, and tells it with what was spent.

    Args:
        since_s: See ``Stopwatch``.
        recorder: Of the process; a new one by default.
    """

    def __init__(self, since_s: float | None = None, recorder: Recorder | None = None) -> None:
        super().__init__(since_s)
        self.recorder = Recorder() if recorder is None else recorder
        self._track = self.recorder.new_track()
        self._at_stage_since_s = self._since_s

    def enter(self, stage: str, now_s: float | None = None) -> str:
        former = super().enter(stage, now_s)
        if former != stage:
            self._record(former)
        return former

    def helper(self) -> Stopwatch:
        helper = TracingStopwatch(recorder=self.recorder)
        self._helpers.add(helper)
        return helper

    def news(self, *, at_once: bool = False, cpu_s: float | None = None) -> Spent | None:
        spent = super().news(at_once=at_once, cpu_s=cpu_s)
        if spent is None:
            return None
        self._record(self._stage)
        return spent._replace(traced=self.recorder.take(self._since_s))

    def made(self, batch: Any) -> None:
        """The thread has made this batch."""
        real, cells = _cells_of(batch)
        if cells:
            self.recorder.padded(real, cells)

    def _record(self, stage: str) -> None:
        self.recorder.slice(self._track, stage, self._at_stage_since_s, self._since_s)
        self._at_stage_since_s = self._since_s


def _cells_of(batch: Any) -> tuple[int, int]:
    """How many cells of a batch's padded fields hold data, and how many there are.

    Fields as ``Pad`` makes them are known by their lengths, blocks as ``Pack`` makes them by their segments.
    """
    if not isinstance(batch, Mapping):
        return 0, 0
    fields: dict[Any, Any] = {
        name: field.array if isinstance(field, StandIn) else field for name, field in batch.items()
    }
    segments: Any = fields.get("segment_ids")
    if len(getattr(segments, "shape", ())) == 2:
        return int((segments != 0).sum()), segments.shape[0] * segments.shape[1]
    real = cells = 0
    for name, lengths in fields.items():
        field = fields.get(name.removesuffix("_lengths")) if isinstance(name, str) else None
        shape: Any = getattr(field, "shape", ())
        if field is not lengths and len(shape) >= 2 and getattr(lengths, "shape", None) == shape[:1]:
            real += int(lengths.sum())
            cells += shape[0] * shape[1]
    return real, cells


# What stores tell of the parts they ask for; nobody listens unless a pass is traced.


class Flying:
    """A part on its way, of which nobody wants to know."""

    def answered(self) -> None:
        """Its answer begins."""

    def ended(self, size_bytes: int, *, is_whole: bool) -> None:
        """So many bytes of it came, and no more will."""


class Traffic:
    """Told of what goes over the network, or to a disk; says it to nobody."""

    def began(self, url: str, offset: int, asked_bytes: int) -> Flying:
        """A part is asked for."""
        return _UNHEARD

    def mark(self, kind: str, url: str, **about: Any) -> None:
        """Something happened to a request."""


_UNHEARD = Flying()


class TracedTraffic(Traffic):
    """Records what it is told.

    Args:
        recorder: Of the process.
        redact: Makes of a URL what may be shown.
    """

    def __init__(self, recorder: Recorder, redact: Callable[[str], str]) -> None:
        self._recorder = recorder
        self._redact = redact

    def began(self, url: str, offset: int, asked_bytes: int) -> Flying:
        return _TracedFlying(self._recorder, self._redact(url), offset, asked_bytes)

    def mark(self, kind: str, url: str, **about: Any) -> None:
        self._recorder.mark(kind, {"shard": self._redact(url), **about})


class _TracedFlying(Flying):
    def __init__(self, recorder: Recorder, shard: str, offset: int, asked_bytes: int) -> None:
        self._recorder = recorder
        self._asked = shard, offset, asked_bytes
        self._start_s = perf_counter()
        self._answered_s: float | None = None

    def answered(self) -> None:
        if self._answered_s is None:  # a hedge may be answered as well
            self._answered_s = perf_counter()

    def ended(self, size_bytes: int, *, is_whole: bool) -> None:
        times = self._start_s, self._answered_s, perf_counter()
        self._recorder.flight(Flight(*self._asked, size_bytes, *times, is_whole))
