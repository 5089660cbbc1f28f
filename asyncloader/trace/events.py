"""What is recorded of a pass. Times are of ``time.perf_counter()``, which processes of a machine share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

__all__ = ["Dropped", "Flight", "Mark", "Padded", "Slice", "Traced", "longest"]


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


class Mark(NamedTuple):
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
        return Dropped(
            self.slices + more.slices,
            self.seconds + more.seconds,
            self.flights + more.flights,
            self.marks + more.marks,
        )


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
    marks: Sequence[Mark] = ()
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


class Lasting(Protocol):
    """What has a beginning and an end."""

    @property
    def start_s(self) -> float: ...

    @property
    def end_s(self) -> float: ...


T = TypeVar("T", bound=Lasting)


def longest(events: Iterable[T], most: int) -> tuple[list[T], list[T]]:
    """The longest of the events, as many as there may be, and the others; both in the order they came in."""
    events = list(events)
    if len(events) <= most:
        return events, []
    shortest_first = sorted(range(len(events)), key=lambda place: events[place].end_s - events[place].start_s)
    left_out = set(shortest_first[: len(events) - most])
    kept = [event for place, event in enumerate(events) if place not in left_out]
    return kept, [events[place] for place in sorted(left_out)]
