"""The trace of one pass: it keeps what happened when, and writes it at the end."""

from __future__ import annotations

import math
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from threading import RLock
from typing import TYPE_CHECKING, Any

from .stopwatch import STARTING, Spent
from .trace_file import TraceTimeline, timeline, write_run
from .tracing import Dropped, Flight, Incident, Slice, Traced, drop_shortest

if TYPE_CHECKING:
    from .statistics import Statistics

# What a pass counts in bins: numbers over time, and how long answers take. Pure.

# As many as a plot is wide, at most: half of that is left when the width doubles.
_MOST_BINS = 240

_FIRST_BIN_S = 0.05

# Twenty for a factor of ten: neighbours differ by an eighth.
_BINS_PER_DECADE = 20


class Series:
    """Sums by name over time, in a bounded number of bins, whose width doubles as the pass goes on.

    Args:
        start_s: When the first bin begins. Earlier amounts count as then.
    """

    def __init__(self, start_s: float) -> None:
        self._start_s = start_s
        self.bin_s = _FIRST_BIN_S
        self._rows: defaultdict[str, list[float]] = defaultdict(lambda: [0.0] * _MOST_BINS)

    def add(self, name: str, at_s: float, amount: float) -> None:
        """So much at one moment."""
        place = self._place(at_s)  # before the row: it may make the bins wider
        self._rows[name][place] += amount

    def spread(self, name: str, start_s: float, end_s: float, amount: float) -> None:
        """So much, evenly from one moment to another."""
        start_s, end_s = max(start_s, self._start_s), max(end_s, self._start_s)
        if end_s <= start_s:
            self.add(name, end_s, amount)
            return
        last = self._place(end_s)  # before the first place and the row: it may make the bins wider
        row = self._rows[name]
        for place in range(self._place(start_s), last + 1):
            begin_s = self._start_s + place * self.bin_s
            covered_s = min(end_s, begin_s + self.bin_s) - max(start_s, begin_s)
            row[place] += amount * max(covered_s, 0.0) / (end_s - start_s)

    def as_dict(self, end_s: float) -> dict[str, Any]:
        """The sums of every name, each with as many bins as there are up to ``end_s``, and their width."""
        bins = self._place(end_s) + 1  # which may have made them wider
        return {"bin_s": self.bin_s, "rows": {name: row[:bins] for name, row in self._rows.items()}}

    def _place(self, at_s: float) -> int:
        past_s = max(at_s - self._start_s, 0.0)
        while past_s >= self.bin_s * _MOST_BINS:
            self.bin_s *= 2
            for name, row in self._rows.items():
                pairs = [sum(row[place : place + 2]) for place in range(0, _MOST_BINS, 2)]
                self._rows[name] = pairs + [0.0] * len(pairs)
        return int(past_s / self.bin_s)


class Latencies:
    """Counts times by their order of magnitude, in bins of a logarithmic scale."""

    def __init__(self) -> None:
        self._bins: Counter[int] = Counter()

    def add(self, seconds: float) -> None:
        """One more."""
        self._bins[math.floor(math.log10(max(seconds, 1e-6)) * _BINS_PER_DECADE)] += 1

    def as_dict(self) -> dict[str, Any]:
        """Counts by bin, number ``n`` of which begins at ``10 ** (n / bins_per_decade)`` s; percentiles."""
        return {
            "bins_per_decade": _BINS_PER_DECADE,
            "bins": {str(number): self._bins[number] for number in sorted(self._bins)},
            "count": self._bins.total(),
            **{f"p{percent}_s": self._percentile(percent / 100) for percent in (50, 95, 99)},
        }

    def _percentile(self, part: float) -> float | None:
        """As if the times of a bin were spread evenly over it."""
        wanted, before = part * self._bins.total(), 0
        for number in sorted(self._bins):
            count = self._bins[number]
            if before + count >= wanted:
                return float(10 ** ((number + (wanted - before) / count) / _BINS_PER_DECADE))
            before += count
        return None


