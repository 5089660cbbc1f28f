"""What to change about what limits a pass. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from .statistics import Calls, Statistics
from .stopwatch import COLLATE, DECODE, PINNING, SAMPLER, STORE

__all__ = ["Setup", "advise", "more_workers"]

# Calls on threads that keep a processor busy for such a part of the time, and each take so much longer than
# it works on them, take turns with the interpreter's lock.
_LOCKED_CPUS, _LOCKED_TIMES = 0.45, 1.4

# Calls of one process that keep so many processors busy do not.
_UNLOCKED_CPUS = 1.2

# A batch that is made in less time is sooner made than handed over by a worker.
_HANDED_OVER_S = 0.0003

# What uses a processor for less than this part of its time waits for something.
_WAITING_CPUS = 0.5

# A batch of more is large: to copy it takes longer than all else about sending it.
_LARGE_BYTES = 1 << 20


@dataclass(frozen=True)
class Setup:
    """What a pass ran with, as far as advice goes.

    Attributes:
        num_workers: As the user said it.
        in_order: Likewise.
        concurrency: Of the operators that have one, by stage.
        coroutines: The stages of those that await the user's functions.
        processors: That this process may use.
        caches: Whether shards are kept on disk.
        is_local: Whether all shards are there anyway.
        is_indexed: Whether lanes are equal, by an index.
        has_ranks: Whether there are other ranks to be in step with.
        on_cluster: Whether its workers are on a cluster.
        style: ``"stream"``, or of torch's kinds ``"map"`` or ``"iterable"``.
        keeps_workers: Whether they stay from epoch to epoch, or start so fast that it makes no difference.
    """

    num_workers: int
    in_order: bool
    concurrency: Mapping[str, int]
    coroutines: Collection[str]
    processors: int
    caches: bool
    is_local: bool
    is_indexed: bool
    has_ranks: bool
    style: Literal["stream", "map", "iterable"] = "stream"
    keeps_workers: bool = True
    on_cluster: bool = False

    @property
    def is_inline(self) -> bool:
        """Whether the loop's own thread makes the batches, and nothing goes on meanwhile."""
        return self.style != "stream" and not self.num_workers


_ADVICE = {
    "consumer": "nothing to change here: a faster loader would not help",
    STORE: "raise num_workers if the link has more to give, keep shards nearer, or on disk with cache_dir=",
    "server": "ask for more capacity, spread shards over prefixes, or run fewer ranks at a time",
    "memory_limit": "raise memory_limit",
    "cache": "nothing to change: the next epoch reads from disk",
    "lanes": "make an index (asyncloader index): lanes are equal then; or pass in_order=False",
    "ranks": "print the reports of the other ranks: the slowest tells why",
    SAMPLER: "draw the order beforehand, into a list: it is asked by the loop, whatever num_workers",
    PINNING: "set num_workers: batches are pinned by a thread of its own then",
}


def advise(limit: str, statistics: Statistics, setup: Setup) -> str:
    """What to change, in half a sentence.

    Args:
        limit: See ``Report``.
        statistics: What that was seen from.
        setup: What the pass ran with.
    """
    if limit == STORE and setup.is_local:
        return "read from a faster disk, or store the shards compressed"
    if limit == "lanes" and setup.is_indexed:
        return "shuffle, so that every lane has its part of the slow samples, or pass in_order=False"
    if limit == "workers":
        evenly = (
            "deal samples evenly, as asyncloader.split_iterable does"
            if setup.style == "iterable"
            else "shuffle"
        )
        return f"{evenly}, or pass in_order=False"
    if limit == "start":
        return (
            "nothing to change: they stay for the epochs that follow"
            if setup.keeps_workers
            else "pass persistent_workers=True: they start once then, and not in each epoch"
        )
    if limit == "transport":
        return _on_transport(statistics, setup)
    if limit in _ADVICE:
        return _ADVICE[limit]
    is_own = setup.style != "stream" and limit != COLLATE
    return _on_dataset(limit, statistics, setup) if is_own else _on_work(limit, statistics, setup)


_LARGER = "make batches larger: each costs some tenths of a millisecond, however small it is"


def _on_transport(statistics: Statistics, setup: Setup) -> str:
    if statistics.size_bytes >= _LARGE_BYTES * statistics.batches:
        return "make batches smaller: leave out fields that nobody uses, take smaller dtypes"
    advice = _LARGER
    if setup.style != "stream":
        advice += "; or raise prefetch_factor, if some take much longer than others"
    return advice


def _on_dataset(stage: str, statistics: Statistics, setup: Setup) -> str:
    """What to do about a dataset of torch's kinds that is slow itself."""
    if stage in setup.coroutines:
        return "raise num_workers: each fetches 48 items at a time; or answer a whole batch by __getitems__"
    if _mostly_waits(stage, statistics):
        more = f"it mostly waits: raise num_workers from {setup.num_workers}, beyond the processors too"
        if setup.style == "map":
            more += "; or make it async def, and a batch's items are fetched at a time"
        return more
    return more_workers(setup)


def _on_work(stage: str, statistics: Statistics, setup: Setup) -> str:
    """What to do about a stage that keeps processors busy, or threads waiting."""
    concurrency = setup.concurrency.get(stage, 1)
    if stage in setup.coroutines:
        return f"raise concurrency from {concurrency}, or num_workers if its loop is busy"
    if not setup.num_workers and statistics.elapsed_s < _HANDED_OVER_S * statistics.batches:
        return f"{_LARGER}, and workers would add as much"
    if concurrency > 1:
        all_calls = [maker.calls.get(stage, Calls(0.0, 0.0)) for maker in statistics.makers]
        took_s, cpu_s = sum(each.took_s for each in all_calls), sum(each.cpu_s for each in all_calls)
        made_s = sum(sum(maker.stages_s.values()) for maker in statistics.makers)
        if cpu_s > _UNLOCKED_CPUS * made_s:
            return f"its {concurrency} threads keep processors busy: take less work, or more workers"
        if cpu_s > _LOCKED_CPUS * made_s and took_s > _LOCKED_TIMES * cpu_s:
            return f"its {concurrency} threads take turns with the interpreter's lock: {more_workers(setup)}"
        if cpu_s < _WAITING_CPUS * took_s:
            return f"its calls mostly wait: raise concurrency from {concurrency}, if processors are idle"
    if stage not in setup.concurrency and stage != DECODE and _mostly_waits(stage, statistics):
        return f"it mostly waits: raise num_workers from {setup.num_workers}, beyond the processors too"
    if stage not in setup.concurrency or concurrency > 1:
        return more_workers(setup)
    if _mostly_waits(stage, statistics):
        return "it mostly waits: pass concurrency=16 to it, or more, so that its calls wait together"
    return f"{more_workers(setup)}; or raise concurrency, if it waits or releases the interpreter's lock"


def _mostly_waits(stage: str, statistics: Statistics) -> bool:
    """Whether its makers hardly use a processor, whatever else they do."""
    took_s = sum(maker.stages_s.get(stage, 0.0) for maker in statistics.makers)
    return sum(maker.cpu_s for maker in statistics.makers) < _WAITING_CPUS * took_s


def more_workers(setup: Setup) -> str:
    """What to do about work that keeps a processor busy."""
    if setup.on_cluster:
        return f"ask for more than the {setup.num_workers} of RayWorkers, if the cluster has processors free"
    if setup.num_workers < setup.processors > 1:
        return f"try num_workers={setup.processors}, as there are {setup.processors} processors"
    return "every processor has its process: take less work, or store what comes of it beforehand"
