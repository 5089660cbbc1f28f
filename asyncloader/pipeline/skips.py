"""Errors that an epoch may skip: of samples and of shards, within a budget.

Nothing is skipped unless a loader is given a budget. Then each lane counts what it skips, and its positions
have that count. A lane that is opened at a position continues the count from there; samples after it are
skipped and counted again. So a resumed epoch has the same counts as an uninterrupted one.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any

from ..blocks import Block, Place, Rows
from ..errors import SkipBudgetError
from ..quantity import as_count, as_counts
from ..types import Position, entry_of, with_entry

_KEY = "skipped"

# The number of samples that ``rate`` refers to: enough for a rate of one in a hundred.
_RATE_SAMPLES = 1000

# Of an error in a line of the dead letters, and in the message when the budget is spent.
_MOST_CHARACTERS = 500


@dataclass(frozen=True)
class SkipErrors:
    """Skip samples and shards that fail, within a budget; for ``DataLoader(on_error=...)``.

    It skips a sample if a function of ``.map``, ``.filter`` or ``.decode`` raises. It skips a line that is
    not JSON or text, and the rest of a shard that is corrupt, cut, changed or missing. Errors of functions of
    many samples, of collating and of batching are still raised, since no single sample causes them.

    Pass at least one of the first three options: without a limit, a wrong path would give an empty epoch.

    Example:
        ```python
        import asyncloader as al

        skips = al.SkipErrors(max=100, rate=0.01, dead_letters="skipped.jsonl")
        loader = al.DataLoader(al.from_urls("shards/train-*.tar"), batch_size=32, on_error=skips)
        ```

    Args:
        max: The most samples and shards together to skip in an epoch on this rank, over all resumes. The rest
            of a shard counts once. None: no such limit.
        rate: The largest share, from 0 to 1, of the last 1,000 samples in a lane that an operator or the
            source may skip. None: no such limit.
        consecutive: The most samples that an operator or the source may skip in a row. None: no such limit.
        dead_letters: Path of a file. For each skipped sample or shard a line of JSON is appended, with
            ``what`` (``"sample"`` or ``"shard"``), ``shard``, ``sample`` (its index), ``offset`` (if known),
            ``key``, ``error``, ``during``, ``epoch``, ``rank`` and ``lane``. A sample that is skipped again
            after a resume has a second line. None: no file.

    Raises:
        ValueError: No limit is given, or one is out of range.
        TypeError: ``dead_letters`` is not a path.
    """

    max: int | None = None
    rate: float | None = None
    consecutive: int | None = None
    dead_letters: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        if self.max is None and self.rate is None and self.consecutive is None:
            raise ValueError("SkipErrors needs a budget: give max=, rate= or consecutive=")
        if self.max is not None:
            as_count("max", self.max, least=0)
        as_counts(self, "consecutive")
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
        where: Epoch, rank and lane, for lines of the dead letters.
        start: The position that the lane is opened at.
    """

    def __init__(self, budget: SkipErrors, where: Mapping[str, int], start: Position) -> None:
        self.budget = budget
        #: Samples and shards together.
        self.count = skipped_in(start)
        #: The last error, as text.
        self.last = ""
        self._where = where
        # A stream that is opened again, as ``.repeat`` does, continues with the counts that it had.
        self.carried: dict[tuple[Any, ...], int] = {}

    def add(
        self, key: tuple[Any, ...], count: int, error: Exception, place: Place, line: Mapping[str, Any]
    ) -> None:
        """Count one more, the ``count``-th of its stage."""
        self.carried[key] = count
        self.count += 1
        text = f"{type(error).__name__}: {error}"[:_MOST_CHARACTERS]
        self.last = f"{text}, in {line['during']} of {place}"
        if self.budget.dead_letters is not None:
            dead = json.dumps({**line, "error": text, **self._where})
            # One write, so that lines of other workers do not mix with it.
            with open(os.path.expanduser(self.budget.dead_letters), "ab", buffering=0) as file:
                file.write(f"{dead}\n".encode())
        if self.budget.max is not None and self.count > self.budget.max:
            self.fail(f"{self.count} samples and shards were skipped, more than max={self.budget.max}", error)

    def fail(self, what: str, error: Exception) -> None:
        raise SkipBudgetError(f"{what}; the last error was {self.last}", **self._where) from error


