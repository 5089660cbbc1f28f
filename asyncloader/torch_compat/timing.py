"""Where the time of torch's loop and of its workers goes, and what they have made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sized
from functools import partial
from random import Random
from time import perf_counter, thread_time
from typing import Any, NamedTuple

from torch.utils.data import Subset

from ..blocks import bytes_of
from ..blocks.memory import borrowing
from ..observe.statistics import Meter
from ..observe.stopwatch import COLLATE, IDLE, PINNING, RECEIVING, SAMPLER, Spent, Stopwatch
from ..observe.tracing import Recorder
from .adapt import Adapter, is_iterable
from .reading import Whereabouts, whereabouts_in_worker


class Worked(NamedTuple):
    """What a worker reports beside a batch.

    Attributes:
        samples: In the batch.
        size_bytes: Likewise.
        spent: Where its time has gone since the previous report; now and then.
        is_batch: Whether there is one, rather than an error, or the worker's end.
    """

    samples: int = 0
    size_bytes: int = 0
    spent: Spent | None = None
    is_batch: bool = False


#: Reported where nothing was made; one object, since each batch takes its place.
NOTHING = Worked()


class WorkerTimer:
    """Divides the time of a worker, which fetches and collates.

    Args:
        stage: That of the dataset.
        stopwatch: Of that thread.
    """

    def __init__(self, stage: str, stopwatch: Stopwatch) -> None:
        self._stage = stage
        self._made = NOTHING
        self._has_begun = False
        self.stopwatch = stopwatch

    def fetch(self) -> None:
        """The dataset works, until a batch is collated."""
        self.stopwatch.enter(self._stage)
        if not self._has_begun:
            self._has_begun = True
            self.stopwatch.move_here()

    def rest(self) -> None:
        """There is no task. Before the first one, this is still the start."""
        if self._has_begun:
            self.stopwatch.enter(IDLE)

    def collate(self) -> None:
        """The dataset has returned what becomes a batch."""
        self.stopwatch.enter(COLLATE)

    def made(self, batch: Any, samples: int) -> None:
        """There is a batch, of so many samples."""
        if self.stopwatch.recorder is not None:
            self.stopwatch.recorder.batch(batch)
        self._made = Worked(samples, _bytes_in(batch), is_batch=True)

    def worked(self) -> Worked:
        """What to report beside the batch, once."""
        made, self._made = self._made, NOTHING
        spent = self.stopwatch.news(at_once=not made.is_batch)
        return made if spent is None else made._replace(spent=spent)


# The timer of this process, if it is a worker: one process is one worker, for life. torch passes the
# transport and collate_fn separately, so they share this module global.
_of_worker: WorkerTimer | None = None


def time_worker(stage: str, began_s: float, is_traced: bool) -> WorkerTimer:
    """Begin to time this process, a worker whose start began at a time by ``perf_counter()``."""
    global _of_worker
    # That clock is one for all processes of the system, so that the start is included.
    _of_worker = WorkerTimer(stage, Stopwatch(began_s, Recorder() if is_traced else None))
    return _of_worker


class Collating:
    """The ``collate_fn`` that torch is given: the user's, timed; in workers with lent memory.

    Args:
        collate_fn: The user's.
        timer: Of the loop's own thread; None for that of the worker it is called in.
        is_batch: Whether it is given lists of samples.
        whereabouts: Of a dataset in the loop's process whose state is kept with its batches.
    """

    def __init__(
        self,
        collate_fn: Callable[[Any], Any],
        timer: WorkerTimer | None,
        is_batch: bool,
        whereabouts: Whereabouts | None,
    ) -> None:
        self._collate_fn = collate_fn
        self._timer = timer
        self._is_batch = is_batch
        self._whereabouts = whereabouts

    def __call__(self, samples: Any) -> Any:
        timer = self._timer or _of_worker
        assert timer is not None, "a worker is timed before it collates"
        timer.collate()
        count = _samples_in(samples) if self._is_batch else 1  # before collate_fn, which may change them
        whereabouts = whereabouts_in_worker() if self._timer is None else self._whereabouts
        if whereabouts is not None:
            whereabouts.begin_batch(samples)
        if self._timer is None:
            with borrowing():
                batch = self._collate_fn(samples)
        else:
            batch = self._collate_fn(samples)
        timer.made(batch, count)
        if whereabouts is not None:
            batch = whereabouts.tag(batch)
        return batch


def _samples_in(samples: Any) -> int:
    """How many samples a dataset has returned for a batch, which does not have to be a list."""
    if isinstance(samples, list):  # nearly all; the checks of protocols take half a microsecond
        return len(samples)
    if isinstance(samples, Mapping):
        samples = next(iter(samples.values()), ())
    return len(samples) if isinstance(samples, Sized) else 0


def _bytes_in(batch: Any) -> int:
    """As ``bytes_of``; 0 where that fails, so that counting never breaks a user's batch."""
    try:
        return bytes_of(batch)
    except Exception:
        return 0