WAITING = "waiting for a batch"
STEP = "training step"

# Of each: what is beyond is dropped, the shortest first, and counted. A file then has 20 MB at most and is
# written in half a second of processor time, since a loop that is left should be over within one. A batch is
# two slices of the consumer.
_MOST_OF_CONSUMER = 30_000
_MOST_SLICES = 60_000
_MOST_FLIGHTS = 10_000
_MOST_MARKS = 5_000


class Trace:
    """What happened in one pass, as its ``Meter`` reports it; written to a file at the end.

    Args:
        path: Of the file.
        about: What distinguishes the pass from others: JSON values.
        judge: Returns the verdict on statistics, and what it is based on: JSON values.
        process: Number of the process that reads, among all of them.
        whose: What that is called.

    Attributes:
        start_s: When the pass began, by ``time.perf_counter()``.
    """

    def __init__(
        self,
        path: str,
        about: Mapping[str, Any],
        judge: Callable[[Statistics], Mapping[str, Any]],
        process: int = 0,
        whose: str = "rank 0",
    ) -> None:
        self._path, self._about, self._judge = path, about, judge
        self._process, self._whose = process, whose
        self.start_s = time.perf_counter()
        self._began_unix_s = time.time()
        self._owner = os.getpid()
        # Reports of workers may arrive on another thread than the consumer's. Re-entrant, for the finalizers
        # of a garbage collection.
        self._lock = RLock()
        self._timeline = TraceTimeline(workers=bool(about.get("num_workers")))
        self._series = Series(self.start_s)
        self._latencies = Latencies()
        self._reported_s: dict[int, float] = {}
        self._dropped = Dropped()
        self._restarts = self._skipped = 0
        self._is_written = False
        #: The consumer's current slice.
        self._at, self._since_s = WAITING, self.start_s
        self._details: Mapping[str, Any] = {}

    def wait(self, now_s: float) -> None:
        """The consumer begins to wait."""
        self._turn(WAITING, now_s)

    def step(self, now_s: float) -> None:
        """It has waited, and has no batch to count."""
        self._turn(STEP, now_s)

    def count(self, now_s: float, batch: int, samples: int, size_bytes: int) -> None:
        """A batch was delivered, and the training step begins."""
        self._turn(STEP, now_s, {"batch": batch, "samples": samples, "bytes": size_bytes})
        with self._lock:
            for name, amount in (("batches", 1), ("samples", samples), ("size_bytes", size_bytes)):
                self._series.add(name, now_s, amount)

    def forget(self, worker: int) -> None:
        """A worker's earlier reports were of a pass before."""
        with self._lock:
            self._reported_s.pop(worker, None)

    def spend(self, worker: int, spent: Spent, restarts: int, skipped: int) -> None:
        """A report of a worker.

        Args:
            worker: Its number.
            spent: The report.
            restarts: How many workers were restarted by now.
            skipped: How many samples were skipped by now.
        """
        if spent.traced is not None:
            with self._lock:
                self._note_changes(worker, spent.traced.until_s, restarts, skipped)
                self._take_in(worker, spent.seconds, spent.traced)

    def write(self, snapshot: Callable[[], Statistics]) -> None:
        """Write the file, once, and only in the process that the pass began in.

        Args:
            snapshot: Returns the statistics of the pass.

        Raises:
            OSError: It cannot be written.
        """
        with self._lock:
            if self._is_written or self._owner != os.getpid():
                return
            self._is_written = True
        statistics = snapshot()
        end_s = self.start_s + statistics.elapsed_s
        with self._lock:
            self._cut(end_s)
            self._limit(1.0)
            summary = {
                **self._about,
                "began_unix_s": self._began_unix_s,
                "statistics": statistics.as_dict(),
                **self._judge(statistics),
                "series": self._series.as_dict(end_s),
                "latency": self._latencies.as_dict(),
                "dropped": self._dropped._asdict(),
            }
            events = timeline(self._timeline, self.start_s, end_s, self._process, self._whose)
            write_run(self._path, events, summary)

    # --- the parts ---

    def _turn(self, stage: str, now_s: float, about: Mapping[str, Any] | None = None) -> None:
        """The consumer enters ``stage``, if it is not there yet."""
        if stage == self._at:
            return
        with self._lock:
            self._cut(now_s)
            self._at, self._details = stage, about or {}
            self._limit(2.0)

    def _cut(self, now_s: float) -> None:
        """Keep what the consumer was at until now."""
        now_s = max(now_s, self._since_s)
        if now_s > self._since_s:
            self._timeline.consumer.append(Slice(0, self._at, self._since_s, now_s, self._details))
        if self._at == WAITING:
            self._series.spread("waited_s", self._since_s, now_s, now_s - self._since_s)
        self._since_s = now_s

    def _take_in(self, worker: int, seconds: Mapping[str, float], traced: Traced) -> None:
        until_s = traced.until_s
        # A worker may have been replaced: then there is a gap.
        since_s = max(self._reported_s.get(worker, 0.0), until_s - sum(seconds.values()))
        self._reported_s[worker] = until_s
        for stage, spent_s in seconds.items():
            if stage != STARTING:
                self._series.spread(f"stage/{stage}", since_s, until_s, spent_s)
        slices = self._timeline.slices.setdefault(worker, [])
        for event in traced.events:
            if isinstance(event, Slice):
                slices.append(event)
            elif isinstance(event, Flight):
                self._take_in_flight(worker, event)
            elif isinstance(event, Incident):
                self._mark(worker, event)
            else:
                self._series.add("real_cells", event.at_s, event.real)
                self._series.add("cells", event.at_s, event.cells)
        self._dropped = Dropped._make(map(sum, zip(self._dropped, traced.dropped, strict=True)))
        self._limit(2.0)

    def _take_in_flight(self, worker: int, flight: Flight) -> None:
        self._timeline.flights.setdefault(worker, []).append(flight)
        took_s = flight.end_s - flight.start_s
        # On average, whatever it was before the answer said how much there is.
        asked_bytes = flight.size_bytes if flight.is_whole else flight.asked_bytes
        self._series.spread("in_flight_byte_s", flight.start_s, flight.end_s, asked_bytes * took_s)
        begin_s = flight.start_s if flight.answered_s is None else flight.answered_s
        self._series.spread("received_bytes", begin_s, flight.end_s, flight.size_bytes)
        self._series.add("parts", flight.end_s, 1)
        if flight.answered_s is not None:
            self._latencies.add(flight.answered_s - flight.start_s)

    def _note_changes(self, worker: int, at_s: float, restarts: int, skipped: int) -> None:
        """Mark what is counted elsewhere, when it is first seen to have grown."""
        if restarts > self._restarts:
            self._mark(worker, Incident("worker restarted", at_s, {"restarts": restarts}))
            self._restarts = restarts
        if skipped > self._skipped:
            self._mark(worker, Incident("skipped", at_s, {"skipped": skipped}))
            self._skipped = skipped

    def _mark(self, worker: int, mark: Incident) -> None:
        self._series.add(f"mark/{mark.kind}", mark.at_s, 1)
        if len(self._timeline.marks) < _MOST_MARKS:
            self._timeline.marks.append((worker, mark))
        else:
            self._dropped = self._dropped.plus([mark])

    def _limit(self, slack: float) -> None:
        """Drop the shortest of what is too much, by so many times: rarely, since it takes some time."""
        kept = self._timeline
        self._limit_each([kept.consumer], _MOST_OF_CONSUMER, slack)
        self._limit_each(kept.slices.values(), _MOST_SLICES, slack)
        self._limit_each(kept.flights.values(), _MOST_FLIGHTS, slack)

    def _limit_each(self, parts: Collection[list[Any]], most: int, slack: float) -> None:
        """The same for events of one kind; each worker keeps an equal number."""
        if sum(map(len, parts)) > most * slack:
            for events in parts:
                self._dropped = self._dropped.plus(drop_shortest(events, most // len(parts)))
