"""Where the time goes of torch's loop and of its workers, and what they have made."""

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
from ..observe.stopwatch import COLLATE, PINNING, RECEIVING, RESTING, SAMPLER, SENDING, Spent, Stopwatch
from ..observe.tracing import TracingStopwatch
from .adapt import Adapter, is_iterable
from .reading import TaggedBatch


class Worked(NamedTuple):
    """What a worker tells beside a batch.

    Attributes:
        samples: In the batch.
        size_bytes: Likewise.
        spent: Where its time has gone since it told before; now and then.
        is_batch: Whether there is one, rather than an error, or the worker's end.
    """

    samples: int = 0
    size_bytes: int = 0
    spent: Spent | None = None
    is_batch: bool = False


NOTHING = Worked()
"""What is told where nothing was made; here once, since each batch takes the place of it."""


class WorkerTimer:
    """Divides the time of a worker, which fetches and collates.

    Args:
        stage: That of the dataset.
        stopwatch: Of that thread.

    Attributes:
        stopwatch: Likewise.
        pins: Whether ``pin`` is to be told.
    """

    pins = False

    def __init__(self, stage: str, stopwatch: Stopwatch) -> None:
        self._stage = stage
        self._made = NOTHING
        self._has_begun = False
        self.stopwatch = stopwatch

    def fetch(self) -> None:
        """The dataset is asked, for all that comes until a batch is collated."""
        if self._has_begun:
            self.stopwatch.enter(self._stage)
        else:
            self._has_begun = True
            self.stopwatch.begin(self._stage)

    def rest(self) -> None:
        """Nothing is asked for. Before anything was, this is still the start."""
        if self._has_begun:
            self.stopwatch.enter(RESTING)

    def send(self) -> None:
        """What was made is handed over."""
        self.stopwatch.enter(SENDING)

    def collate(self) -> None:
        """It has given what becomes a batch."""
        self.stopwatch.enter(COLLATE)

    def pin(self) -> None:
        """A batch is copied to page-locked memory."""
        self.stopwatch.enter(PINNING)

    def made(self, batch: Any, samples: int) -> None:
        """There is a batch, of so many samples."""
        if isinstance(self.stopwatch, TracingStopwatch):
            self.stopwatch.made(batch.batch if isinstance(batch, TaggedBatch) else batch)
        self._made = Worked(samples, _bytes_in(batch), is_batch=True)

    def worked(self) -> Worked:
        """What is to be told beside the batch, once."""
        made, self._made = self._made, NOTHING
        spent = self.stopwatch.news(at_once=not made.is_batch)
        return made if spent is None else made._replace(spent=spent)


# The watch of this process, if it is a worker: one process is one worker, for life. The transport and
# collate_fn reach it on separate roads and meet here.
_of_worker: WorkerTimer | None = None


def time_worker(stage: str, began_s: float, kind: type[Stopwatch]) -> WorkerTimer:
    """Begin to watch this process, a worker that was begun to be made at a time by ``perf_counter()``."""
    global _of_worker
    # That clock is one for all processes of the system, so that starting them is in it.
    _of_worker = WorkerTimer(stage, kind(began_s))
    return _of_worker


class Collating:
    """The ``collate_fn`` that torch is given: the user's, watched; in workers with lent memory.

    Args:
        collate_fn: The user's.
        watch: Of the loop's own thread; None for that of the worker it is called in.
        is_batch: Whether it is given lists of samples.
    """

    def __init__(self, collate_fn: Callable[[Any], Any], watch: WorkerTimer | None, is_batch: bool) -> None:
        self._collate_fn = collate_fn
        self._watch = watch
        self._is_batch = is_batch

    def __call__(self, samples: Any) -> Any:
        watch = self._watch or _of_worker
        assert watch is not None, "a worker is watched before it collates"
        watch.collate()
        count = _samples_in(samples) if self._is_batch else 1  # now: they are the user's to change
        if self._watch is None:
            with borrowing():
                batch = self._collate_fn(samples)
        else:
            batch = self._collate_fn(samples)
        watch.made(batch, count)
        if watch.pins:
            watch.pin()
        return batch


