"""What may go wrong in an epoch and be passed over: samples and shards, within a budget.

Nothing is passed over unless a loader is given a budget. Then each lane counts for itself what it skips, and
its positions say how many that were: whoever is opened at one goes on counting from there, and what comes
again behind it is skipped and counted again. So the counts of a resumed epoch are those of one in a piece.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..blocks import Block, PickedTrail, Place
from ..errors import SkipBudgetError
from ..quantity import as_counts, as_whole
from ..types import Position

_KEY = "skipped"

# What ``rate`` is a part of: enough for one in a hundred to mean something.
_RATE_SAMPLES = 1000

# Of an error in a line of the dead letters, and in the message that the budget is spent.
_MOST_CHARACTERS = 500


@dataclass(frozen=True)
class SkipErrors:
    """Pass over samples and shards that cannot be had, within a budget: for ``DataLoader(on_error=...)``.

    Skipped are samples whose function (of ``.map``, ``.filter``, ``.decode``) raises, lines of a shard that
    are no JSON or text, and the rest of a shard from where it is corrupt, cut, changed or gone. Not skipped
    are errors of functions of many samples, of collating and of batching: whose fault they are, nobody knows.

    At least one bound has to be given: without any, a wrong path or function would make an empty epoch.

    Args:
        max: The most samples and shards together that an epoch may skip on this rank, whatever it was resumed
            from. The rest of a shard counts once.
        rate: The most of the last 1,000 samples of a lane that a step of the dataset may skip, from 0 to 1.
        consecutive: The most that it may skip in a row.
        dead_letters: A file to which a line of JSON is appended for each: ``what`` (``"sample"`` or
            ``"shard"``), ``shard``, ``sample`` (its index), ``offset`` (where known), ``key``, ``error``,
            ``during``, ``epoch``, ``rank``, ``lane``. What comes again after a resume is there again.

    Raises:
        ValueError: No bound, or one out of range.
        TypeError: ``dead_letters`` is no path.
    """

    max: int | None = None
    rate: float | None = None
    consecutive: int | None = None
    dead_letters: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        if self.max is None and self.rate is None and self.consecutive is None:
            raise ValueError("SkipErrors needs a budget: give max=, rate= or consecutive=")
        if self.max is not None and ((most := as_whole(self.max)) is None or most < 0):
            raise ValueError(f"max should be a whole number of 0 or more, but got max={self.max!r}")
        as_counts(self, *(["consecutive"] if self.consecutive is not None else []))
        rate: Any = self.rate
        is_number = isinstance(rate, int | float) and not isinstance(rate, bool)
        if rate is not None and not (is_number and 0 <= rate <= 1):
            raise ValueError(f"rate should be a number from 0 to 1, but got rate={self.rate!r}")
        if self.dead_letters is not None and not isinstance(self.dead_letters, str | os.PathLike):
            raise TypeError(
                f"dead_letters should be the path of a file, but got {type(self.dead_letters).__name__}"
            )


class Skips:
    """What a lane has skipped in its epoch.

    Args:
        budget: How much it may be.
        where: What lines of the dead letters say of the lane: epoch, rank and lane.
        start: The position that the lane is opened at.
    """

    def __init__(self, budget: SkipErrors, where: Mapping[str, int], start: Position) -> None:
        self.budget = budget
        #: Samples and shards together.
        self.count = skipped_in(start)
        #: The last error, as text.
        self.last = ""
        self._where = where
        # A stream that is opened anew, as ``.repeat`` does, goes on with the counts that it had.
        self._carried: dict[tuple[Any, ...], int] = {}

    def attempts(self, component: tuple[int, ...], step: object, start: Position) -> StepSkips:
        """Those of one step of a dataset.

        Args:
            component: Of which dataset; see ``Lane``.
            step: Which of its operators; anything else for its source.
            start: The position that it is opened at.
        """
        return StepSkips(self, (component, step), f"{_KEY}{step}", start)

    def carried(self, key: tuple[Any, ...]) -> int:
        return self._carried.get(key, 0)

    def add(
        self, key: tuple[Any, ...], count: int, error: Exception, place: Place, told: Mapping[str, Any]
    ) -> None:
        """One more was skipped, the ``count``-th of its step."""
        self._carried[key] = count
        self.count += 1
        text = f"{type(error).__name__}: {error}"[:_MOST_CHARACTERS]
        self.last = f"{text}, in {told['during']} of {place}"
        if self.budget.dead_letters is not None:
            self._write({**told, "error": text, **self._where})
        if self.budget.max is not None and self.count > self.budget.max:
            self.fail(f"{self.count} samples and shards were skipped, more than max={self.budget.max}", error)

    def fail(self, what: str, error: Exception) -> None:
        raise SkipBudgetError(f"{what}; the last error was {self.last}", **self._where) from error

    def _write(self, line: Mapping[str, Any]) -> None:
        assert self.budget.dead_letters is not None
        # Of one write, which lines of other workers do not come amidst.
        with open(os.path.expanduser(self.budget.dead_letters), "ab", buffering=0) as file:
            file.write((json.dumps(line) + "\n").encode())


class StepSkips:
    """What a step of a dataset has tried in a lane, and what of it was skipped."""

    def __init__(self, skips: Skips, key: tuple[Any, ...], name: str, start: Position) -> None:
        self._skips = skips
        self._key = key
        self._name = name
        self.count: int = start.get(name, skips.carried(key))
        self._tried = 0
        self._in_a_row = 0
        # When each was skipped of the last ones tried.
        self._recent: deque[int] = deque()

    def good(self, count: int) -> None:
        """So many samples came out well."""
        if count:
            self._tried += count
            self._in_a_row = 0

    def bad(self, what: str, error: Exception, place: Place, during: str, key: object = None) -> None:
        """One did not: it is skipped.

        Raises:
            SkipBudgetError: That was one too many.
        """
        self.count += 1
        self._tried += 1
        self._in_a_row += 1
        told = {
            "what": what,
            "shard": place.shard,
            "sample": place.sample,
            "offset": getattr(error, "offset", None),
            "key": key if isinstance(key, str) else None,
            "during": during,
        }
        self._skips.add(self._key, self.count, error, place, told)
        budget = self._skips.budget
        if budget.consecutive is not None and self._in_a_row > budget.consecutive:
            self._skips.fail(
                f"{self._in_a_row} were skipped in a row, more than consecutive={budget.consecutive}", error
            )
        if budget.rate is not None:
            self._recent.append(self._tried)
            while self._recent[0] <= self._tried - _RATE_SAMPLES:
                self._recent.popleft()
            if len(self._recent) > budget.rate * _RATE_SAMPLES:
                tried = min(self._tried, _RATE_SAMPLES)
                what = f"{len(self._recent)} of the last {tried} samples were skipped"
                self._skips.fail(f"{what}, more than rate={budget.rate} of {_RATE_SAMPLES}", error)

    def entries(self) -> dict[str, int]:
        """For positions of what comes next."""
        return {self._name: self.count} if self.count else {}

    def account(self, applied: Applied, during: str) -> Block:
        """Count what was made of a block, and say in its positions what was skipped before each sample."""
        before, failed = self.count, dict(applied.failed)
        good = 0
        for index in sorted(failed):
            self.good(index - good)
            good = index + 1
            error, (sample,) = failed[index], applied.given.part(index, index + 1).rows()
            key = sample.get("__key__") if isinstance(sample, Mapping) else None
            self.bad("sample", error, applied.given.trail.place(index), during, key)
        self.good(applied.tried - good)
        if not self.count:
            return applied.made
        kept = [index for index in range(applied.tried) if index not in failed]
        trail = _SkippedTrail(applied.given.trail, kept, self._name, before)
        # What an operator made of these: all of them, or those that it keeps.
        return applied.made.follow(trail if applied.picked is None else PickedTrail(trail, applied.picked))


@dataclass(slots=True)
class _SkippedTrail(PickedTrail):
    """Positions of the samples of a block that were not skipped, with how many were, up to each of them."""

    name: str
    before: int

    def after(self, index: int) -> Position:
        at = int(self.indices[index])
        position = dict(self.trail.after(at))
        if count := self.before + at - index:
            position[self.name] = count
        return position


@dataclass(slots=True)
class Applied:
    """What became of a block that the user's function was given sample by sample.

    Attributes:
        given: The block.
        tried: How many of its samples the function was called for, from the first on.
        made: What is handed on, on the trail of what it was made of.
        failure: Of the sample behind the last that was tried, where errors are not skipped.
        failed: The samples that it failed for, by index, where they are.
        picked: Which of those that did not fail are handed on; None for all.
        took_s: How long the calls took, where they were made one after another.
    """

    given: Block
    tried: int
    made: Block
    failure: Exception | None = None
    failed: Sequence[tuple[int, Exception]] = ()
    picked: Sequence[int] | None = None
    took_s: float | None = None

    def hand_on(self, attempts: StepSkips | None, during: str) -> Iterator[Block]:
        """What was made, then the failure: what came before it is good, and may complete a batch."""
        made = self.made if attempts is None else attempts.account(self, during)
        if len(made):
            yield made
        if self.failure is not None:
            raise self.failure


def skipped_in(position: Position) -> int:
    """How many samples and shards were skipped before a position."""
    return sum(
        skipped_in(value) if isinstance(value, Mapping) else value
        for name, value in position.items()
        if isinstance(value, Mapping) or name.startswith(_KEY)
    )
