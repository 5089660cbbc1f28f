"""What a pass takes in beside its batches, whoever makes them: counts, and what ``take`` lacked."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from ..audit.rows import LeftSamples
from ..errors import SkipBudgetError
from ..ops.shortfalls import Shortfall, describe_shortfalls
from ..statistics import Meter
from ..stream import Job, Note
from ..tracebacks import users_level

__all__ = ["Intake", "Makers"]

_log = logging.getLogger("asyncloader.skips")
_shards_log = logging.getLogger("asyncloader.shards")


class Makers(Protocol):
    """Whoever makes the batches."""

    @property
    def left_at_ends(self) -> Mapping[int, Sequence[LeftSamples]]:
        """What operators have left out behind the last batch of each lane that has ended."""
        ...

    def describe_wait(self) -> str:
        """What they are at, for somebody who has waited too long; takes seconds at most."""
        ...

    async def describe_wait_async(self) -> str:
        """Like ``describe_wait``, from a coroutine."""
        ...


class Intake:
    """Takes in the notes of a rank's lanes.

    Args:
        job: Of all lanes of the rank.
        counters: Told of all that was asked of the network, of what was skipped, and where time went.
        makers: The lanes of each worker.
    """

    def __init__(self, job: Job, counters: Meter, makers: Sequence[Collection[int]] = ()) -> None:
        self._counters = counters
        self._makers = {lane: number for number, lanes in enumerate(makers) for lane in lanes}
        self._shortfalls: list[Shortfall] = []
        #: What operators have left out behind the last batch of each lane that has ended.
        self.left_at_ends: dict[int, Sequence[LeftSamples]] = {}
        self._empty_shards: set[str] = set()
        self._most = None if job.budget is None else job.budget.max
        self._where = {"epoch": job.epoch, "rank": job.world.rank}
        #: By lane.
        self._skipped = dict(job.skipped_before)
        counters.skipped = sum(self._skipped.values())

    def add(self, note: Note) -> bool:
        """Count what a note tells; says whether there is a batch beside it, or only a lane's end.

        Raises:
            SkipBudgetError: The lanes together have skipped more than they may.
        """
        if note.network is not None:
            self._counters.ask(note.network)
        if note.skipped is not None:
            self._count(note.lane, *note.skipped)
        if note.empty_shards:
            self._count_empty(note.empty_shards)
        if note.spent is not None:
            self._counters.spend(self._makers.get(note.lane, 0), note.spent)
        self._shortfalls += note.shortfalls
        if note.position is None and note.left_out:
            self.left_at_ends[note.lane] = note.left_out
        return note.position is not None

    def _count(self, lane: int, count: int, last: str) -> None:
        if count > self._skipped.get(lane, 0):
            # The first one is news; of many, each is for whoever asks for them.
            level = logging.INFO if self._counters.skipped else logging.WARNING
            _log.log(
                level, "lane %d has skipped %d samples and shards; the last error was %s", lane, count, last
            )
        self._skipped[lane] = count
        total = self._counters.skipped = sum(self._skipped.values())
        if self._most is not None and total > self._most:
            what = f"{total} samples and shards were skipped, more than max={self._most}"
            raise SkipBudgetError(f"{what}; the last error was {last}", lane=lane, **self._where)

    def _count_empty(self, shards: Sequence[str]) -> None:
        """Count shards of no bytes, each once: a file that was cut to nothing looks like an empty one."""
        new = [shard for shard in dict.fromkeys(shards) if shard not in self._empty_shards]
        for shard in new:
            # The first one is news, in the first pass that meets one.
            is_news = not self._empty_shards and not self._counters.met_empty_before
            _shards_log.log(
                logging.WARNING if is_news else logging.INFO,
                "%s has 0 bytes, and so no sample; if it should have some, write it anew. "
                "loader.statistics.empty_shards counts such shards; an index says which may be empty",
                shard,
            )
            self._empty_shards.add(shard)
        self._counters.empty_shards = len(self._empty_shards)

    def warn_of_shortfalls(self) -> None:
        """Say what ``take`` lacked when the pass is closed, which is in the consumer's own thread.

        Where a lane ends nobody's line could be named: that is on a thread or in a worker.
        """
        for sentence in describe_shortfalls(self._shortfalls):
            warnings.warn(sentence, stacklevel=users_level())
