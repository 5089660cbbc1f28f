"""The meter of a pass that is traced: it also keeps what happened when, and writes it at the end."""

from __future__ import annotations

import math
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import RLock
from typing import Any

from .statistics import Meter, Statistics
from .stopwatch import STARTING, Spent, Stopwatch
from .trace_file import TraceTimeline, timeline, write_run
from .tracing import Dropped, Flight, Incident, Slice, Traced, longest

# What a pass counts in bins: numbers over time, and how long answers take. Pure.

# As many as a plot is wide, at most: half of that is left when the width doubles.
_MOST_BINS = 240

_FIRST_BIN_S = 0.05

# Twenty for a factor of ten: neighbours differ by an eighth.
_BINS_PER_DECADE = 20


class Series:
    """Sums by name over time, in a bounded number of bins, whose width doubles as the pass goes on.

    Args:
        start_s: When the first bin begins. What is told of before counts as then.
    """

    def __init__(self, start_s: float) -> None:
        self._start_s = start_s
        self.bin_s = _FIRST_BIN_S
        self._rows: defaultdict[str, list[float]] = defaultdict(list)

    def add(self, name: str, at_s: float, amount: float) -> None:
        """So much at one moment."""
        place = self._place(at_s)
        row = self._row(name, place)
        row[place] += amount

    def spread(self, name: str, start_s: float, end_s: float, amount: float) -> None:
        """So much, evenly from one moment to another."""
        start_s, end_s = max(start_s, self._start_s), max(end_s, self._start_s)
        if end_s <= start_s:
            return self.add(name, end_s, amount)
        last = self._place(end_s)
        first = self._place(start_s)
        row = self._row(name, last)
        for place in range(first, last + 1):
            begin_s = self._start_s + place * self.bin_s
            covered_s = min(end_s, begin_s + self.bin_s) - max(start_s, begin_s)
            row[place] += amount * max(covered_s, 0.0) / (end_s - start_s)
        return None

    def rows(self, end_s: float) -> dict[str, list[float]]:
        """The sums of every name, each with as many bins as there are up to ``end_s``."""
        bins = self._place(end_s) + 1
        return {name: row[:bins] + [0.0] * (bins - len(row)) for name, row in self._rows.items()}

    def as_dict(self, end_s: float) -> dict[str, Any]:
        """The rows, with the width of their bins."""
        rows = self.rows(end_s)  # which may have made them wider
        return {"bin_s": self.bin_s, "rows": rows}

    def _place(self, at_s: float) -> int:
        past_s = max(at_s - self._start_s, 0.0)
        while past_s >= self.bin_s * _MOST_BINS:
            self.bin_s *= 2
            for name, row in self._rows.items():
                self._rows[name] = [sum(row[place : place + 2]) for place in range(0, len(row), 2)]
        return int(past_s / self.bin_s)

    def _row(self, name: str, place: int) -> list[float]:
        row = self._rows[name]
        row += [0.0] * (place + 1 - len(row))
        return row


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
# written in half a second of a processor, since a loop that is left should be over within one. A batch is two
# slices of the consumer.
_MOST_OF_CONSUMER = 30_000
_MOST_SLICES = 60_000
_MOST_FLIGHTS = 10_000
_MOST_MARKS = 5_000


@dataclass(frozen=True)
class Tracing:
    """Where a trace goes, and what stands in it beside the events.

    Attributes:
        path: Of the file.
        about: What tells the pass from others: JSON values.
        judge: What the verdict is on statistics, and what it went by: JSON values.
        process: Number of the process that it is of, among all that read.
        whose: What that is called.
    """

    path: str
    about: Mapping[str, Any]
    judge: Callable[[Statistics], Mapping[str, Any]]
    process: int = 0
    whose: str = "rank 0"