def _samples_in(samples: Any) -> int:
    """How many samples a dataset has given for a batch, which need not be a list."""
    if isinstance(samples, Mapping):
        samples = next(iter(samples.values()), ())
    return len(samples) if isinstance(samples, Sized) else 0


def _bytes_in(batch: Any) -> int:
    """As ``bytes_of``, and 0 for what does not tell: nothing of the user's fails for being counted."""
    try:
        return bytes_of(batch.batch if isinstance(batch, TaggedBatch) else batch)
    except Exception:
        return 0


# Where the waits go of a loop without workers, which makes each batch itself while its consumer waits.

# To measure a wait, with two readings of that clock, takes two microseconds.
_MEASURE_S = 0.002


class InlineTimer(WorkerTimer):
    """Sums up how long batches are at each stage, and tells the stopwatch of the sums now and then.

    A batch of a few numbers is made in some tens of microseconds, of which it would take more than a
    hundredth to tell a stopwatch of each stage. As they come in the same order for each batch, it is enough
    to read the clock where they begin. Each batch is in the sums, so that a slow one among many is, too.

    The thread's own clock is a system call of half a microsecond, so that it is asked in some waits only,
    which stand for the others. How many are skipped is drawn each time, or of batches that are all alike but
    for each fiftieth, that one might never be measured. It is after measured waits that the sums are told.
    Where the pass is traced, none is skipped, and so each batch is told as it was.

    Args:
        stage: That of the dataset.
        stopwatch: Of the loop's thread, and told by nobody else.
        pins: Whether batches are pinned.

    Attributes:
        skips: How many waits come before the next one that is to be measured.
    """

    def __init__(self, stage: str, stopwatch: Stopwatch, pins: bool) -> None:
        super().__init__(stage, stopwatch)
        self.pins = pins
        # When the latest batch came to these stages.
        self._fetching_s = self._collating_s = self._pinning_s = 0.0
        self.skips = 0
        self._forget_sums()
        self._told_s = perf_counter()
        stopwatch.enter(RESTING, self._told_s)
        self._draw = Random().random  # the user's own generators stay as they are
        self._is_traced = isinstance(stopwatch, TracingStopwatch)
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
            What is to be told, now and then.
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
        now_s = perf_counter()
        self._collated_s += now_s - self._collating_s
        self._pinning_s = now_s

    def measure(self) -> None:
        """A wait begins, and none is to be skipped."""
        self._before_s = thread_time()

    def left(self, since_s: float, now_s: float) -> Spent | None:
        """The consumer has waited, and no batch is counted, or not yet: the stage that it is at ends now."""
        if self._fetching_s < since_s:
            self._fetching_s = now_s
        if self._collating_s < self._fetching_s:
            self._collating_s = now_s
        if self.pins and self._pinning_s < self._collating_s:
            self._collated_s += now_s - self._collating_s
        return self.waited(since_s, now_s)

    def end(self, since_s: float | None, now_s: float) -> Spent | None:
        """The pass is over, maybe in a wait that has begun at ``since_s``; gives all that was not told."""
        self._before_s = None  # nothing is told before the rest; and this may be another thread
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
        if self._is_traced:
            return self._news(now_s)
        # As many as come in that time, to go by all since the sums were told: with fewer to go by, it would
        # matter for whether a wait is measured what came just before it.
        self.skips = int(2 * _MEASURE_S * self._draw() * self._count / (now_s - self._told_s))
        self._count += self.skips + 1
        return self._news(now_s) if self.stopwatch.has_news(now_s) else None

    def _news(self, now_s: float, *, at_once: bool = False) -> Spent | None:
        self._tell_sums(now_s)
        # All else that the thread works on is the consumer's.
        cpu_s = self._cpu_s * (self._waits_s / self._measured_s) if self._measured_s else 0.0
        spent = self.stopwatch.news(at_once=at_once, cpu_s=cpu_s)
        if spent is not None:
            self._cpu_s = self._measured_s = self._waits_s = 0.0
        return spent

    def _tell_sums(self, now_s: float) -> None:
        """Tell the stopwatch of all batches since it was told before as if they were one, after one rest."""
        collated_s = self._collated_s if self.pins else self._last_s
        made_s = {
            SAMPLER: self._sampler_s,
            self._stage: self._dataset_s,
            COLLATE: collated_s,
            PINNING: self._last_s - collated_s,
        }
        waits_s = sum(made_s.values())
        at_s = max(now_s - waits_s, self._told_s)
        for stage, spent_s in made_s.items():
            if spent_s:
                self.stopwatch.enter(stage, at_s)
                at_s += spent_s
        self.stopwatch.enter(RESTING, now_s)
        self._waits_s += waits_s
        self._told_s = now_s
        self._forget_sums()

    def _forget_sums(self) -> None:
        # What comes after the dataset's stage is collate_fn, and with it pinning, if there is that.
        self._sampler_s = self._dataset_s = self._last_s = self._collated_s = 0.0
        self._count = self.skips + 1  # of waits, with the next one that is measured


