"""What a traced pass records where it happens, until it is reported; by ``time.perf_counter()``."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias, TypeVar

from ..blocks.memory import StandIn

T = TypeVar("T")


class Slice(NamedTuple):
    """A thread was at one stage.

    Attributes:
        track: Which thread of its process: 0 for the one that makes batches; others help it.
        name: The stage.
        start_s: From when.
        end_s: Until when.
        about: Further details; empty for most.
    """

    track: int
    name: str
    start_s: float
    end_s: float
    about: Mapping[str, Any] = {}


class Flight(NamedTuple):
    """A part of a shard was requested.

    Attributes:
        shard: Its URL, redacted.
        offset: Of the first byte requested.
        asked_bytes: How many were requested, at most.
        size_bytes: How many came.
        start_s: When the request began.
        answered_s: When the answer began; None if none came.
        end_s: When the request was over.
        is_whole: Whether it succeeded: others failed, or were cancelled.
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


Event: TypeAlias = Slice | Flight | Incident | Padded


class Dropped(NamedTuple):
    """What was recorded and not kept, because a bound was reached.

    Attributes:
        slices: Of threads, the shortest ones.
        seconds: How long those were, together.
        flights: Parts, the shortest ones.
        marks: Incidents, the latest ones.
    """

    slices: int = 0
    seconds: float = 0.0
    flights: int = 0
    marks: int = 0

    def plus(self, events: Iterable[Event]) -> Dropped:
        """Together with those events."""
        slices, seconds, flights, marks = self
        for event in events:
            if isinstance(event, Slice):
                slices, seconds = slices + 1, seconds + event.end_s - event.start_s
            flights += isinstance(event, Flight)
            marks += isinstance(event, Incident)
        return Dropped(slices, seconds, flights, marks)


class Traced(NamedTuple):
    """What a process has recorded since its previous report.

    Attributes:
        until_s: When it reported.
        events: Of its threads; of each thread in order.
        dropped: What was not kept.
    """

    until_s: float
    events: Sequence[Event] = ()
    dropped: Dropped = Dropped()

    def shifted(self, by_s: float) -> Traced:
        """The same by another clock, which is so much ahead."""
        return Traced(self.until_s + by_s, [_shifted(event, by_s) for event in self.events], self.dropped)


def _shifted(event: Any, by_s: float) -> Any:
    """An event with all its times by another clock."""
    times = {name: at_s for name, at_s in event._asdict().items() if name.endswith("_s") and at_s is not None}
    return event._replace(**{name: at_s + by_s for name, at_s in times.items()})


def drop_shortest(events: list[T], most: int) -> list[T]:
    """Remove the shortest of the events where there are too many, and return them; all keep their order.

    Args:
        events: Any events. Those without a length count as long.
        most: How many to keep.
    """
    if len(events) <= most:
        return []

    def took_s(place: int) -> float:
        event = events[place]
        return event.end_s - event.start_s if isinstance(event, Slice | Flight) else math.inf

    left_out = set(sorted(range(len(events)), key=took_s)[: len(events) - most])
    short = [events[place] for place in sorted(left_out)]
    events[:] = [event for place, event in enumerate(events) if place not in left_out]
    return short


# Between two reports, mostly a tenth of a second. A reader would not look at more, and the batch beside the
# report would wait for them.
_MOST_TOLD = 2_000

# Of a thread that never waits for long: what comes beyond is not even compared.
_MOST_HELD = 20_000


class Recorder:
    """Holds what any thread of one process records until it is reported; bounded."""

    def __init__(self) -> None:
        # Appended to by any thread, and emptied by the one that reports.
        self._events: deque[Event] = deque()
        self._tracks = count()
        # Of what was dropped; re-entrant, for the finalizers of a garbage collection.
        self._lock = threading.RLock()
        self._dropped = Dropped()

    def new_track(self) -> int:
        """The number of a thread that begins to record."""
        return next(self._tracks)

    def record(self, event: Event) -> None:
        """Something has ended."""
        if len(self._events) < _MOST_HELD:
            self._events.append(event)
        else:
            with self._lock:
                self._dropped = self._dropped.plus([event])

    def batch(self, batch: Any) -> None:
        """A batch was made; recorded if it is padded."""
        real, cells = _cells_of(batch)
        if cells:
            self.record(Padded(perf_counter(), real, cells))

    def take(self, until_s: float) -> Traced:
        """All of it, for a report."""
        events = [self._events.popleft() for _ in range(len(self._events))]
        short = drop_shortest(events, _MOST_TOLD)
        with self._lock:
            dropped, self._dropped = self._dropped, Dropped()
        return Traced(until_s, events, dropped.plus(short))


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
