"""The verdict on a pass: which stage makes the consumer wait, and what to change. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .advice import Setup, advise, more_workers
from .statistics import Maker, Statistics
from .stopwatch import (
    BATCHING,
    COLLATE,
    DECODE,
    PINNING,
    RECEIVING,
    RESTING,
    SAMPLER,
    SENDING,
    STARTING,
    STORE,
    name_of,
    shares_of,
)

__all__ = ["Report", "Setup", "judge"]

# Less, and the loader is not what limits: a tenth of the time is what a training step varies by.
_WAITS_SHARE = 0.1

# Makers that rest so much of their time have batches ready, so that something behind them is slow.
_RESTS_SHARE = 0.5

# A worker that rests so much more than the one that is waited for has too little to do.
_UNBALANCED_SHARE = 0.5

# Makers in the loop's own process that rest less than so, and keep a processor busy for so much of the time,
# may hold the interpreter's lock when the loop wants it: it waits within its steps, where nobody sees it.
_LOCKED_RESTS_SHARE, _LOCKED_CPUS = 0.2, 0.5

# Where it waits for so much beside that, batches are not ready when it comes for them: it is not what limits.
_LOCKED_WAITS_SHARE = 0.03

# With less of the time, they cannot hold up the loop by much. Whether with more they do, nobody can tell but
# who knows how long steps take alone: whoever gets the lock more seldom also rests more.
_HINTED_CPUS = 0.25

# What the loop's own thread works on for so much of its waiting is what it waits for.
_LOOPS_SHARE = 0.5

# A pass of which more was the start of its workers.
_STARTS_SHARE = 0.5

# Less, and it is no news.
_TOLD_CPUS = 0.1

# Of all requests.
_THROTTLED_SHARE = 0.02

# Stages that a line names.
_MOST_NAMED = 4


@dataclass(frozen=True)
class Report:
    """What limits a pass, in three lines: ``print(loader.report())``.

    Attributes:
        limit: ``"consumer"``; ``"store"``, ``"server"`` (it refuses), ``"memory_limit"`` or ``"cache"`` (it
            is filled), where bytes are waited for; ``"decode"``; an operator as it is called, such as
            ``"map(augment)"``; ``"collate"``; ``"transport"``; ``"lanes"``, of which one has more to do than
            the others; ``"ranks"``, another of which is slower; ``"start"``, before the first batch.
            Of torch's kinds the dataset's own work, such as ``"Images.__getitem__"``; ``"sampler"``;
            ``"workers"``, of which one has more to do than the others; ``"start"``, of workers, which took
            most of the pass.
        wait_share: The part of the time from 0 to 1 that the consumer has waited since the first batch; of a
            pass of one batch at most, since its beginning.
        shares: What those who make batches did, by stage: parts of their time that add up to 1.
        lines: What happened, what limits, and what to change.
    """

    limit: str
    wait_share: float
    shares: Mapping[str, float]
    lines: tuple[str, str, str]

    def _repr_html_(self) -> str:
        """For notebooks; whatever is in the user's names is escaped."""
        from .page import report_html

        return report_html(self)

    def __str__(self) -> str:
        return "\n".join(self.lines)


def judge(statistics: Statistics, setup: Setup) -> Report:
    """The verdict on a pass, which may be going on, or of which the statistics were saved."""
    shares = shares_of(maker.stages_s for maker in statistics.makers)
    many = f"{statistics.batches:,} batch{'es' * (statistics.batches != 1)}"
    if not shares:
        return Report("start", 0.0, shares, (f"{many} so far", "nothing is known yet", "ask later"))
    start_s = statistics.first_batch_s or 0.0
    left_out_s = start_s if statistics.batches > 1 else 0.0  # alone, the first batch is all there is to judge
    elapsed_s = max(statistics.elapsed_s - left_out_s, 1e-9)
    wait_share = min(max(statistics.wait_s - left_out_s, 0.0) / elapsed_s, 1.0)
    is_locked = _LOCKED_WAITS_SHARE <= wait_share < _WAITS_SHARE and _is_locked(statistics, setup, shares)
    limit = _limit(statistics, setup, wait_share, shares, is_locked)
    told, advice = _told(limit, setup), advise(limit, statistics, setup)
    if is_locked:
        told += ", if it holds the interpreter's lock, which the training loop wants"
    elif limit == "consumer" and _shares_lock(setup) and _busy_cpus(statistics) > _HINTED_CPUS:
        advice = f"if steps alone are faster, they wait for the interpreter's lock: {more_workers(setup)}"
    lines = (
        f"{many}, {statistics.samples / max(statistics.elapsed_s, 1e-9):,.0f} samples/s; the consumer waits "
        f"{wait_share:.0%} of the time, after {start_s:.2f} s for the first batch",
        f"{told}; making batches is {_listed(shares)}{_cpus(statistics, setup)}",
        advice,
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
    "workers": "one worker limits, whose turn the others wait for",
    "start": "starting the workers limits",
    SAMPLER: "the sampler limits, which the loop asks itself",
    PINNING: "copying batches to page-locked memory limits",
    "ranks": "another rank limits, with which this one is in step",
}


