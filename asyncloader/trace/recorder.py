"""What one process has recorded and not yet told, from whatever thread."""

from __future__ import annotations

import threading
from collections import deque
from time import perf_counter
from typing import Any, TypeVar

from .events import Dropped, Flight, Mark, Padded, Slice, Traced, longest

__all__ = ["Recorder"]

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
        self._marks: deque[Mark] = deque()
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
            self._marks.append(Mark(kind, perf_counter(), about))
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