class StepSkips:
    """How many samples a stage of a dataset has tried in a lane, and how many it has skipped.

    Args:
        skips: Those of all stages of the lane.
        component: The component that the stage belongs to; see ``Lane``.
        stage: Its number.
        start: The position that it is opened at.
    """

    def __init__(self, skips: Skips, component: tuple[int, ...], stage: int, start: Position) -> None:
        self._skips = skips
        self._key = component, stage
        self._stage = stage
        self.count: int = entry_of(start, stage).get(_KEY, skips.carried.get(self._key, 0))
        self._tried = 0
        self._in_a_row = 0
        # The numbers of those skipped among the last samples tried.
        self._recent: deque[int] = deque()

    def good(self, count: int) -> None:
        """Count samples that did not fail."""
        if count:
            self._tried += count
            self._in_a_row = 0

    def bad(self, what: str, error: Exception, place: Place, during: str, key: object = None) -> None:
        """Count a sample or shard that is skipped.

        Raises:
            SkipBudgetError: That was one too many.
        """
        self.count += 1
        self._tried += 1
        self._in_a_row += 1
        line = {
            "what": what,
            "shard": place.shard,
            "sample": place.sample,
            "offset": getattr(error, "offset", None),
            "key": key if isinstance(key, str) else None,
            "during": during,
        }
        self._skips.add(self._key, self.count, error, place, line)
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
        """The entries of this stage in positions of the samples that come next."""
        return {_KEY: self.count} if self.count else {}

    def account(self, applied: Applied, during: str) -> None:
        """Count what was made of a block; its positions get the number of skipped samples before each."""
        before, bad, good = self.count, sorted(applied.failed), 0
        for index in bad:
            self.good(index - good)
            good = index + 1
            (sample,) = applied.given.part(index, index + 1).rows()
            key = sample.get("__key__") if isinstance(sample, Mapping) else None
            self.bad("sample", applied.failed[index], applied.given.trail.place(index), during, key)
        self.good(applied.tried - good)
        if not self.count:
            return
        trail, at = applied.made.trail, applied.at

        def after(index: int) -> Position:
            count = before + bisect_left(bad, at[index])
            return with_entry(trail.after(index), self._stage, {_KEY: count} if count else {})

        applied.made = applied.made.follow(trail.follow(after))


@dataclass(slots=True)
class Applied:
    """The result of a block whose samples the user's function was called for one by one.

    Attributes:
        given: The block.
        results: One for each sample that the function was called for, from the first on; those of samples
            that failed are ignored.
        failed: The errors of those that failed, by index, if errors are skipped.
        failure: The error of the sample after the last that was tried, if errors are raised. To be raised
            after the samples before it are passed on, which are good, and may complete a batch.
        took_s: How long the calls took, if they were made one after another.
        tried: How many samples the function was called for.
        at: The index in the block of each sample to pass on.
        made: The samples to pass on, on the trail of those that they were made of.
    """

    given: Block
    results: InitVar[list[Any]]
    failed: Mapping[int, Exception]
    failure: Exception | None = None
    took_s: float = 0.0
    tried: int = field(init=False)
    at: Sequence[int] = field(init=False)
    made: Block = field(init=False)

    def __post_init__(self, results: list[Any]) -> None:
        self.tried = len(results)
        self.at = range(self.tried)
        self.made = Rows(results, self.given.trail)
        if self.failed:
            self.at = [index for index in self.at if index not in self.failed]
            self.made = Rows([results[index] for index in self.at], self.given.trail.take(self.at))


def skipped_in(position: Position) -> int:
    """How many samples and shards were skipped before a position."""
    return sum(entry.get(_KEY, 0) + sum(map(skipped_in, entry.get("of", ()))) for entry in position)
