"""The verdict on a pass, and the bar that shows it: which stage makes the consumer wait, what to change."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from ..errors import users_level
from . import stopwatch as at
from .page import report_html
from .statistics import Maker, Meter, Statistics
from .stopwatch import COLLATE, DECODE, IDLE, PROCESSOR, STORE, name_of, shares_of, steady_rate

# With less, the loader is not the bottleneck: a training step varies by a tenth of the time.
_WAITS_SHARE = 0.1

# Makers that are idle for so much of their time have batches ready, so that something after them is slow.
_IDLE_SHARE = 0.5

# A worker that is idle for so much more than the one that the consumer waits for has too little to do.
_UNBALANCED_SHARE = 0.5

# Makers in the loop's own process that are idle less than so, and keep a processor busy for so much of the
# time, may hold the interpreter's lock when the loop wants it; it then waits within its steps, unseen.
_LOCKED_IDLE_SHARE, _LOCKED_CPUS = 0.2, 0.5

# The lock is suspected only if the loop also waits so much for batches; with less the loop is the bottleneck.
_LOCKED_WAITS_SHARE = 0.03

# With less of the time, they cannot hold up the loop by much. Whether they do with more, only a comparison
# with steps alone can show: a thread that gets the lock more seldom is also idle more.
_HINTED_CPUS = 0.25

# If the loop's own thread works for so much of its waiting, it waits for that work.
_LOOPS_SHARE = 0.5

# A pass of which more was the start of its workers.
_STARTS_SHARE = 0.5

# Makers that wait for a processor for so much of the time that they are not idle lack processors more than
# anything else: as many busy processes as there are processors would leave them half.
_DELAYED_SHARE = 0.6

# With more, time that a thread does not work may be a wait for a processor: overlapping calls do not help.
_SOME_DELAY_SHARE = 0.25

# Less is not mentioned.
_MENTIONED_CPUS = 0.1

# Of all requests.
_THROTTLED_SHARE = 0.02

# Stages that a line names.
_MOST_NAMED = 4

# Threads that share the interpreter's lock keep about one processor busy together, and none of them waits for
# a processor; each call takes so much longer than it works.
_ONE_CPU = 0.8, 1.2
_LOCKED_TIMES, _LOCKED_DELAY = 1.4, 0.2

# Calls that use less of a processor wait for something else.
_BUSY_CALLS_CPUS = 0.45

# Of all processors: a loader that keeps them busy for so much of the time gains nothing by more threads or
# processes.
_ALL_CPUS = 0.8

# A batch that is made in less time is sooner made than sent by a worker.
_SENT_S = 0.0003

# What uses a processor for less than this part of its time waits for something.
_WAITING_CPUS = 0.5

# A batch of more is large: to copy it takes longer than the rest of sending it.
_LARGE_BYTES = 1 << 20

# A batch of tensors is unpacked in less than a tenth of this, so that more is the unpickling of objects.
_UNPACKING_S = 1e-3


@dataclass(frozen=True)
class Setup:
    """What a pass ran with, as far as advice goes.

    Attributes:
        num_workers: As the user set it.
        in_order: Likewise.
        concurrency: Of the operators that have one, by stage.
        coroutines: The stages of those that await the user's functions.
        processors: That this process may use.
        caches: Whether shards are kept on disk.
        is_local: Whether all shards are local files.
        is_indexed: Whether lanes are equal, by an index.
        has_ranks: Whether there are other ranks to keep in step with.
        on_cluster: Whether its workers are on a cluster.
        style: ``"stream"``, or of torch's kinds ``"map"`` or ``"iterable"``.
        keeps_workers: Whether workers stay from epoch to epoch.
    """

    num_workers: int
    in_order: bool
    concurrency: Mapping[str, int]
    coroutines: Collection[str]
    processors: int
    caches: bool = False
    is_local: bool = False
    is_indexed: bool = False
    has_ranks: bool = False
    style: Literal["stream", "map", "iterable"] = "stream"
    keeps_workers: bool = True
    on_cluster: bool = False

    @property
    def is_inline(self) -> bool:
        """Whether the loop's own thread makes the batches, one at a time."""
        return self.style != "stream" and not self.num_workers

    @property
    def shares_lock(self) -> bool:
        """Whether batches are made in the loop's process, on another thread."""
        return not self.num_workers and not self.is_inline

    @property
    def more_workers(self) -> str:
        """The advice on work that keeps a processor busy."""
        if self.on_cluster:
            return f"Use more than {self.num_workers} RayWorkers if the cluster has free processors."
        if self.num_workers < self.processors > 1:
            return f"Try num_workers={self.processors}: there are {self.processors} processors."
        return "Every processor is used: do less work per sample, or store the results beforehand."

    @property
    def waiting_workers(self) -> str:
        """The advice on work that waits."""
        return (
            f"It mostly waits: raise num_workers from {self.num_workers}. Workers may outnumber processors."
        )


