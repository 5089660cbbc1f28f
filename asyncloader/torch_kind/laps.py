"""Where the waits go of a loop without workers, which makes each batch itself while its consumer waits."""

from __future__ import annotations

from random import Random
from time import perf_counter, thread_time

from ..stopwatch import COLLATE, PINNING, RESTING, SAMPLER, Spent, Stopwatch
from ..trace.stopwatch import TracingStopwatch
from .watch import NOTHING, Watch, Worked

__all__ = ["Laps"]

# To measure a wait, with two readings of that clock, takes two microseconds.
_MEASURE_S = 0.002


class Laps(Watch):
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
