"""What is counted of torch's loop: batches as they are delivered, and where the time goes, in workers too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sized
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

from torch.utils.data import Subset

from ..counting import Counters
from ..lent_memory import borrowing
from ..sizes import bytes_of
from ..stopwatch import COLLATE, PINNING, RECEIVING, RESTING, SAMPLER, SENDING, Spent, Stopwatch
from ..trace.stopwatch import TracingStopwatch
from .adapt import Adapter, is_iterable
from .processor_time import ProcessorTime
from .reading import Carried

__all__ = ["Collating", "Tally", "Watch", "Worked", "stage_of", "watch_worker"]


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


class Watch:
    """Divides the time of the thread that fetches and collates: a worker's, or without workers the loop's.

    Args:
        stage: That of the dataset.
        stopwatch: Of that thread.
        after: What comes when a batch is collated; None for nothing that takes time.
    """

    def __init__(self, stage: str, stopwatch: Stopwatch, after: str | None) -> None:
        self._stage = stage
        self._after = after
        self._made = Worked()
        self._samples = 0
        self._has_begun = False
        self.stopwatch = stopwatch

    def fetch(self) -> None:
        """The dataset is asked, for all that comes until a batch is collated."""
        if self._has_begun:
            self.stopwatch.enter(self._stage)
        else:
            self._has_begun = True
            self.stopwatch.begin(self._stage)

    def rest(self, since_s: float | None = None) -> None:
        """Nothing is asked for, now or since a moment. Before anything was, this is still the start."""
        if self._has_begun:
            self.stopwatch.enter(RESTING, since_s)

    def send(self) -> None:
        """What was made is handed over."""
        self.stopwatch.enter(SENDING)

    def collate(self, samples: Any, is_batch: bool) -> None:
        """It has given these."""
        self.stopwatch.enter(COLLATE)
        self._samples = _count(samples) if is_batch else 1

    def collated(self, batch: Any) -> None:
        """They have become a batch."""
        if isinstance(self.stopwatch, TracingStopwatch):
            self.stopwatch.made(batch.batch if isinstance(batch, Carried) else batch)
        self._made = Worked(self._samples, _size(batch), is_batch=True)
        if self._after is not None:
            self.stopwatch.enter(self._after)

    def worked(self, *, at_once: bool = False) -> Worked:
        """What is to be told beside the batch, once."""
        made, self._made = self._made, Worked()
        spent = self.stopwatch.news(at_once=at_once or not made.is_batch)
        return made if spent is None else made._replace(spent=spent)


# The watch of this process, if it is a worker: one process is one worker, for life. The transport and
# collate_fn reach it on separate roads and meet here.
_of_worker: Watch | None = None


def watch_worker(stage: str, began_s: float, kind: type[Stopwatch]) -> Watch:
    """Begin to watch this process, a worker that was begun to be made at a time by ``perf_counter()``."""
    global _of_worker
    # That clock is one for all processes of the system, so that starting them is in it.
    _of_worker = Watch(stage, kind(began_s), None)
    return _of_worker


class Collating:
    """The ``collate_fn`` that torch is given: the user's, watched; in workers with lent memory.

    Args:
        collate_fn: The user's.
        watch: Of the loop's own thread; None for that of the worker it is called in.
        is_batch: Whether it is given lists of samples.
    """

    def __init__(self, collate_fn: Callable[[Any], Any], watch: Watch | None, is_batch: bool) -> None:
        self._collate_fn = collate_fn
        self._watch = watch
        self._is_batch = is_batch

    def __call__(self, samples: Any) -> Any:
        watch = self._watch or _of_worker
        assert watch is not None, "a worker is watched before it collates"
        watch.collate(samples, self._is_batch)
        if self._watch is None:
            with borrowing():
                batch = self._collate_fn(samples)
        else:
            batch = self._collate_fn(samples)
        watch.collated(batch)
        return batch


class Tally:
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
        begin: Callable[[], Counters],
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
        self._processor = ProcessorTime()
        #: When the last wait has ended, if it brought a batch, and none has begun since.
        self._delivered_s: float | None = None
        #: Of this thread, where no workers are.
        self.watch: Watch | None = None
        self._stage, self._kind = stage, kind
        if not num_workers:
            self.watch = Watch(stage, kind(), PINNING if pins else None)
            self.watch.stopwatch.enter(RESTING)

    def watch_from(self, began_s: float) -> Callable[[], Watch]:
        """What begins to watch a worker, called in it; it was begun to be made at that time."""
        return partial(watch_worker, self._stage, began_s, self._kind)

    def begin(self) -> None:
        """Another pass begins, with the same workers."""
        self._counters.end()
        self._counters.close()
        self._counters = self._begin()
        self._came.clear()
        self._is_over = False

    def end(self) -> None:
        """The pass is over, or nobody reads it any more. Idempotent."""
        if self.watch is not None and not self._is_over:
            if self._delivered_s is not None:
                self.watch.rest(self._delivered_s)
            self._tell(at_once=True)
        self._is_over = True
        self._counters.end()
        self._counters.close()

    # --- told by the loop ---

    def wait(self) -> None:
        """The consumer waits for a batch: without workers the sampler is asked next."""
        now_s, since_s = self._counters.wait(), self._delivered_s
        self._delivered_s = None
        if self.watch is not None:
            if since_s is None:
                self.watch.stopwatch.enter(SAMPLER, now_s)
            else:
                self.watch.stopwatch.enter_rested(SAMPLER, since_s, now_s)
            self._processor.begin_wait(now_s)

    def waited(self) -> None:
        """It waits no more, for whatever reason."""
        self._counters.waited()
        if self.watch is None or not self._processor.waits:
            return
        if self._delivered_s is None:
            self.watch.rest()
        self._processor.end_wait(perf_counter() if self._delivered_s is None else self._delivered_s)

    def draw(self) -> None:
        """The sampler is asked for what comes next."""
        if self.watch is None:
            self._since_s = perf_counter()

    def drew(self) -> None:
        """It has answered."""
        if self.watch is not None:
            self.watch.fetch()
        else:
            self._counters.work_in_loop(SAMPLER, perf_counter() - self._since_s)

    def deliver(self, number: int | None) -> None:
        """A batch is the consumer's.

        Args:
            number: Of torch's task, if batches come in the order of those.
        """
        if self.watch is not None:
            worked = self._tell()
        else:
            came = self._came
            key = next(iter(came), None) if number is None else number
            worked = came.pop(key, (0, Worked()))[1]
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

    def _tell(self, *, at_once: bool = False) -> Worked:
        assert self.watch is not None
        worked = self.watch.worked(at_once=at_once)
        if worked.spent is not None:
            # All else that the thread works on is the consumer's.
            self._counters.spend(0, worked.spent._replace(cpu_s=self._processor.take()))
        return worked


def stage_of(dataset: Any) -> str:
    """What a dataset's own work is called: ``"Images.__getitem__"``."""
    while isinstance(dataset, Adapter | Subset):
        dataset = dataset.dataset
    if is_iterable(dataset):
        method = "__iter__" if hasattr(type(dataset), "__iter__") else "__aiter__"
    else:
        method = "__getitems__" if getattr(dataset, "__getitems__", None) else "__getitem__"
    return f"{type(dataset).__name__}.{method}"


def _count(samples: Any) -> int:
    """How many samples a dataset has given for a batch, which need not be a list."""
    if isinstance(samples, Mapping):
        samples = next(iter(samples.values()), ())
    return len(samples) if isinstance(samples, Sized) else 0


def _size(batch: Any) -> int:
    """As ``bytes_of``, and 0 for what does not tell: nothing of the user's fails for being counted."""
    try:
        return bytes_of(batch.batch if isinstance(batch, Carried) else batch)
    except Exception:
        return 0
