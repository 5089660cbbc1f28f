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

    Attributes:
        stopwatch: Likewise.
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
        timer: InlineTimer | None,
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
        if self._timer is not None and self._timer.pins:
            self._timer.pin()
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


# Where the waits of a loop without workers go, which makes each batch itself while its consumer waits.

# To measure a wait, with two readings of that clock, takes two microseconds.
_MEASURE_S = 0.002


class InlineTimer(WorkerTimer):
    """Sums up how long batches are at each stage, and passes the sums to the stopwatch now and then.

    A batch of a few numbers is made in some tens of microseconds; entering each stage in a stopwatch would
    take more than a hundredth of that. As the stages come in the same order for each batch, it is enough to
    read the clock where they begin. Each batch is in the sums, so that a slow one among many is included.

    The thread's own clock is a system call of half a microsecond. It is read in some waits only, which stand
    for the others. How many are skipped is drawn each time: of batches that are all alike except each
    fiftieth, that one might otherwise never be measured. The sums are passed on after measured waits. In a
    traced pass none is skipped, so that each batch is recorded as it was.

    Args:
        stage: That of the dataset.
        stopwatch: Of the loop's thread; nothing else may use it.
        pins: Whether batches are pinned.

    Attributes:
        pins: Likewise: whether ``pin`` is to be called.
        skips: How many waits come before the next one to measure.
    """

    def __init__(self, stage: str, stopwatch: Stopwatch, pins: bool) -> None:
        super().__init__(stage, stopwatch)
        self.pins = pins
        # When the latest batch came to these stages.
        self._fetching_s = self._collating_s = self._pinning_s = 0.0
        self.skips = 0
        self._forget_sums()
        self._summed_s = perf_counter()
        stopwatch.enter(IDLE, self._summed_s)
        self._draw = Random().random  # the user's own generators stay as they are
        self._before_s: float | None = None
        self._cpu_s = self._measured_s = self._waits_s = 0.0

    # --- what each batch pays for ---

    def fetch(self) -> None:
        self._fetching_s = perf_counter()

    def collate(self) -> None:
        self._collating_s = perf_counter()

    def waited(self, since_s: float, now_s: float) -> Spent | None:
        """The consumer has waited, at first for the sampler, and has a batch.

        Args:
            since_s: By ``time.perf_counter()``.
            now_s: Likewise.

        Returns:
            A report, now and then.
        """
        fetching_s, collating_s = self._fetching_s, self._collating_s
        self._sampler_s += fetching_s - since_s
        self._dataset_s += collating_s - fetching_s
        self._last_s += now_s - collating_s
        if self._before_s is not None:
            return self._measured(self._before_s, since_s, now_s)
        self.skips -= 1
        return None

    # --- what few of them pay for ---

    def pin(self) -> None:
        """A batch is copied to page-locked memory."""
        now_s = perf_counter()
        self._collated_s += now_s - self._collating_s
        self._pinning_s = now_s

    def measure(self) -> None:
        """A wait begins that is to be measured."""
        self._before_s = thread_time()

    def left(self, since_s: float, now_s: float) -> Spent | None:
        """The consumer has waited, and no batch is counted, or not yet: the current stage ends now."""
        if self._fetching_s < since_s:
            self._fetching_s = now_s
        if self._collating_s < self._fetching_s:
            self._collating_s = now_s
        if self.pins and self._pinning_s < self._collating_s:
            self._collated_s += now_s - self._collating_s
        return self.waited(since_s, now_s)

    def end(self, since_s: float | None, now_s: float) -> Spent | None:
        """The pass is over, maybe in a wait that began at ``since_s``; returns all that was not reported."""
        self._before_s = None  # no report comes before the last one; and this may be another thread
        if since_s is not None:
            self.left(since_s, now_s)
        return self._news(now_s, at_once=True)

    def worked(self) -> Worked:
        made, self._made = self._made, NOTHING
        return made

    def _measured(self, before_s: float, since_s: float, now_s: float) -> Spent | None:
        self._cpu_s += thread_time() - before_s
        self._measured_s += now_s - since_s
        self._before_s = None
        if self.stopwatch.recorder is not None:
            return self._news(now_s)
        # As many as come in that time, at the rate since the sums were passed on: with a shorter time, what
        # came just before a wait would decide whether it is measured.
        self.skips = int(2 * _MEASURE_S * self._draw() * self._count / (now_s - self._summed_s))
        self._count += self.skips + 1
        return self._news(now_s) if self.stopwatch.has_news(now_s) else None

    def _news(self, now_s: float, *, at_once: bool = False) -> Spent | None:
        self._pass_on_sums(now_s)
        # The thread's other work is the consumer's.
        cpu_s = self._cpu_s * (self._waits_s / self._measured_s) if self._measured_s else 0.0
        spent = self.stopwatch.news(at_once=at_once, cpu_s=cpu_s)
        if spent is not None:
            self._cpu_s = self._measured_s = self._waits_s = 0.0
        return spent

    def _pass_on_sums(self, now_s: float) -> None:
        """Enter all batches since the previous call in the stopwatch as one batch, after one idle time."""
        collated_s = self._collated_s if self.pins else self._last_s
        made_s = {
            SAMPLER: self._sampler_s,
            self._stage: self._dataset_s,
            COLLATE: collated_s,
            PINNING: self._last_s - collated_s,
        }
        waits_s = sum(made_s.values())
        at_s = max(now_s - waits_s, self._summed_s)
        for stage, spent_s in made_s.items():
            if spent_s:
                self.stopwatch.enter(stage, at_s)
                at_s += spent_s
        self.stopwatch.enter(IDLE, now_s)
        self._waits_s += waits_s
        self._summed_s = now_s
        self._forget_sums()

    def _forget_sums(self) -> None:
        # What comes after the dataset's stage is collate_fn, and with it pinning, if there is that.
        self._sampler_s = self._dataset_s = self._last_s = self._collated_s = 0.0
        self._count = self.skips + 1  # of waits, including the next one that is measured


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
        self._since_s = 0.0
        #: Since when the consumer waits, if it does.
        self._waiting_s: float | None = None
        #: When the batch that it waited for was delivered, if it was.
        self._delivered_s: float | None = None
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
            spent = self.laps.end(self._waiting_s, perf_counter())
            if spent is not None:
                self._counters.spend(0, spent)
        self._is_over = True
        self._counters.end()
        self._counters.close()

    # --- called by the loop ---

    def wait(self) -> None:
        """The consumer waits for a batch: without workers the sampler comes next."""
        self._waiting_s, self._delivered_s = self._counters.wait(), None
        if self.laps is not None and not self.laps.skips:
            self.laps.measure()

    def waited(self) -> None:
        """The wait is over, with or without a batch."""
        self._counters.waited()
        since_s, self._waiting_s = self._waiting_s, None
        if self.laps is None or since_s is None or self._is_over:
            return
        if self._delivered_s is None:
            spent = self.laps.left(since_s, perf_counter())
        else:
            spent = self.laps.waited(since_s, self._delivered_s)
        if spent is not None:
            self._counters.spend(0, spent)

    def draw(self) -> None:
        """The sampler begins to draw what comes next."""
        if self.laps is None:
            self._since_s = perf_counter()

    def drew(self) -> None:
        """It has drawn."""
        if self.laps is not None:
            self.laps.fetch()
        else:
            self._counters.work_in_loop(SAMPLER, perf_counter() - self._since_s)

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
        self._delivered_s = self._counters.count(worked.samples, 0, worked.size_bytes)

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
