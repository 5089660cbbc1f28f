"""The verdict on a pass: which stage makes the consumer wait, and what to change. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from .statistics import Calls, Statistics
from .stopwatch import BATCHING, COLLATE, DECODE, RESTING, SENDING, STARTING, STORE

__all__ = ["Report", "Setup", "judge"]

# Less, and the loader is not what limits: a tenth of the time is what a training step varies by.
_WAITS_SHARE = 0.1

# Makers that rest so much of their time have batches ready, so that something behind them is slow.
_RESTS_SHARE = 0.5

# A worker that rests so much more than the one that is waited for has too little to do.
_UNBALANCED_SHARE = 0.5

# Of all requests.
_THROTTLED_SHARE = 0.02

# Calls on threads that keep a processor busy for such a part of the time, and each take so much longer than
# it works on them, take turns with the interpreter's lock.
_LOCKED_CPUS, _LOCKED_TIMES = 0.45, 1.4

# Calls that use a processor for less than this part of their time wait for something.
_WAITING_CPUS = 0.5

# A batch of more is large: to copy it takes longer than all else about sending it.
_LARGE_BYTES = 1 << 20

# Stages that a line names.
_MOST_NAMED = 4


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


@dataclass(frozen=True)
class Report:
    """What limits a pass, in three lines: ``print(loader.report())``.

    Attributes:
        limit: ``"consumer"``; ``"store"``, ``"server"`` (it refuses), ``"memory_limit"`` or ``"cache"`` (it
            is filled), where bytes are waited for; ``"decode"``; an operator as it is called, such as
            ``"map(augment)"``; ``"collate"``; ``"transport"``; ``"lanes"``, of which one has more to do than
            the others; ``"ranks"``, another of which is slower; ``"start"``, before the first batch.
        wait_share: The part of the time from 0 to 1 that the consumer has waited since the first batch; of a
            pass of one batch at most, since its beginning.
        shares: What those who make batches did, by stage: parts of their time that add up to 1.
        lines: What happened, what limits, and what to change.
    """

    limit: str
    wait_share: float
    shares: Mapping[str, float]
    lines: tuple[str, str, str]

    def __str__(self) -> str:
        return "\n".join(self.lines)


def judge(statistics: Statistics, setup: Setup) -> Report:
    """The verdict on a pass, which may be going on, or of which the statistics were saved."""
    shares = _shares(statistics)
    many = f"{statistics.batches:,} batch{'es' * (statistics.batches != 1)}"
    if not shares:
        return Report("start", 0.0, shares, (f"{many} so far", "nothing is known yet", "ask later"))
    start_s = statistics.first_batch_s or 0.0
    left_out_s = start_s if statistics.batches > 1 else 0.0  # alone, the first batch is all there is to judge
    elapsed_s = max(statistics.elapsed_s - left_out_s, 1e-9)
    wait_share = min(max(statistics.wait_s - left_out_s, 0.0) / elapsed_s, 1.0)
    limit = _limit(statistics, setup, wait_share, shares)
    lines = (
        f"{many}, {statistics.samples / max(statistics.elapsed_s, 1e-9):,.0f} samples/s; the consumer waits "
        f"{wait_share:.0%} of the time, after {start_s:.2f} s for the first batch",
        f"{_told(limit, setup)}; making batches is {_listed(shares)}",
        _advice(limit, statistics, setup),
    )
    return Report(limit, wait_share, shares, lines)


_TOLD = {
    "consumer": "the training loop limits",
    STORE: "the store limits",
    "server": "the server limits, which refuses requests (429 or 503)",
    "memory_limit": "memory_limit limits how far ahead is read",
    "cache": "the store limits, from which the cache is filled",
    DECODE: "decoding limits",
    COLLATE: "collate_fn limits",
    "transport": "handing batches over limits",
    "lanes": "one worker limits, whose turn the others wait for",
    "ranks": "another rank limits, with which this one is in step",
}

_ADVICE = {
    "consumer": "nothing to change here: a faster loader would not help",
    STORE: "raise num_workers if the link has more to give, keep shards nearer, or on disk with cache_dir=",
    "server": "ask for more capacity, spread shards over prefixes, or run fewer ranks at a time",
    "memory_limit": "raise memory_limit",
    "cache": "nothing to change: the next epoch reads from disk",
    "lanes": "make an index (asyncloader index): lanes are equal then; or pass in_order=False",
    "ranks": "print the reports of the other ranks: the slowest tells why",
}


def _told(limit: str, setup: Setup) -> str:
    if limit == STORE and setup.is_local:
        return "the disk limits"
    return _TOLD.get(limit, f"{limit} limits")


_STAGES = {
    STORE: "waiting for bytes",
    RESTING: "resting",
    SENDING: "sending",
    COLLATE: "in collate_fn",
    DECODE: "decoding",
}


def _listed(shares: Mapping[str, float]) -> str:
    named = [f"{share:.0%} {_STAGES.get(stage, stage)}" for stage, share in shares.items() if share >= 0.01]
    return ", ".join(named[:_MOST_NAMED])


def _shares(statistics: Statistics) -> dict[str, float]:
    """The parts of the makers' time, the largest first."""
    seconds: dict[str, float] = {}
    for maker in statistics.makers:
        for stage, spent_s in maker.stages_s.items():
            if stage != STARTING:
                seconds[stage] = seconds.get(stage, 0.0) + spent_s
    total_s = sum(seconds.values())
    by_time = sorted(seconds, key=seconds.__getitem__, reverse=True)
    return {stage: seconds[stage] / total_s for stage in by_time} if total_s else {}


