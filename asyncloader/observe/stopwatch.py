"""Where the time of a thread that makes batches goes: each moment belongs to one stage.

A stage costs two readings of a clock for each block and each batch, a few tenths of a microsecond, and
nothing for a sample.
"""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping
from time import perf_counter, thread_time
from typing import Any, NamedTuple, TypeVar
from weakref import WeakSet

from ..flow.process import read_delay_s
from .tracing import Recorder, Slice, Traced

T = TypeVar("T")

#: Nothing was requested yet: a worker is set up.
STARTING = "starting"
#: The thread waits for bytes.
STORE = "store"
#: Bytes become samples.
DECODE = "decode"
#: Samples are put together.
BATCHING = "batching"
#: They become a batch.
COLLATE = "collate"
#: A worker sends the batch.
SENDING = "sending"
#: The output buffer is full: the thread waits for the consumer, or for another worker's turn.
IDLE = "idle"
#: The thread was ready to run, and the machine or the container's quota did not let it.
PROCESSOR = "processor"
#: Of torch's kinds: the indices of a batch are drawn.
SAMPLER = "sampler"
#: Of torch's kinds without workers: a batch is copied to page-locked memory.
PINNING = "pinning"
#: Of torch's kinds with workers: the loop unpacks what they sent.
RECEIVING = "receiving"

# What verdicts and pages call a stage, where that is not its key.
_NAMES = {
    STORE: "waiting for bytes",
    DECODE: "decoding",
    COLLATE: "collate_fn",
    PROCESSOR: "waiting for a processor",
    SAMPLER: "drawing indices",
    RECEIVING: "unpacking",
}

# A report is made so rarely that it costs nothing.
_REPORT_S = 0.1

# A shorter wait is only for another thread to pass on what it has.
_HANDOVER_S = 0.0005

# Threads whose waits for a processor are remembered from one report to the next.
_MOST_THREADS = 1_000


def name_of(stage: str) -> str:
    """A stage as verdicts and pages call it; an operator or a dataset's own work keeps its name."""
    return _NAMES.get(stage, stage)


