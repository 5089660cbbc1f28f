"""The verdict on an epoch: whether each sample was delivered once, and if not, how often and by which rank.

What can be proved depends on what is known. Where the counts of all shards are known, a missing sample is
named. Without them it is proved that no sample came twice and that none is missing between those that came.
A sample that an operator names as left out is not missing; of operators that cannot name what they leave out,
only the number is known.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..blocks import Origin
from ..observe.audit import AuditedSource, Contents, LaneLog, RecordedPass, logs_of, read_audits
from ..pipeline.renamed import INDEX_OPTIONS, with_advice
from ..shards.index_lookup import Entries, read_entries
from ..stores.urls import redact

# --- what became of the samples of each shard ---


class SampleRuns(NamedTuple):
    """Runs of samples of one shard in one repetition, by where they begin; some may be there twice.

    Attributes:
        starts: ``(runs,) int64``, as all of them.
        stops: After the last sample of each.
        ranks: Which rank delivered it, or left it out.
        lanes: In which lane.
    """

    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    ranks: NDArray[np.int64]
    lanes: NDArray[np.int64]

    @property
    def reached(self) -> NDArray[np.int64]:
        """How far each run and those before it go."""
        return np.maximum.accumulate(self.stops)

    def merged(self) -> NDArray[np.int64]:
        """Runs that hold each sample once, with others between them: ``(n, 2) int64``."""
        reached = self.reached
        first_ones = np.flatnonzero(np.concatenate([[True], self.starts[1:] > reached[:-1]]))
        last_ones = np.append(first_ones[1:] - 1, len(reached) - 1)
        return np.column_stack([self.starts[first_ones], reached[last_ones]])


#: Runs of samples of a shard, as starts and stops in turn; their rank and their lane.
_Row: TypeAlias = tuple[Origin, Sequence[int], int, int]


def _gathered(rows: Iterable[_Row]) -> dict[Origin, SampleRuns]:
    """The runs of each shard."""
    tables: dict[Origin, list[NDArray[np.int64]]] = {}
    for origin, bounds, rank, lane in rows:
        runs = np.array(bounds, np.int64).reshape(-1, 2)
        by_whom = np.broadcast_to(np.array([rank, lane]), runs.shape)
        tables.setdefault(origin, []).append(np.hstack([runs, by_whom]))
    whole = {origin: np.concatenate(parts) for origin, parts in tables.items()}
    return {
        origin: SampleRuns(*table[np.lexsort((table[:, 1], table[:, 0]))].T)
        for origin, table in whole.items()
    }


_Judged: TypeAlias = Literal["exact", "wrong", "unfinished", "incomplete"]

_STOP = 'uneven="stop"'


@dataclass(frozen=True)
class Finding:
    """Samples that were not delivered once.

    Attributes:
        what: They came ``"twice"`` or ``"never"``, or are ``"beyond"`` the samples of the shard; or
            ``"left out"`` by an operator, which is not a fault.
        component: Name of the component of a mixture; empty for other datasets.
        shard: URL or path of the shard; for a source without shards, the lane.
        repetition: Number of the repetition within the epoch, from 0.
        first: Index of the first of the samples.
        stop: Index after the last one; None if it is not known how many there are.
        ranks: The ranks that delivered them.
        lanes: The lanes that they came in.
        by: The operator that has left them out; otherwise empty.
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
        text = f"{self.what}{f' by {self.by}' * bool(self.by)}: "
        text += f"sample {self.first}" if last == self.first else f"samples {self.first} to {last}"
        text += f" of {self.shard}" + (f" in component {self.component!r}" if self.component else "")
        text += f", repetition {self.repetition}" if self.repetition else ""
        text += f" (ranks {_listed(self.ranks)}, lanes {_listed(self.lanes)})" if self.ranks else ""
        return text