def _told(limit: str, setup: Setup) -> str:
    if limit == STORE and setup.is_local:
        return "the disk limits"
    return _TOLD.get(limit, f"{limit} limits")


def _listed(shares: Mapping[str, float]) -> str:
    named = [f"{share:.0%} {name_of(stage)}" for stage, share in shares.items() if share >= 0.01]
    return ", ".join(named[:_MOST_NAMED])


def _limit(
    statistics: Statistics, setup: Setup, wait_share: float, shares: Mapping[str, float], is_locked: bool
) -> str:
    if _is_starting(statistics, setup):
        return "start"
    if wait_share < _WAITS_SHARE and not is_locked:
        return "consumer"
    for stage, limit in ((SAMPLER, SAMPLER), (RECEIVING, "transport")):
        if statistics.loop_stages_s.get(stage, 0.0) > _LOOPS_SHARE * statistics.wait_s:
            return limit
    stage = _stage_of(shares)
    if setup.is_inline:
        return stage
    if stage == STORE and (why := _limit_of_store(statistics, setup)) != STORE:
        return why
    if setup.in_order and _is_unbalanced(statistics):
        return "lanes" if setup.style == "stream" else "workers"
    if shares.get(RESTING, 0.0) > _RESTS_SHARE and (setup.has_ranks or setup.num_workers):
        return "ranks" if setup.has_ranks else "transport"
    return "transport" if stage == SENDING else stage


def _shares_lock(setup: Setup) -> bool:
    """Whether batches are made beside the loop, in its process."""
    return not setup.num_workers and not setup.is_inline


def _is_locked(statistics: Statistics, setup: Setup, shares: Mapping[str, float]) -> bool:
    """Whether the loop shares the interpreter's lock with makers that may leave it little of it."""
    if not _shares_lock(setup) or _stage_of(shares) == STORE:
        return False
    return shares.get(RESTING, 0.0) < _LOCKED_RESTS_SHARE and _busy_cpus(statistics) > _LOCKED_CPUS


def _stage_of(shares: Mapping[str, float]) -> str:
    """The stage that takes most of the makers' time."""
    return next((stage for stage in shares if stage not in (RESTING, BATCHING)), COLLATE)


def _is_starting(statistics: Statistics, setup: Setup) -> bool:
    """Whether most of a pass was that workers of torch's kinds were started, which may be in each epoch."""
    if setup.style == "stream" or not statistics.makers:
        return False
    first_s = min(maker.stages_s.get(STARTING, 0.0) for maker in statistics.makers)
    return first_s > _STARTS_SHARE * statistics.elapsed_s


def _limit_of_store(statistics: Statistics, setup: Setup) -> str:
    """What it is that bytes are waited for."""
    network = statistics.network
    if network.throttled > _THROTTLED_SHARE * network.requests:
        return "server"
    if any(maker.wants_memory for maker in statistics.makers):
        return "memory_limit"
    return "cache" if setup.caches and network.requests else STORE


def _is_unbalanced(statistics: Statistics) -> bool:
    resting = [maker.stages_s.get(RESTING, 0.0) / max(_made_s(maker), 1e-9) for maker in statistics.makers]
    return max(resting) - min(resting) > _UNBALANCED_SHARE


def _made_s(maker: Maker) -> float:
    """Its time since it has begun with the first batch."""
    return sum(maker.stages_s.values()) - maker.stages_s.get(STARTING, 0.0)


def _cpus(statistics: Statistics, setup: Setup) -> str:
    """How many processors the makers keep busy, if it is a good part of one."""
    busy = _busy_cpus(statistics)
    return f"; it keeps {busy:.1f} of {setup.processors} processors busy" if busy >= _TOLD_CPUS else ""


def _busy_cpus(statistics: Statistics) -> float:
    spent_s = sum(
        maker.cpu_s + sum(calls.cpu_s for calls in maker.calls.values()) for maker in statistics.makers
    )
    return spent_s / max(statistics.elapsed_s, 1e-9)