def summed(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Seconds by stage, of several threads or times together."""
    seconds: dict[str, float] = {}
    for part in parts:
        for stage, spent_s in part.items():
            seconds[stage] = seconds.get(stage, 0.0) + spent_s
    return seconds


def shares_of(makers: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The parts of the time of those that make batches, the largest first; empty if there is no time.

    Args:
        makers: What each has spent, in seconds by stage. The start is left out: it is over with the first
            batch.
    """
    seconds = summed(makers)
    seconds.pop(STARTING, None)
    total_s = sum(seconds.values())
    by_time = sorted(seconds, key=seconds.__getitem__, reverse=True)
    return {stage: seconds[stage] / total_s for stage in by_time} if total_s else {}


def steady_rate(count: float, batches: int, elapsed_s: float, first_batch_s: float | None) -> float:
    """How much comes in a second after the first batch; of a pass of one batch, from its beginning.

    Args:
        count: Of what is in the batches.
        batches: Delivered.
        elapsed_s: Of the pass.
        first_batch_s: When the first batch was delivered.
    """
    if batches < 2 or first_batch_s is None:
        return count / max(elapsed_s, 1e-9)
    return count * (batches - 1) / batches / max(elapsed_s - first_batch_s, 1e-9)


class Spent(NamedTuple):
    """What one process has spent on making batches.

    Attributes:
        seconds: By stage, of one thread: together they are the time that has passed.
        calls: Of functions that run on threads of their own, by stage: how long the calls took, all together,
            their processor time, and how long those threads waited for a processor.
        wants_memory: Whether the limit on memory kept the process from reading further ahead.
        cpu_s: Processor time of the thread, without calls on threads of their own.
        traced: When that was, in a pass that is traced.
    """

    seconds: Mapping[str, float]
    calls: Mapping[str, tuple[float, float, float]]
    wants_memory: bool = False
    cpu_s: float = 0.0
    traced: Traced | None = None

    def plus(self, more: Spent) -> Spent:
        """Together with what the same process has spent afterwards."""
        calls = dict(self.calls)
        for stage, spent in more.calls.items():
            _add(calls, stage, spent)
        return Spent(summed([self.seconds, more.seconds]), calls, more.wants_memory, self.cpu_s + more.cpu_s)


class Stopwatch:
    """Divides one thread's time among the stages. Only that thread uses it, except for ``call``.

    Args:
        since_s: When the first stage began, by ``time.perf_counter()``; None for now.
        recorder: Receives each stretch of time too, where the pass is traced.
    """

    def __init__(self, since_s: float | None = None, recorder: Recorder | None = None) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._stage = STARTING
        self._since_s = perf_counter() if since_s is None else since_s
        self.recorder = recorder
        self._track = 0 if recorder is None else recorder.new_track()
        self._recorded_s = self._since_s
        self.move_here()
        self._reported_s = -math.inf  # the first report comes with the first batch
        self._delays_s: dict[int, float] = {}  # by thread, as they were when last read
        self._helpers: WeakSet[Stopwatch] = WeakSet()  # each repetition of the data may have a new one
        self._calls: dict[str, tuple[float, float, float]] = {}
        self._callers: dict[int, str] = {}
        #: The thread that fetches the bytes that this one waits for, by the system's number.
        self.fetcher: int | None = None
        self._lock = threading.RLock()  # for calls; re-entrant, for the finalizers of a garbage collection

    def move_here(self) -> None:
        """This is the thread whose time is divided. Its earlier processor time does not count."""
        self._thread = threading.get_native_id()
        self._cpu_reported_s = thread_time()

    def enter(self, stage: str, now_s: float | None = None) -> str:
        """The thread enters ``stage``; returns the stage that it was at, to come back to.

        Args:
            stage: Where it is.
            now_s: What ``time.perf_counter()`` has just returned, if the caller knows.
        """
        former = self._stage
        if now_s is None:
            now_s = perf_counter()
        self._seconds[former] += now_s - self._since_s
        self._stage, self._since_s = stage, now_s
        if self.recorder is not None and former != stage:
            self._record(self.recorder, former)
        return former

    def waited(self, stage: str, since_s: float) -> float:
        """The thread has waited since then, for ``stage`` unless the wait was too short; returns how long."""
        now_s = perf_counter()
        if now_s - since_s > _HANDOVER_S:
            self.enter(self.enter(stage, since_s), now_s)
        return now_s - since_s

    def timed(self, stage: str, items: Generator[T, None, None]) -> Generator[T, None, None]:
        """The same items; waits for them are time at ``stage``, except for stages that ``items`` enters."""
        enter, next_item = self.enter, items.__next__
        try:
            while True:
                former = enter(stage)
                try:
                    held = [next_item()]
                except StopIteration:
                    return
                finally:
                    enter(former)
                yield held.pop()  # no item is kept alive meanwhile
        finally:
            items.close()

    def helper(self) -> Stopwatch:
        """One for a thread that decodes ahead for this one: waits for it count as the stages it is at."""
        helper = Stopwatch(recorder=self.recorder)
        self._helpers.add(helper)
        return helper

    def call(self, stage: str, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function, in any thread, and count what it takes beside the stages."""
        began_s, began_cpu_s = perf_counter(), thread_time()
        try:
            return function(*arguments)
        finally:
            spent = perf_counter() - began_s, thread_time() - began_cpu_s, 0.0
            caller = threading.get_native_id()
            with self._lock:
                _add(self._calls, stage, spent)
                self._callers[caller] = stage

    def has_news(self, now_s: float) -> bool:
        """Whether a report is due."""
        return now_s - self._reported_s >= _REPORT_S

    def news(self, *, at_once: bool = False, cpu_s: float | None = None) -> Spent | None:
        """What was spent since the previous report; None if that was not long ago.

        Args:
            at_once: Report in any case.
            cpu_s: How much processor time the thread used for batches; by default all that it used.
        """
        if not at_once and not self.has_news(self._since_s):
            return None
        self.enter(self._stage)
        self._reported_s = self._since_s
        seconds, self._seconds = self._seconds, defaultdict(float)
        self._share_out(seconds)
        with self._lock:
            calls, self._calls = self._calls, {}
            callers, self._callers = self._callers, {}
        used_s = self._cpu_news_s()
        part = 1.0 if cpu_s is None or not used_s else min(cpu_s / used_s, 1.0)
        self._move_delays(seconds, calls, callers, part)
        traced = None
        if self.recorder is not None:
            self._record(self.recorder, self._stage)
            traced = self.recorder.take(self._since_s)
        return Spent(dict(seconds), calls, cpu_s=used_s if cpu_s is None else cpu_s, traced=traced)

    def forget(self) -> None:
        """Discard unreported time; the next batch comes with a report."""
        self.news(at_once=True)
        self._reported_s = -math.inf

    def _record(self, recorder: Recorder, stage: str) -> None:
        recorder.record(Slice(self._track, stage, self._recorded_s, self._since_s))
        self._recorded_s = self._since_s

    def _cpu_news_s(self) -> float:
        if threading.get_native_id() != self._thread:  # it has ended, and another thread reports for it
            return 0.0
        before_s, self._cpu_reported_s = self._cpu_reported_s, thread_time()
        return self._cpu_reported_s - before_s

    def _move_delays(
        self,
        seconds: dict[str, float],
        calls: dict[str, tuple[float, float, float]],
        callers: Mapping[int, str],
        part: float,
    ) -> None:
        """Move the time in which threads were ready and had no processor from their stages to ``PROCESSOR``.

        Args:
            seconds: By stage.
            calls: Of functions on threads of their own, by stage; the waits of those threads are added.
            callers: These threads, with their stages.
            part: How much of the thread's own delay counts.
        """
        for thread, stage in callers.items():
            took_s, cpu_s, waited_s = calls[stage]
            delay_s = self._delay_news_s(thread, is_new=len(self._delays_s) < _MOST_THREADS)
            calls[stage] = took_s, cpu_s, min(waited_s + delay_s, took_s)
        moved_s = {
            stage: seconds.get(stage, 0.0) * waited_s / took_s
            for stage, (took_s, _, waited_s) in calls.items()
            if took_s
        }
        if self.fetcher is not None:
            moved_s[STORE] = min(self._delay_news_s(self.fetcher), seconds.get(STORE, 0.0))
        work_s = {
            stage: spent_s
            for stage, spent_s in seconds.items()
            if stage not in moved_s and stage not in (IDLE, STARTING, STORE)
        }
        own_s = part * self._delay_news_s(self._thread) / max(sum(work_s.values()), 1e-9)
        moved_s |= {stage: spent_s * min(own_s, 1.0) for stage, spent_s in work_s.items()}
        if any(moved_s.values()):
            for stage, waited_s in moved_s.items():
                seconds[stage] = max(seconds.get(stage, 0.0) - waited_s, 0.0)  # rounded, it may be less
            seconds[PROCESSOR] = seconds.get(PROCESSOR, 0.0) + sum(moved_s.values())

    def _delay_news_s(self, thread: int, *, is_new: bool = False) -> float:
        """How long a thread waited for a processor since the previous call; if it ``is_new``, in all."""
        now_s = read_delay_s(thread)
        before_s = self._delays_s.get(thread, 0.0 if is_new else now_s)
        if len(self._delays_s) >= _MOST_THREADS:
            self._delays_s.clear()  # a dataset may repeat for ever, each time with new threads
        self._delays_s[thread] = now_s
        return max(now_s - before_s, 0.0)

    def _share_out(self, seconds: dict[str, float]) -> None:
        """Count the time that this thread waited for its helpers as the stages these were at."""
        theirs = {STORE: 0.0, DECODE: 0.0}
        for helper in self._helpers:
            for stage in theirs:
                theirs[stage] += helper._seconds.get(stage, 0.0)  # as of its latest change of stage
        total_s = sum(theirs.values())
        if total_s:
            waited_s = seconds.pop(DECODE, 0.0)
            for stage, spent_s in theirs.items():
                seconds[stage] += waited_s * spent_s / total_s


def _add(calls: dict[str, tuple[float, float, float]], stage: str, more: tuple[float, float, float]) -> None:
    took_s, cpu_s, waited_s = calls.get(stage, (0.0, 0.0, 0.0))
    calls[stage] = took_s + more[0], cpu_s + more[1], waited_s + more[2]