# What is counted of torch's loop: batches as they are delivered, and where the time goes, in workers too.


class LoopStats:
    """Counts the passes of one iterator of torch's.

    Args:
        begin: Makes the counters of the next pass.
        stage: See ``stage_of``.
        num_workers: How many there are.
        pins: Whether batches are pinned.
        kind: Of the stopwatches.
    """

    def __init__(
        self,
        begin: Callable[[], Meter],
        stage: str,
        num_workers: int,
        pins: bool,
        kind: type[Stopwatch] = Stopwatch,
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
        self._stage, self._kind = stage, kind
        #: Of this thread, where no workers are.
        self.laps = None if num_workers else InlineTimer(stage, kind(), pins)

    def watch_from(self, began_s: float) -> Callable[[], WorkerTimer]:
        """What begins to watch a worker, called in it; it was begun to be made at that time."""
        return partial(time_worker, self._stage, began_s, self._kind)

    def begin(self) -> None:
        """Another pass begins, with the same workers."""
        self._counters.end()
        self._counters.close()
        self._counters = self._begin()
        self._came.clear()
        self._is_over = False

    def end(self) -> None:
        """The pass is over, or nobody reads it any more. Idempotent."""
        if self.laps is not None and not self._is_over:
            spent = self.laps.end(self._waiting_s, perf_counter())
            if spent is not None:
                self._counters.spend(0, spent)
        self._is_over = True
        self._counters.end()
        self._counters.close()

    # --- told by the loop ---

    def wait(self) -> None:
        """The consumer waits for a batch: without workers the sampler is asked next."""
        self._waiting_s, self._delivered_s = self._counters.wait(), None
        if self.laps is not None and not self.laps.skips:
            self.laps.measure()

    def waited(self) -> None:
        """It waits no more, for whatever reason."""
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
        """The sampler is asked for what comes next."""
        if self.laps is None:
            self._since_s = perf_counter()

    def drew(self) -> None:
        """It has answered."""
        if self.laps is not None:
            self.laps.fetch()
        else:
            self._counters.work_in_loop(SAMPLER, perf_counter() - self._since_s)

    def deliver(self, number: int | None) -> None:
        """A batch is the consumer's.

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

    # --- told by the transport, in whichever thread receives ---

    def hear(self, worker: int, number: Any, worked: Worked, took_s: float) -> None:
        """A worker's result has come.

        Args:
            worker: Which one's.
            number: Of torch's task; something else where the worker says that it begins anew.
            worked: What it has told.
            took_s: How long it took to unpack.
        """
        self._counters.work_in_loop(RECEIVING, took_s)
        if not isinstance(number, int):  # what it has sent before is of a pass that was left
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