@dataclass(frozen=True)
class EpochVerdict:
    """The verdict on an epoch.

    Attributes:
        dataset: Name of the dataset, as in the files.
        epoch: Number of the epoch, from 0.
        verdict: ``"exact"``: each sample came once, as far as counts are known. ``"wrong"``: samples came
            twice or are missing, or the record is not complete. ``"unfinished"``: nothing is wrong so far.
            ``"incomplete"``: nothing else is wrong, but ``uneven="stop"`` ended the epoch while ranks had
            samples left.
        samples: How many samples were delivered. One that came again after a restart counts once.
        expected: How many samples there are; None if that is not known.
        batches: How many batches were delivered, counted like samples.
        ranks: The ranks that delivered them.
        findings: The samples that did not come once.
        left_out: How many samples did not come for one of ``reasons``; None if that is not known.
        left_out_by: How many of these are recorded one by one, by operator: ``.filter``, ``.filter_batches``
            and ``drop_last`` do that, and other operators do not.
        left_out_samples: The samples that are recorded so, on request.
        reasons: What leaves samples out: operators of the dataset, ``drop_last``, ``uneven="stop"``.
        faults: What is wrong with the record.
        open_lanes: The lanes that are not known to have ended.
    """

    dataset: str
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
        ranks = f"rank{'s' * (len(self.ranks) != 1)} {_listed(self.ranks)}"
        came = f"{self.samples} samples in {self.batches} batches by {ranks}"
        if self.verdict == "wrong":
            return f"WRONG: {came}"
        if self.verdict == "unfinished":
            return f"unfinished: {came}, none twice; lanes {_listed(self.open_lanes)} have not ended"
        came = f"{'INCOMPLETE' if self.verdict == 'incomplete' else 'exact'}: {came}"
        named = [f"{count} by {by}" for by, count in self.left_out_by.items() if count]
        others = ", ".join(reason for reason in self.reasons if reason not in self.left_out_by)
        if self.left_out is None:
            known = f"{', '.join(named)} were left out, and " if named else ""
            unknown = f"without an index it is not known how many {others} left out"
            return f"{came}, none twice; {known}{unknown}"
        if unnamed := self.left_out - sum(self.left_out_by.values()):
            named.append(f"{unnamed} by {others} (which ones is not recorded)")
        more = f"{self.left_out} more were left out: {', '.join(named)}" if named else ""
        if self.expected is not None:
            return f"{came}, " + (f"none twice; {more}" if more else f"each of {self.expected} once")
        known = "the total is not known"
        return f"{came}, none twice and none missing between them; {f'{more}; ' * bool(more)}{known}"


def judge_epoch(
    dataset: str, epoch: int, contents: Contents, passes: Sequence[RecordedPass], *, left_out: bool = False
) -> EpochVerdict:
    """The verdict on an epoch.

    Args:
        dataset: Its name.
        epoch: Its number.
        contents: What the dataset is of.
        passes: Those of all ranks over it.
        left_out: Whether to name each run of samples that operators have left out.
    """
    logs = logs_of(passes)
    known = {part.component: part for part in contents.parts}
    rows = [(rank, lane, row) for lane, log in logs.items() for rank, row in log.rows]
    came: list[_Row] = [
        (origin, bounds, rank, lane) for rank, lane, row in rows for origin, bounds in row.samples
    ]
    lanes = range(contents.described["lanes"])
    open_lanes = tuple(lane for lane in lanes if lane not in logs or not logs[lane].ended)
    reasons, unnamed = _reasons(passes, logs)
    left: dict[str, list[_Row]] = {}
    for rank, lane, row in rows:
        for by, origin, bounds in row.left_out:
            if origin.component in known:  # other sources are not followed
                left.setdefault(by, []).append((origin, bounds, rank, lane))
    # A sample that was delivered, or that another operator has named, does not count again.
    delivered = accounted = _gathered(came)
    named: dict[str, int] = {}
    for by, left_rows in left.items():
        came += left_rows
        before, accounted = accounted, _gathered(came)
        named[by] = _count(accounted) - _count(before)
    left_out_by = {by: named.get(by, 0) for by in reasons if by in named or by not in unnamed}
    faults = tuple(f"lane {lane}: {fault}" for lane, log in sorted(logs.items()) for fault in log.faults)
    excess = [*_doubled(known, delivered)]
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
    return EpochVerdict(
        dataset=dataset,
        epoch=epoch,
        verdict=verdict,
        samples=sum(int((each.stops - each.starts).sum()) for each in delivered.values()),
        expected=expected,
        batches=sum(row.stop - row.first for *_, row in rows),
        ranks=tuple(sorted({rank for rank, *_ in rows})),
        findings=tuple(excess + ([] if unnamed else missing)),
        left_out=total,
        left_out_by=left_out_by,
        left_out_samples=tuple(_left_out(known, left)) if left_out else (),
        reasons=tuple(reasons),
        faults=faults,
        open_lanes=open_lanes,
    )