@dataclass(frozen=True)
class Report:
    """The bottleneck of a pass, in three lines: ``print(loader.report())``.

    Attributes:
        limit: The bottleneck. ``"consumer"``: the training loop. While batches wait for bytes: ``"store"``,
            ``"server"`` (it refuses requests), ``"memory_limit"`` or ``"cache"`` (it is being filled). For
            work: ``"decode"``, an operator by name, such as ``"map(augment)"``, ``"collate"`` or
            ``"transport"``. ``"lanes"``: one lane has more work than the others. ``"ranks"``: another rank is
            slower. ``"processor"``: the threads wait for a processor more than they work. ``"start"``: the
            start of workers took most of the pass. For map-style and iterable datasets also the work of the
            dataset, such as ``"Images.__getitem__"``, ``"sampler"``, ``"pinning"``, or ``"workers"``: one
            worker has more work than the others.
        wait_share: The share of the time since the first batch, from 0 to 1, in which the consumer waited; in
            a pass of at most one batch, since the beginning.
        shares: Shares of the time of the threads that make batches, by stage; their sum is 1.
        lines: What happened, what the bottleneck is, and what to change.
    """

    limit: str
    wait_share: float
    shares: Mapping[str, float]
    lines: tuple[str, str, str]

    def _repr_html_(self) -> str:
        """For notebooks; the user's names are escaped."""
        return report_html(self)

    def __str__(self) -> str:
        return "\n".join(self.lines)


def judge(statistics: Statistics, setup: Setup) -> Report:
    """The verdict on a pass, which may be running, or whose statistics were saved."""
    return _Case(statistics, setup).report()


_VERDICTS = {
    "consumer": "The training loop is the bottleneck",
    STORE: "The store is the bottleneck",
    "server": "The server is the bottleneck: it refuses requests with status 429 or 503",
    "memory_limit": "memory_limit is the bottleneck: it limits how far the loader reads ahead",
    "cache": "The store is the bottleneck: the cache is being filled from it",
    DECODE: "Decoding is the bottleneck",
    "collate": "collate_fn is the bottleneck",
    "transport": "Transport is the bottleneck: sending batches from the workers",
    "lanes": "One slow worker holds up the others",
    "workers": "One slow worker holds up the others",
    "start": "Starting the workers is the bottleneck",
    at.SAMPLER: "The sampler is the bottleneck: it runs in the training loop",
    at.PINNING: "Copying batches to pinned memory is the bottleneck",
    "ranks": "Another rank is the bottleneck: this one keeps in step with it",
    PROCESSOR: "Too few free processors are the bottleneck",
}

_ADVICE = {
    "consumer": "Nothing to change: a faster loader would not help.",
    "server": "Ask for more capacity, spread the shards over several prefixes, or run fewer ranks at a time.",
    "memory_limit": "Raise memory_limit.",
    "cache": "Nothing to change: the next epoch reads from the disk.",
    "ranks": "Print the reports of the other ranks: that of the slowest rank shows the cause.",
    at.SAMPLER: "Make a list of the indices before the pass: workers do not run the sampler.",
    at.PINNING: "Set num_workers: a separate thread then pins the batches.",
}