class TracedMeter(Meter):
    """Counts one pass, and keeps its trace; see ``Meter``.

    Args:
        tracing: Where it goes.
        options: Those of ``Meter``.
    """

    closes_slowly = True

    def __init__(self, tracing: Tracing, **options: Any) -> None:
        super().__init__(**options)
        self._tracing = tracing
        self._began_unix_s = time.time()
        self._owner = os.getpid()
        # Workers' news may be taken in on another thread than the consumer's. Re-entrant, for the finalizers
        # of a garbage collection.
        self._keeping = RLock()
        self._timeline = TraceTimeline(workers=bool(tracing.about.get("num_workers")))
        self._series = Series(self.started_s)
        self._latencies = Latencies()
        self._told_s: dict[int, float] = {}
        self._dropped = Dropped()
        self._restarts = self._skips = 0
        self._is_written = False
        #: The consumer's slice that is going on.
        self._at, self._since_s = WAITING, self.started_s
        self._waited_until_s = self.started_s
        self._about: Mapping[str, Any] = {}

    # --- told of the consumer ---

    def wait(self) -> float:
        now_s = super().wait()
        self._turn(WAITING, now_s)
        return now_s

    def waited(self) -> None:
        super().waited()
        self._turn(STEP, self._waited_until_s)

    def count(self, samples: int, tokens: int, size_bytes: int, components: Sequence[int] = ()) -> float:
        now_s = super().count(samples, tokens, size_bytes, components)
        self._turn(STEP, now_s, {"batch": self.batches - 1, "samples": samples, "bytes": size_bytes})
        with self._keeping:
            for name, amount in (("batches", 1), ("samples", samples), ("size_bytes", size_bytes)):
                self._series.add(name, now_s, amount)
        return now_s

    def _add_wait(self, now_s: float) -> None:
        super()._add_wait(now_s)
        self._waited_until_s = now_s  # the slices end when what is counted does

    # --- told of those who make batches ---

    def forget(self, worker: int) -> None:
        super().forget(worker)
        with self._keeping:
            self._told_s.pop(worker, None)

    def spend(self, worker: int, spent: Spent) -> None:
        super().spend(worker, spent._replace(traced=None))
        traced: Traced | None = spent.traced
        if traced is not None:
            with self._keeping:
                self._take_in(worker, spent.seconds, traced)

    # --- its end ---

    def close(self) -> None:
        """Write the file, once.

        Raises:
            OSError: It cannot be written.
        """
        with self._keeping:
            if self._is_written or self._owner != os.getpid():
                return
            self._is_written = True
        told = self._tracing
        statistics = self.snapshot()
        end_s = self.started_s + statistics.elapsed_s
        with self._keeping:
            self._cut(end_s)
            self._limit(1.0)
            summary = {
                **told.about,
                "began_unix_s": self._began_unix_s,
                "statistics": statistics.as_dict(),
                **told.judge(statistics),
                "series": self._series.as_dict(end_s),
                "latency": self._latencies.as_dict(),
                "dropped": self._dropped._asdict(),
            }
            events = timeline(self._timeline, self.started_s, end_s, told.process, told.whose)
            write_run(told.path, events, summary)

    # --- the parts ---

    def _turn(self, stage: str, now_s: float, about: Mapping[str, Any] | None = None) -> None:
        """The consumer is at ``stage`` from now on, if it was not yet."""
        if stage == self._at:
            return
        with self._keeping:
            self._cut(now_s)
            self._at, self._about = stage, about or {}
            self._limit(2.0)

    def _cut(self, now_s: float) -> None:
        """What the consumer was at until now is kept."""
        now_s = max(now_s, self._since_s)
        if now_s > self._since_s:
            self._timeline.consumer.append(Slice(0, self._at, self._since_s, now_s, self._about))
        if self._at == WAITING:
            self._series.spread("waited_s", self._since_s, now_s, now_s - self._since_s)
        self._since_s = now_s

    def _take_in(self, worker: int, seconds: Mapping[str, float], traced: Traced) -> None:
        until_s = traced.until_s
        # A worker may have been replaced: then there is a gap.
        since_s = max(self._told_s.get(worker, 0.0), until_s - sum(seconds.values()))
        self._told_s[worker] = until_s
        for stage, spent_s in seconds.items():
            if stage != STARTING:
                self._series.spread(f"stage/{stage}", since_s, until_s, spent_s)
        self._timeline.slices.setdefault(worker, []).extend(traced.slices)
        for flight in traced.flights:
            self._take_in_flight(worker, flight)
        for batch in traced.padded:
            self._series.add("real_cells", batch.at_s, batch.real)
            self._series.add("cells", batch.at_s, batch.cells)
        self._note_changes(worker, until_s)
        for mark in traced.marks:
            self._mark(worker, mark)
        self._dropped = self._dropped.plus(traced.dropped)
        self._limit(2.0)

    def _take_in_flight(self, worker: int, flight: Flight) -> None:
        self._timeline.flights.append((worker, flight))
        took_s = flight.end_s - flight.start_s
        # On average, and whatever it was before the answer said how much there is.
        asked_bytes = flight.size_bytes if flight.is_whole else flight.asked_bytes
        self._series.spread("in_flight_byte_s", flight.start_s, flight.end_s, asked_bytes * took_s)
        begin_s = flight.start_s if flight.answered_s is None else flight.answered_s
        self._series.spread("received_bytes", begin_s, flight.end_s, flight.size_bytes)
        self._series.add("parts", flight.end_s, 1)
        if flight.answered_s is not None:
            self._latencies.add(flight.answered_s - flight.start_s)

    def _note_changes(self, worker: int, at_s: float) -> None:
        """Mark what is counted elsewhere, when it is first seen to have grown."""
        if (restarts := self.worker_restarts) > self._restarts:
            self._mark(worker, Incident("worker restarted", at_s, {"restarts": restarts}))
            self._restarts = restarts
        if (skips := self.skipped) > self._skips:
            self._mark(worker, Incident("skipped", at_s, {"skipped": skips}))
            self._skips = skips

    def _mark(self, worker: int, mark: Incident) -> None:
        self._series.add(f"mark/{mark.kind}", mark.at_s, 1)
        if len(self._timeline.marks) < _MOST_MARKS:
            self._timeline.marks.append((worker, mark))
        else:
            self._dropped = self._dropped.plus(Dropped(marks=1))

    def _limit(self, slack: float) -> None:
        """Drop the shortest of what is too much, by so many times: rarely, since it takes some time."""
        kept = self._timeline
        if len(kept.consumer) > _MOST_OF_CONSUMER * slack:
            kept.consumer, short = longest(kept.consumer, _MOST_OF_CONSUMER)
            self._drop_slices(short)
        if sum(map(len, kept.slices.values())) > _MOST_SLICES * slack:
            each = _MOST_SLICES // len(kept.slices)
            for worker, slices in kept.slices.items():
                kept.slices[worker], short = longest(slices, each)
                self._drop_slices(short)
        if (many := len(kept.flights)) > _MOST_FLIGHTS * slack:
            by_length = sorted(kept.flights, key=lambda each: each[1].end_s - each[1].start_s)
            kept.flights = sorted(by_length[many - _MOST_FLIGHTS :], key=lambda each: each[1].start_s)
            self._dropped = self._dropped.plus(Dropped(flights=many - _MOST_FLIGHTS))

    def _drop_slices(self, short: Sequence[Slice]) -> None:
        seconds = sum(each.end_s - each.start_s for each in short)
        self._dropped = self._dropped.plus(Dropped(slices=len(short), seconds=seconds))


def tell_rest(stopwatch: Stopwatch, counters: Meter) -> None:
    """Take in what a thread of this process has not told, which has ended."""
    if isinstance(counters, TracedMeter) and (spent := stopwatch.news(at_once=True)) is not None:
        counters.spend(0, spent)