def _reasons(passes: Sequence[RecordedPass], logs: Mapping[int, LaneLog]) -> tuple[list[str], set[str]]:
    """What leaves samples out, and which of it does not name them."""
    begins = [each.begin for each in passes]
    reasons = [*dict.fromkeys(reason for begin in begins for reason in begin.leaves_out)]
    unnamed = {reason for begin in begins for reason in begin.leaves_out if reason not in begin.named_by}
    if any(log.stopped for log in logs.values()):
        reasons.append(_STOP)
        unnamed.add(_STOP)
    return reasons, unnamed


def _count(shards: Mapping[Origin, SampleRuns]) -> int:
    """How many samples there are, each counted once."""
    return sum(int(np.diff(runs.merged()).sum()) for runs in shards.values())


def _left_out(
    known: Mapping[tuple[int, ...], AuditedSource], left: Mapping[str, Sequence[_Row]]
) -> Iterator[Finding]:
    """The samples that operators have named."""
    for by, rows in left.items():
        for origin, runs in sorted(_gathered(rows).items()):
            for first, stop in runs.merged().tolist():
                yield replace(_finding("left out", known[origin.component], origin, first, stop), by=by)


def _doubled(
    known: Mapping[tuple[int, ...], AuditedSource], delivered: Mapping[Origin, SampleRuns]
) -> Iterator[Finding]:
    """What was delivered more than once, or is not in its shard."""
    for origin, runs in delivered.items():
        part = known.get(origin.component)
        reached = runs.reached
        for at in (np.flatnonzero(runs.starts[1:] < reached[:-1]) + 1).tolist():
            first, stop = int(runs.starts[at]), int(min(runs.stops[at], reached[at - 1]))
            of_these = np.flatnonzero((runs.starts < stop) & (runs.stops > first))
            yield _finding("twice", part, origin, first, stop, runs, of_these)
        count = _count_of(part, origin)
        if count is not None and reached[-1] > count:
            yield _finding(
                "beyond", part, origin, count, int(reached[-1]), runs, np.flatnonzero(runs.stops > count)
            )


def _missing(parts: Sequence[AuditedSource], delivered: Mapping[Origin, SampleRuns]) -> Iterator[Finding]:
    """What was not delivered: between others, or after them where the count is known."""
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


def _origins_of(part: AuditedSource, delivered: Mapping[Origin, SampleRuns]) -> Iterable[Origin]:
    """All that should have been delivered of a source; what was, where it is not known how often it comes."""
    seen = [origin for origin in delivered if origin.component == part.component]
    if part.shards is None or part.repetitions is None:
        return seen
    return (
        Origin(part.component, number, repetition)
        for repetition in range(part.repetitions)
        for number in range(len(part.shards))
    )


def _expected(parts: Sequence[AuditedSource]) -> int | None:
    """How many samples an epoch has."""
    total = 0
    for part in parts:
        if part.samples is None or part.repetitions is None or None in part.samples:
            return None
        total += sum(filter(None, part.samples)) * part.repetitions
    return total


def _count_of(part: AuditedSource | None, origin: Origin) -> int | None:
    return None if part is None or part.samples is None else part.samples[origin.number]


def _finding(
    what: Literal["twice", "never", "beyond", "left out"],
    part: AuditedSource | None,
    origin: Origin,
    first: int,
    stop: int | None,
    runs: SampleRuns | None = None,
    which: Any = None,
) -> Finding:
    shards = None if part is None else part.shards
    shard = f"lane {origin.number}" if shards is None else shards[origin.number]
    ranks = () if runs is None else tuple(sorted({*runs.ranks[which].tolist()}))
    lanes = () if runs is None else tuple(sorted({*runs.lanes[which].tolist()}))
    name = "" if part is None else part.name
    return Finding(what, name, shard, origin.repetition, first, stop, ranks, lanes)