_LARGER = "Make batches larger: each one takes some tenths of a millisecond, whatever its size."


class _Case:
    """One pass to judge."""

    def __init__(self, statistics: Statistics, setup: Setup) -> None:
        self.statistics, self.setup = statistics, setup
        self.shares = shares_of(maker.stages_s for maker in statistics.makers)
        self.idle_share = self.shares.get(IDLE, 0.0)
        elapsed_s = max(statistics.elapsed_s, 1e-9)
        self.start_s = statistics.first_batch_s or 0.0
        # Alone, the first batch is all there is to judge.
        left_out_s = self.start_s if statistics.batches > 1 else 0.0
        wait_s = max(statistics.wait_s - left_out_s, 0.0)
        self.wait_share = min(wait_s / max(elapsed_s - left_out_s, 1e-9), 1.0)
        #: The part of the time that makers are not idle in which they wait for a processor.
        self.delay_share = self.shares.get(PROCESSOR, 0.0) / max(1 - self.idle_share, 1e-9)
        #: Whether much of the time is lost to other work on the machine, or to a quota.
        self.lacks_processors = max(self.delay_share, statistics.throttled_s / elapsed_s) > _SOME_DELAY_SHARE
        #: How many processors the makers keep busy.
        self.busy_cpus = sum(map(_cpu_s, statistics.makers)) / elapsed_s

    def report(self) -> Report:
        statistics, setup, wait_share = self.statistics, self.setup, self.wait_share
        many = f"{statistics.batches:,} batch{'es' * (statistics.batches != 1)}"
        if not self.shares:
            lines = f"{many} so far.", "The bottleneck is not known yet.", "Call report() again later."
            return Report("start", 0.0, self.shares, lines)
        is_locked = _LOCKED_WAITS_SHARE <= wait_share < _WAITS_SHARE and self.may_hold_lock
        limit = self.limit(is_locked)
        verdict = _VERDICTS.get(limit, f"{limit} is the bottleneck")
        if limit == STORE and setup.is_local:
            verdict = "The disk is the bottleneck"
        advice = self.advice(limit)
        if is_locked:
            verdict += " if it holds the interpreter's lock (GIL), which the training loop needs"
        elif limit == "consumer" and setup.shares_lock and self.busy_cpus > _HINTED_CPUS:
            advice = (
                "If steps are faster without the loader, they wait for the interpreter's lock (GIL). "
                f"{setup.more_workers}"
            )
        rate = steady_rate(statistics.samples, statistics.batches, statistics.elapsed_s, self.start_s)
        named = [f"{share:.0%} {name_of(stage)}" for stage, share in self.shares.items() if share >= 0.01]
        busy = f" It keeps {self.busy_cpus:.1f} of {setup.processors} processors busy."
        since = "After it, the" if statistics.batches > 1 else "The"
        lines = (
            f"{many}, {rate:,.0f} samples/s. The first batch took {self.start_s:.2f} s. "
            f"{since} loop waited {wait_share:.0%} of the time.",
            f"{verdict}. Time in the loader: {', '.join(named[:_MOST_NAMED])}."
            + busy * (self.busy_cpus >= _MENTIONED_CPUS),
            advice,
        )
        return Report(limit, wait_share, self.shares, lines)

    # --- the bottleneck ---

    def limit(self, is_locked: bool) -> str:
        statistics, setup, shares = self.statistics, self.setup, self.shares
        if self.is_starting:
            return "start"
        if self.wait_share < _WAITS_SHARE and not is_locked:
            return "consumer"
        for stage, limit in ((at.SAMPLER, at.SAMPLER), (at.RECEIVING, "transport")):
            if statistics.loop_stages_s.get(stage, 0.0) > _LOOPS_SHARE * statistics.wait_s:
                return limit
        # Where the makers keep all processors busy themselves, they wait for one another.
        if self.delay_share > _DELAYED_SHARE and self.busy_cpus <= _ALL_CPUS * setup.processors:
            return PROCESSOR
        stage = _stage_of(shares)
        if setup.is_inline:
            return stage
        if stage == STORE and (why := self.limit_of_store) != STORE:
            return why
        if setup.in_order and self.is_unbalanced:
            return "lanes" if setup.style == "stream" else "workers"
        if self.idle_share > _IDLE_SHARE and (setup.has_ranks or setup.num_workers):
            return "ranks" if setup.has_ranks else "transport"
        return "transport" if stage == at.SENDING else stage

    @property
    def is_starting(self) -> bool:
        """Whether most of a pass was the start of its workers, which may be in each epoch."""
        if not self.setup.num_workers or not self.statistics.makers:
            return False
        first_s = min(maker.stages_s.get(at.STARTING, 0.0) for maker in self.statistics.makers)
        return first_s > _STARTS_SHARE * self.statistics.elapsed_s

    @property
    def may_hold_lock(self) -> bool:
        """Whether the loop shares the interpreter's lock with makers that may hold it most of the time."""
        if not self.setup.shares_lock or _stage_of(self.shares) == STORE or self.lacks_processors:
            return False
        return self.idle_share < _LOCKED_IDLE_SHARE and self.busy_cpus > _LOCKED_CPUS

    @property
    def limit_of_store(self) -> str:
        """Why batches wait for bytes."""
        network = self.statistics.network
        if network.throttled > _THROTTLED_SHARE * network.requests:
            return "server"
        if any(maker.wants_memory for maker in self.statistics.makers):
            return "memory_limit"
        return "cache" if self.setup.caches and network.cached > network.evicting else STORE

    @property
    def is_unbalanced(self) -> bool:
        """Whether one worker has more to do than others; waiting for a failing store is no such work."""
        idle = [maker.stages_s.get(IDLE, 0.0) / max(_made_s(maker), 1e-9) for maker in self.statistics.makers]
        busiest = self.statistics.makers[idle.index(min(idle))]
        if self.statistics.network.retries and _stage_of(shares_of([busiest.stages_s])) == STORE:
            return False
        return max(idle) - min(idle) > _UNBALANCED_SHARE

    # --- what to change ---

    def advice(self, limit: str) -> str:
        setup = self.setup
        if limit == STORE:
            if setup.is_local:
                return "Read from a faster disk, or store the shards compressed."
            if self.statistics.network.evicting:
                return "Raise cache_limit until all shards fit: each is then downloaded only once."
            if setup.caches:
                return "Check with `asyncloader cache ls` that shards are kept. Put cache_dir on a fast disk."
            return "Raise num_workers if the network is not full, or keep shards on disk with cache_dir=."
        if limit == "lanes":
            if setup.is_indexed:
                return "Shuffle, so that slow samples are spread over all lanes, or pass in_order=False."
            return "Run `asyncloader index`, so that all lanes are equal, or pass in_order=False."
        if limit == "workers":
            is_iterable = setup.style == "iterable"
            evenly = "Deal samples evenly with asyncloader.split_iterable" if is_iterable else "Shuffle"
            return f"{evenly}, or pass in_order=False."
        if limit == "start":
            if setup.style == "stream":
                return "Nothing to change for longer passes. For short ones, num_workers=0 starts at once."
            if setup.keeps_workers:
                return "Nothing to change: the workers stay for the next epochs."
            return "Pass persistent_workers=True: workers then start once, and not in each epoch."
        if limit == PROCESSOR:
            return self.advice_on_processors
        if limit == "transport":
            return self.advice_on_transport
        if limit in _ADVICE:
            return _ADVICE[limit]
        is_own = setup.style != "stream" and limit != COLLATE
        return self.advice_on_dataset(limit) if is_own else self.advice_on_work(limit)

    @property
    def advice_on_processors(self) -> str:
        throttled_s = self.statistics.throttled_s
        if throttled_s > _SOME_DELAY_SHARE / 2 * self.statistics.elapsed_s:
            return f"Raise the container's processor quota: it delayed its processes by {throttled_s:.1f} s."
        return "Give the loader more processors, or run less beside it. More threads or workers do not help."

    @property
    def advice_on_transport(self) -> str:
        if self.statistics.size_bytes >= _LARGE_BYTES * self.statistics.batches:
            return "Make batches smaller: leave out unused fields, or use smaller dtypes."
        unpacking_s = self.statistics.loop_stages_s.get(at.RECEIVING, 0.0)
        if unpacking_s > _UNPACKING_S * self.statistics.batches:
            return "Return tensors or arrays: the training loop has to unpickle other objects."
        if self.setup.style == "stream":
            return _LARGER
        return f"{_LARGER} If some take much longer than others, raise prefetch_factor."

    def advice_on_dataset(self, stage: str) -> str:
        """On a dataset of torch's kinds that is slow itself."""
        setup = self.setup
        if stage in setup.coroutines:
            return "Raise num_workers: each fetches 48 items at once. Or fetch a whole batch in __getitems__."
        if not self.mostly_waits(stage):
            return setup.more_workers
        concurrently = " Or make it async def: the items of a batch are then fetched concurrently."
        return setup.waiting_workers + concurrently * (setup.style == "map")

    def advice_on_work(self, stage: str) -> str:
        """On a stage that keeps processors busy, or threads waiting."""
        setup, concurrency = self.setup, self.setup.concurrency.get(stage, 1)
        if stage in setup.coroutines:
            return f"Raise concurrency from {concurrency}, or num_workers if its event loop is busy."
        if not setup.num_workers and self.statistics.elapsed_s < _SENT_S * self.statistics.batches:
            return f"{_LARGER} Workers would add as much."
        if concurrency > 1:
            return self.advice_on_threads(stage, concurrency)
        if self.mostly_waits(stage):
            if stage in setup.concurrency:
                return "It mostly waits: pass concurrency=16 or more to it, so that its calls overlap."
            if stage != DECODE:
                return setup.waiting_workers
        if stage not in setup.concurrency or self.lacks_processors:
            return setup.more_workers
        return f"{setup.more_workers} Or raise concurrency, if it waits or releases the GIL."

    def advice_on_threads(self, stage: str, concurrency: int) -> str:
        """On a function that is called on several threads."""
        setup, makers = self.setup, self.statistics.makers
        calls = [maker.calls[stage] for maker in makers if stage in maker.calls]
        took_s = sum(each.took_s - each.delay_s for each in calls)
        cpu_s, delay_s = sum(each.cpu_s for each in calls), sum(each.delay_s for each in calls)
        made_s = sum(_made_s(maker) - maker.stages_s.get(IDLE, 0.0) for maker in makers)
        if self.busy_cpus > _ALL_CPUS * setup.processors and setup.processors > 1:
            return f"Its {concurrency} threads use every processor: do less work, or store its results."
        if cpu_s > _ONE_CPU[1] * made_s:
            return f"Its {concurrency} threads keep processors busy: do less work, or use more workers."
        cpus = (cpu_s + sum(maker.cpu_s for maker in makers)) / max(made_s, 1e-9)
        is_one = _ONE_CPU[0] < cpus and setup.processors > 1
        if is_one and took_s > _LOCKED_TIMES * cpu_s and delay_s < _LOCKED_DELAY * cpu_s:
            return f"Its {concurrency} threads take turns with the interpreter's lock. {setup.more_workers}"
        if cpu_s < min(_BUSY_CALLS_CPUS * made_s, _WAITING_CPUS * took_s) and not self.lacks_processors:
            return f"Its calls mostly wait: raise concurrency from {concurrency} if processors are idle."
        return setup.more_workers

    def mostly_waits(self, stage: str) -> bool:
        """Whether its makers hardly use a processor, at any stage, though they could have one."""
        took_s = sum(maker.stages_s.get(stage, 0.0) for maker in self.statistics.makers)
        cpu_s = sum(maker.cpu_s for maker in self.statistics.makers)
        return cpu_s < _WAITING_CPUS * took_s and not self.lacks_processors