# To measure a wait, with two readings of that clock, takes two microseconds: about one in so much time.
_MEASURE_S = 0.002

# Measured waits that count for the mean of all.
_MEAN_OF = 64


class InlineTimer(WorkerTimer):
    """Divides the time of a loop without workers, which makes each batch itself while its consumer waits.

    The stages have all of the waits. The thread's own clock is a system call; it is read in some waits only,
    which stand for the others. These are drawn: if each fiftieth batch is unlike the others, a fixed step
    might miss it.

    Args:
        stage: That of the dataset.
        stopwatch: Of the loop's thread; nothing else may use it.
        pins: Whether batches are pinned.
    """

    def __init__(self, stage: str, stopwatch: Stopwatch, pins: bool) -> None:
        super().__init__(stage, stopwatch)
        self._pins = pins
        self._draw = Random().random  # the user's own generators stay as they are
        self._since_s: float | None = None
        self._mean_s = _MEASURE_S
        self._cpu_before_s: float | None = None
        self._waits_s = self._measured_s = self._cpu_s = 0.0
        stopwatch.enter(IDLE)

    def made(self, batch: Any, samples: int) -> None:
        super().made(batch, samples)
        if self._pins:  # which comes next
            self.stopwatch.enter(PINNING)

    def wait(self, now_s: float) -> None:
        """The consumer waits, at first for the sampler; ``now_s`` is of ``time.perf_counter()``."""
        self._since_s = now_s
        self.stopwatch.enter(SAMPLER, now_s)
        if self._draw() * _MEASURE_S < self._mean_s:
            self._cpu_before_s = thread_time()

    def waited(self, now_s: float) -> Spent | None:
        """The wait is over, with or without a batch; returns a report, now and then."""
        if self._since_s is None:
            return None
        self.stopwatch.enter(IDLE, now_s)
        took_s = now_s - self._since_s
        self._since_s = None
        self._waits_s += took_s
        if self._cpu_before_s is None:
            return None
        self._cpu_s += thread_time() - self._cpu_before_s
        self._cpu_before_s = None
        self._measured_s += took_s
        self._mean_s += (took_s - self._mean_s) / _MEAN_OF
        return self._news() if self.stopwatch.has_news(now_s) else None

    def end(self) -> Spent | None:
        """The pass is over, maybe in a wait; returns all that was not reported."""
        self._cpu_before_s = None  # this may be another thread
        return self._news(at_once=True)

    def worked(self) -> Worked:
        made, self._made = self._made, NOTHING
        return made

    def _news(self, *, at_once: bool = False) -> Spent | None:
        # The thread's other work is the consumer's.
        cpu_s = self._cpu_s / self._measured_s * self._waits_s if self._measured_s else 0.0
        self._waits_s = 0.0  # the other two go on: the more was measured, the better it stands for the rest
        return self.stopwatch.news(at_once=at_once, cpu_s=cpu_s)


