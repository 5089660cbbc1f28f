"""What is counted of torch's loop: batches as they are delivered, and where the time goes, in workers too."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

from torch.utils.data import Subset

from ..counting import Counters
from ..stopwatch import RECEIVING, SAMPLER, Stopwatch
from .adapt import Adapter, is_iterable
from .laps import Laps
from .watch import NOTHING, Watch, Worked, watch_worker

__all__ = ["Tally", "stage_of"]


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
        #: Since when the consumer waits, if it does.
        self._waiting_s: float | None = None
        #: When the batch that it waited for was delivered, if it was.
        self._delivered_s: float | None = None
        self._stage, self._kind = stage, kind
        #: Of this thread, where no workers are.
        self.laps = None if num_workers else Laps(stage, kind(), pins)

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