def _stage_of(shares: Mapping[str, float]) -> str:
    """The stage that takes most of the makers' time."""
    return next((stage for stage in shares if stage not in (IDLE, at.BATCHING, PROCESSOR)), COLLATE)


def _cpu_s(maker: Maker) -> float:
    """Its processor time, and that of its calls on threads of their own."""
    return maker.cpu_s + sum(calls.cpu_s for calls in maker.calls.values())


def _made_s(maker: Maker) -> float:
    """Its time since it began with the first batch."""
    return sum(maker.stages_s.values()) - maker.stages_s.get(at.STARTING, 0.0)


# Progress bars, which also show what a pass waits for.

# A reader does not see more; tqdm's own ``mininterval``.
_SHOW_S = 0.1


def open_bar(description: str, total: int | None, unit: str, done: int = 0, *, shown: bool = True) -> Any:
    """A tqdm bar that leaves neither a thread nor a semaphore behind.

    Args:
        description: Shown before it.
        total: Steps; None if that is not known.
        unit: What a step is.
        done: How many were done before it was opened.
        shown: Whether it is drawn at all.
    """
    from tqdm.auto import tqdm

    class Bar(tqdm):  # type: ignore[type-arg]  # generic in the stubs alone
        # tqdm's thread would outlive the bar. It wakes only bars that look at every n-th step.
        monitor_interval = 0

    # Its own lock is a semaphore among processes, which stays; our workers have no bars.
    Bar.set_lock(threading.RLock())
    # Without smoothing, its rate is that of the whole time, as the others are.
    return Bar(
        desc=description, total=total, initial=done, unit=unit, miniters=1, smoothing=0, disable=not shown
    )