# What is counted of torch's loop: batches as they are delivered, and where the time goes, in workers too.


class LoopStats:
    """Counts the passes of one iterator of torch's.

    Args:
        begin: Makes the counters of the next pass.
        stage: See ``stage_of``.
        num_workers: How many there are.
        pins: Whether batches are pinned.
        is_traced: Whether passes are traced.
    """

    def __init__(
        self, begin: Callable[[], Meter], stage: str, num_workers: int, pins: bool, is_traced: bool
    ) -> None:
        self._begin = begin
        self._counters = begin()
        self._is_over = False
        self._came: dict[Any, tuple[int, Worked]] = {}
        self._stage, self._is_traced = stage, is_traced
        #: Of this thread, where there are no workers.
        self.laps = None
        if not num_workers:
            self.laps = InlineTimer(stage, Stopwatch(recorder=Recorder() if is_traced else None), pins)

    def watch_from(self, began_s: float) -> Callable[[], WorkerTimer]:
        """What begins to time a worker, called in it; its start began at that time."""
        return partial(time_worker, self._stage, began_s, self._is_traced)

    def begin(self) -> None:
        """Another pass begins, with the same workers."""
        self.end()
        self._counters = self._begin()
        self._came.clear()
        self._is_over = False

    def end(self) -> None:
        """The pass is over, or is no longer read. Idempotent."""
        if self.laps is not None and not self._is_over:
            spent = self.laps.end()
            if spent is not None:
                self._counters.spend(0, spent)
        self._is_over = True
        self._counters.end()
        self._counters.close()

    # --- called by the loop ---

    def wait(self) -> None:
        """The consumer waits for a batch: without workers the sampler comes next."""
        now_s = self._counters.wait()
        if self.laps is not None:
            self.laps.wait(now_s)

    def waited(self) -> None:
        """The wait is over, with or without a batch."""
        self._counters.waited()
        if self.laps is not None and not self._is_over:
            spent = self.laps.waited(perf_counter())
            if spent is not None:
                self._counters.spend(0, spent)

    def drew(self, since_s: float) -> None:
        """The sampler has drawn what comes next, which it began at a time by ``time.perf_counter()``."""
        if self.laps is not None:
            self.laps.fetch()
        else:
            self._counters.work_in_loop(SAMPLER, perf_counter() - since_s)

    def deliver(self, number: int | None) -> None:
        """A batch is delivered to the consumer.

        Args:
            number: Of torch's task, if batches come in the order of those.
        """
        if self.laps is not None:
            worked = self.laps.worked()
        else:
            came = self._came
            key = next(iter(came), None) if number is None else number
            worked = came.pop(key, (0, NOTHING))[1]
        self._counters.count(worked.samples, 0, worked.size_bytes)

    # --- called by the transport, in the thread that receives ---

    def hear(self, worker: int, number: Any, worked: Worked, took_s: float) -> None:
        """A worker's result has come.

        Args:
            worker: Its number.
            number: Of torch's task; something else where the worker says that it begins anew.
            worked: Its report.
            took_s: How long it took to unpack.
        """
        self._counters.work_in_loop(RECEIVING, took_s)
        if not isinstance(number, int):  # its earlier reports are of a pass that was left
            self._counters.forget(worker)
            for stale in [key for key, (whose, _) in self._came.items() if whose == worker]:
                del self._came[stale]
            return
        if worked.spent is not None:
            self._counters.spend(worker, worked.spent)
        if worked.is_batch:
            self._came[number] = worker, worked


def stage_of(dataset: Any) -> str:
    """What a dataset's own work is called: ``"Images.__getitem__"``."""
    while isinstance(dataset, Adapter | Subset):
        dataset = dataset.dataset
    if is_iterable(dataset):
        method = "__iter__" if hasattr(type(dataset), "__iter__") else "__aiter__"
    else:
        method = "__getitems__" if getattr(dataset, "__getitems__", None) else "__getitem__"
    return f"{type(dataset).__name__}.{method}"