def _limit(statistics: Statistics, setup: Setup, wait_share: float, shares: Mapping[str, float]) -> str:
    if wait_share < _WAITS_SHARE:
        return "consumer"
    stage = next((stage for stage in shares if stage not in (RESTING, BATCHING)), COLLATE)
    if stage == STORE and (why := _limit_of_store(statistics, setup)) != STORE:
        return why
    if setup.in_order and _is_unbalanced(statistics):
        return "lanes"
    if shares.get(RESTING, 0.0) > _RESTS_SHARE:
        return "ranks" if setup.has_ranks else "transport"
    return "transport" if stage == SENDING else stage


def _limit_of_store(statistics: Statistics, setup: Setup) -> str:
    """What it is that bytes are waited for."""
    network = statistics.network
    if network.throttled > _THROTTLED_SHARE * network.requests:
        return "server"
    if any(maker.wants_memory for maker in statistics.makers):
        return "memory_limit"
    return "cache" if setup.caches and network.requests else STORE


def _is_unbalanced(statistics: Statistics) -> bool:
    resting = [
        maker.stages_s.get(RESTING, 0.0) / max(sum(maker.stages_s.values()), 1e-9)
        for maker in statistics.makers
    ]
    return max(resting) - min(resting) > _UNBALANCED_SHARE


def _advice(limit: str, statistics: Statistics, setup: Setup) -> str:
    if limit == STORE and setup.is_local:
        return "read from a faster disk, or store the shards compressed"
    if limit == "lanes" and setup.is_indexed:
        return "shuffle, so that every lane has its part of the slow samples, or pass in_order=False"
    if limit == "transport":
        if statistics.size_bytes < _LARGE_BYTES * statistics.batches:
            return "make batches larger: each costs some tenths of a millisecond, however small it is"
        return "make batches smaller: leave out fields that nobody uses, take smaller dtypes"
    return _ADVICE.get(limit) or _advice_on_work(limit, statistics, setup)


def _advice_on_work(stage: str, statistics: Statistics, setup: Setup) -> str:
    """What to do about a stage that keeps processors busy, or threads waiting."""
    concurrency = setup.concurrency.get(stage, 1)
    if stage in setup.coroutines:
        return f"raise concurrency from {concurrency}, or num_workers if its loop is busy"
    if concurrency > 1:
        all_calls = [maker.calls.get(stage, Calls(0.0, 0.0)) for maker in statistics.makers]
        took_s, cpu_s = sum(each.took_s for each in all_calls), sum(each.cpu_s for each in all_calls)
        made_s = sum(sum(maker.stages_s.values()) for maker in statistics.makers)
        if cpu_s > _LOCKED_CPUS * made_s and took_s > _LOCKED_TIMES * cpu_s:
            return f"its {concurrency} threads take turns with the interpreter's lock: {_more_workers(setup)}"
        if cpu_s < _WAITING_CPUS * took_s:
            return f"its calls mostly wait: raise concurrency from {concurrency}, if processors are idle"
    advice = _more_workers(setup)
    if stage in setup.concurrency and concurrency == 1:
        advice += "; or raise concurrency, if it waits or releases the interpreter's lock"
    return advice


def _more_workers(setup: Setup) -> str:
    if setup.num_workers < setup.processors > 1:
        return f"try num_workers={setup.processors}, as there are {setup.processors} processors"
    return "every processor has its process: take less work, or store what comes of it beforehand"