def _listed(numbers: Sequence[int]) -> str:
    """Numbers separated by commas; the first of very many."""
    more = f" and {len(numbers) - 16} more" if len(numbers) > 16 else ""
    return ", ".join(map(str, numbers[:16])) + more


# --- all ranks and restarts ---


@with_advice(INDEX_OPTIONS)
def verify_audit(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    epoch: int | None = None,
    index: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    left_out: bool = False,
) -> list[EpochVerdict]:
    """Prove from the records of all ranks that each epoch delivered each sample once, or say what is wrong.

    The records of all ranks and restarts are merged. After a restart, the samples since the loaded state come
    again; they count once.

    Args:
        paths: The folder of ``DataLoader(audit=...)``, or several if ranks wrote to different disks.
        epoch: The epoch to check. None: all epochs. The last one of a running training is unfinished.
        index: Path or URL of the index of the shards, if there was none beside them during the training. It
            must list every shard of at least one source.
        storage_options: Options for an index in a store, as for ``from_urls``.
        left_out: Fill ``EpochVerdict.left_out_samples``. False by default, since a filter may leave out
            millions.

    Returns:
        A verdict for each epoch that a loader began, grouped by dataset.

    Raises:
        ValueError: There is no audit, or none of this epoch; a file is not part of an audit; the table of
            contents, which rank 0 writes, is missing; or the index does not exist or is of other shards.
        StoreError: The index cannot be read.
        FormatError: The index is damaged.
        OSError: A file cannot be read.
    """
    places = [paths] if isinstance(paths, str | os.PathLike) else [*paths]
    entries = None if index is None else read_entries(os.fspath(index), storage_options or {})
    has_matched, verdicts = False, []
    for name, audited in sorted(read_audits(places).items()):
        contents = audited.contents
        if contents is None:
            raise ValueError(
                f"expected {name}.json, which rank 0 writes, but found none; name its folder too"
            )
        if entries is not None:
            parts = [_with_counts(part, entries) for part in contents.parts]
            has_matched |= any(part is not None for part in parts)
            known = zip(parts, contents.parts, strict=True)
            contents = msgspec.structs.replace(contents, parts=[counted or part for counted, part in known])
        by_epoch: dict[int, list[RecordedPass]] = {}
        for each in audited.passes:
            by_epoch.setdefault(each.begin.epoch, []).append(each)
        verdicts += [
            judge_epoch(name, number, contents, passes, left_out=left_out)
            for number, passes in sorted(by_epoch.items())
            if epoch in (None, number)
        ]
    if entries is not None and not has_matched:
        raise ValueError(
            f"{_name_of(entries)} lists none of the shards in the audit; name the index of these shards. "
            "Names in an index are relative to its folder, and the audit has paths as the loader got them"
        )
    if not verdicts:
        raise ValueError(f"there is no audit of epoch {epoch}")
    return verdicts


def _with_counts(part: AuditedSource, entries: Entries) -> AuditedSource | None:
    """A source with the numbers of samples that an index has; None if it is of other shards.

    Raises:
        ValueError: It lists some of the shards and not all, or another number of samples than is known.
    """
    if not part.shards or part.samples is None:
        return None
    counts = entries.of(part.shards).counts()
    unlisted = [shard for shard, count in zip(part.shards, counts, strict=True) if count is None]
    if len(unlisted) == len(counts):  # another source's, or another dataset's
        return None
    if unlisted:
        raise ValueError(
            f"{_name_of(entries)} has no number of samples for {len(unlisted)} of the {len(counts)} shards "
            f"of the audit; the first is {unlisted[0]}. Add them with asyncloader index"
        )
    for shard, known, count in zip(part.shards, part.samples, counts, strict=True):
        if known is not None and known != count:
            raise ValueError(
                f"{_name_of(entries)} has {count} samples in {shard}, but the loader knew {known} when it "
                "recorded the audit; name the index of that time"
            )
    return replace(part, samples=counts)


def _name_of(entries: Entries) -> str:
    return f"the index {redact(entries.url)}"
