"""Says of an epoch whether each sample was delivered once; what was not, how often and by whom. Pure.

What can be proved depends on what is known. Where the counts of all shards are, a sample that is lacking is
named. Without, it is proved that none came twice and that there is no hole between those that came. A sample
that an operator says it has left out is not lacking; of operators that cannot say which ones they leave out,
only the number is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from ..blocks import Origin
from .accounts import Runs, delivered_runs, left_out_runs, with_runs
from .contents import Contents, Part
from .reading import LaneLog, Pass, logs_of

__all__ = ["EpochVerdict", "Finding", "judge_epoch"]

_Judged: TypeAlias = Literal["exact", "wrong", "unfinished", "incomplete"]

_STOP = 'uneven="stop"'


@dataclass(frozen=True)
class Finding:
    """Samples that were not delivered once.

    Attributes:
        what: ``"twice"``, ``"never"``, or ``"beyond"`` the samples that the shard has; or ``"left out"`` by
            an operator, which is no fault.
        component: The name of the mixture's component; empty outside of any.
        shard: Its URL or path; of a source without shards, its lane.
        repetition: Of the data within the epoch.
        first: The first of the samples.
        stop: Behind the last; None if it is not known how many there are.
        ranks: Who delivered them.
        lanes: In which lanes.
        by: Who has left them out.
    """

    what: Literal["twice", "never", "beyond", "left out"]
    component: str
    shard: str
    repetition: int
    first: int
    stop: int | None
    ranks: tuple[int, ...] = ()
    lanes: tuple[int, ...] = ()
    by: str = ""

    def __str__(self) -> str:
        last = "the last" if self.stop is None else self.stop - 1
        samples = f"sample {self.first}" if last == self.first else f"samples {self.first} to {last}"
        where = f"{samples} of {self.shard}" + (f" in component {self.component!r}" if self.component else "")
        again = f", repetition {self.repetition}" if self.repetition else ""
        whom = ""
        if self.ranks:
            whom = f" (ranks {_listed(self.ranks)}, lanes {_listed(self.lanes)})"
        return f"{self.what}{f' by {self.by}' * bool(self.by)}: {where}{again}{whom}"


@dataclass(frozen=True)
class EpochVerdict:
    """What an epoch came to.

    Attributes:
        recipe: Names the recipe, as the files do.
        epoch: Its number.
        verdict: ``"exact"``: proved, as far as counts are known. ``"wrong"``: samples came twice or are
            lacking, or the record itself is not whole. ``"unfinished"``: nothing is wrong so far.
            ``"incomplete"``: nothing else is wrong, but ``uneven="stop"`` ended the epoch while ranks had
            samples left.
        samples: Delivered, of those that count: what came again after a restart counts once.
        expected: How many there are; None if that is not known.
        batches: Delivered, likewise.
        ranks: Who delivered them.
        findings: What is wrong.
        left_out: How many samples did not come for one of ``reasons``; None if that is not known.
        left_out_by: How many of these each operator has named, one by one: ``.filter``, ``.filter_batches``
            and ``drop_last`` do. The others were left out by what cannot say which ones.
        left_out_samples: Those that were named, if that was asked for.
        reasons: What leaves samples out: operators of the dataset, ``drop_last``, ``uneven="stop"``.
        faults: What is wrong with the record.
        open_lanes: Those that are not known to have ended.
    """

    recipe: str
    epoch: int
    verdict: _Judged
    samples: int
    expected: int | None
    batches: int
    ranks: tuple[int, ...]
    findings: tuple[Finding, ...]
    left_out: int | None
    left_out_by: Mapping[str, int]
    left_out_samples: tuple[Finding, ...] = field(repr=False)
    reasons: tuple[str, ...]
    faults: tuple[str, ...]
    open_lanes: tuple[int, ...]

    def __str__(self) -> str:
        details = map(str, (*self.faults, *self.findings, *self.left_out_samples))
        return "\n  ".join([f"epoch {self.epoch}: {self._summary()}", *details])

    def _summary(self) -> str:
        came = f"{self.samples} samples in {self.batches} batches by ranks {_listed(self.ranks)}"
        if self.verdict == "wrong":
            return f"WRONG: {came}"
        if self.verdict == "unfinished":
            return f"unfinished: {came}, none twice; lanes {_listed(self.open_lanes)} have not ended"
        came = f"{'INCOMPLETE' if self.verdict == 'incomplete' else 'exact'}: {came}"
        named = [f"{count} by {by}" for by, count in self.left_out_by.items() if count]
        others = ", ".join(reason for reason in self.reasons if reason not in self.left_out_by)
        if self.left_out is None:
            told = f"{', '.join(named)} were left out, and " if named else ""
            unknown = f"how many {others} left out is not known without an index"
            return f"{came}, none twice; {told}{unknown}"
        if unnamed := self.left_out - sum(self.left_out_by.values()):
            named.append(f"{unnamed} by {others}, of which nobody says which ones")
        more = f"{self.left_out} more were left out: {', '.join(named)}" if named else ""
        if self.expected is not None:
            return f"{came}, " + (f"none twice; {more}" if more else f"each of {self.expected} once")
        known = "how many there are is not known"
        return f"{came}, none twice and none lacking between them; {f'{more}; ' * bool(more)}{known}"


def judge_epoch(
    recipe: str, epoch: int, contents: Contents, passes: Sequence[Pass], *, left_out: bool = False
) -> EpochVerdict:
    """The verdict on an epoch.

    Args:
        recipe: Its name.
        epoch: Its number.
        contents: What the dataset is of.
        passes: Those of all ranks over it.
        left_out: Whether to name each run of samples that operators have left out.
    """
    logs = logs_of(passes)
    delivered = delivered_runs(logs)
    lanes = range(contents.recipe["lanes"])
    open_lanes = tuple(lane for lane in lanes if lane not in logs or not logs[lane].ended)
    reasons, unnamed = _reasons(passes, logs)
    told = left_out_runs(logs, {part.component for part in contents.parts})
    named, accounted = _accounted(told, delivered)
    left_out_by = {by: named.get(by, 0) for by in reasons if by in named or by not in unnamed}
    faults = tuple(f"lane {lane}: {fault}" for lane, log in sorted(logs.items()) for fault in log.faults)
    excess = [*_doubled(contents.parts, delivered)]
    missing = [*_missing(contents.parts, accounted)]
    expected = _expected(contents.parts)
    lacking = None if expected is None else sum(each.stop - each.first for each in missing if each.stop)
    if excess or faults:
        verdict: _Judged = "wrong"
    elif open_lanes and (missing or expected is None):
        verdict, missing, lacking = "unfinished", [], 0
    elif _STOP in reasons and (missing or expected is None):
        verdict = "incomplete"
    else:
        verdict = "wrong" if missing and not unnamed else "exact"
    total: int | None = sum(left_out_by.values())
    if total is not None and unnamed:
        total = None if lacking is None else total + lacking
    rows = [(rank, row) for log in logs.values() for rank, row in log.rows]
    return EpochVerdict(
        recipe=recipe,
        epoch=epoch,
        verdict=verdict,
        samples=sum(int((each.stops - each.starts).sum()) for each in delivered.values()),
        expected=expected,
        batches=sum(row.stop - row.first for _, row in rows),
        ranks=tuple(sorted({rank for rank, _ in rows})),
        findings=tuple(excess + ([] if unnamed else missing)),
        left_out=total,
        left_out_by=left_out_by,
        left_out_samples=tuple(_left_out(contents.parts, told)) if left_out else (),
        reasons=tuple(reasons),
        faults=faults,
        open_lanes=open_lanes,
    )


def _reasons(passes: Sequence[Pass], logs: Mapping[int, LaneLog]) -> tuple[list[str], set[str]]:
    """What leaves samples out, and which of it does not say which ones."""
    begins = [each.begin for each in passes]
    reasons = [*dict.fromkeys(reason for begin in begins for reason in begin.leaves_out)]
    unnamed = {reason for begin in begins for reason in begin.leaves_out if reason not in begin.tells}
    if any(log.stopped for log in logs.values()):
        reasons.append(_STOP)
        unnamed.add(_STOP)
    return reasons, unnamed


def _accounted(
    told: Mapping[str, Mapping[Origin, Runs]], delivered: Mapping[Origin, Runs]
) -> tuple[dict[str, int], Mapping[Origin, Runs]]:
    """How many samples that did not come each operator has named, and what came together with those."""
    named, accounted = {}, delivered
    for by, runs in told.items():
        before, accounted = accounted, with_runs(accounted, runs)
        named[by] = sum(
            accounted[origin].count_once() - (before[origin].count_once() if origin in before else 0)
            for origin in runs
        )
    return named, accounted


def _left_out(parts: Sequence[Part], told: Mapping[str, Mapping[Origin, Runs]]) -> Iterator[Finding]:
    """The samples that operators have named."""
    known = {part.component: part for part in parts}
    for by, of_shards in told.items():
        for origin, runs in sorted(of_shards.items()):
            for first, stop in runs.merged().tolist():
                yield replace(_finding("left out", known[origin.component], origin, first, stop), by=by)


def _doubled(parts: Sequence[Part], delivered: Mapping[Origin, Runs]) -> Iterator[Finding]:
    """What was delivered more than once, or is not there to be delivered."""
    known = {part.component: part for part in parts}
    for origin, runs in delivered.items():
        part = known.get(origin.component)
        reached = runs.reached
        for at in (np.flatnonzero(runs.starts[1:] < reached[:-1]) + 1).tolist():
            first, stop = int(runs.starts[at]), int(min(runs.stops[at], reached[at - 1]))
            who = np.flatnonzero((runs.starts < stop) & (runs.stops > first))
            yield _finding("twice", part, origin, first, stop, runs, who)
        count = _count_of(part, origin)
        if count is not None and reached[-1] > count:
            yield _finding(
                "beyond", part, origin, count, int(reached[-1]), runs, np.flatnonzero(runs.stops > count)
            )


def _missing(parts: Sequence[Part], delivered: Mapping[Origin, Runs]) -> Iterator[Finding]:
    """What was not delivered: in a hole between others, or behind them where the count is known."""
    for part in parts:
        for origin in _origins_of(part, delivered):
            count, runs = _count_of(part, origin), delivered.get(origin)
            if runs is None:
                if count != 0:
                    yield _finding("never", part, origin, 0, count)
                continue
            ends = runs.reached
            begins = np.concatenate([runs.starts, [ends[-1] if count is None else max(count, ends[-1])]])
            before = np.concatenate([[0], ends])
            for at in np.flatnonzero(begins > before).tolist():
                yield _finding("never", part, origin, int(before[at]), int(begins[at]))


def _origins_of(part: Part, delivered: Mapping[Origin, Runs]) -> Iterable[Origin]:
    """All that should have been delivered of a source; what was, where nobody knows how often it comes."""
    seen = [origin for origin in delivered if origin.component == part.component]
    if part.shards is None or part.repetitions is None:
        return seen
    return (
        Origin(part.component, number, repetition)
        for repetition in range(part.repetitions)
        for number in range(len(part.shards))
    )


def _expected(parts: Sequence[Part]) -> int | None:
    """How many samples an epoch has."""
    total = 0
    for part in parts:
        if part.samples is None or part.repetitions is None:
            return None
        for count in part.samples:
            if count is None:
                return None
            total += count * part.repetitions
    return total


def _count_of(part: Part | None, origin: Origin) -> int | None:
    return None if part is None or part.samples is None else part.samples[origin.number]


def _finding(
    what: Literal["twice", "never", "beyond", "left out"],
    part: Part | None,
    origin: Origin,
    first: int,
    stop: int | None,
    runs: Runs | None = None,
    who: Any = None,
) -> Finding:
    shards = None if part is None else part.shards
    shard = f"lane {origin.number}" if shards is None else shards[origin.number]
    ranks = () if runs is None else tuple(sorted({*runs.ranks[who].tolist()}))
    lanes = () if runs is None else tuple(sorted({*runs.lanes[who].tolist()}))
    name = "" if part is None else part.name
    return Finding(what, name, shard, origin.repetition, first, stop, ranks, lanes)


def _listed(numbers: Sequence[int]) -> str:
    """Numbers in words; the first of very many."""
    more = f" and {len(numbers) - 16} more" if len(numbers) > 16 else ""
    return ", ".join(map(str, numbers[:16])) + more