class ProgressBar:
    """A tqdm bar of batches, with samples/s, MB/s, the share of time the consumer waited, and what for.

    Make it when the pass begins: its clock starts here. A bar that cannot be written, such as to a closed
    pipe, is switched off with a warning, and the pass goes on.

    Args:
        description: Shown before it.
        setup: What the pass runs with.
        total: Batches of the whole pass; None if that is not known.
        done: How many of them were delivered before, by a run that this one continues.
    """

    def __init__(self, description: str, setup: Setup, total: int | None = None, done: int = 0) -> None:
        self._bar: Any = None
        self._setup = setup
        self._shown_s = time.monotonic()
        try:
            self._bar = open_bar(description, total, " batches", done)
        except Exception as error:
            self._switch_off(error)

    def show(self, counters: Meter) -> None:
        """Advance by one batch; the screen changes now and then."""
        if self._bar is None:
            return
        now_s = time.monotonic()
        try:
            if now_s - self._shown_s >= _SHOW_S:
                self._shown_s = now_s
                self._write(counters.snapshot())
            self._bar.update()
        except Exception as error:
            self._switch_off(error)

    def close(self, counters: Meter) -> None:
        """Leave the bar as the pass ended."""
        if self._bar is None:
            return
        try:
            if counters.batches:
                self._write(counters.snapshot())
            self._bar.close()
        except Exception as error:
            self._switch_off(error)

    def _switch_off(self, error: Exception) -> None:
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.disable = True  # otherwise it draws once more when it is collected
        with suppress(OSError, ValueError):  # standard error itself may be closed
            warnings.warn(
                f"the progress bar cannot be written and is switched off: {type(error).__name__}: {error}",
                stacklevel=users_level(),
            )

    def _write(self, statistics: Statistics) -> None:
        elapsed_s, report = max(statistics.elapsed_s, 1e-9), judge(statistics, self._setup)
        tokens = f"{statistics.tokens / elapsed_s:,.0f} tokens/s, " if statistics.tokens else ""
        waits = f"{'waits' if statistics.state == 'running' else 'waited'} {statistics.wait_share:.0%}"
        if report.limit not in ("consumer", "start"):
            waits += f": {report.limit}"
        self._bar.set_postfix_str(
            f"{statistics.samples / elapsed_s:,.0f} samples/s, {tokens}"
            f"{statistics.size_bytes / elapsed_s / 1e6:,.1f} MB/s, {waits}",
            refresh=False,
        )
