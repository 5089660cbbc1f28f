"""The workers of a pass as one stream: which lanes each of them reads, and the notes beside their batches."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic, perf_counter
from typing import Any, NamedTuple

from ..blocks import Place
from ..errors import SkipBudgetError, WorkerDiedError
from ..flow.channel import EndOfChannel, ReceiveTimeout
from ..observe.audit import LeftSamples
from ..observe.statistics import Meter
from ..pipeline.components import places_of
from ..pipeline.lane import Shortfall
from ..pipeline.stream import LanesJob, Note, Turns
from ..plan.lanes import Cursor, Deal, Rotation
from ..workers.pool import AnyPool, wait_any, wait_any_async
from ..workers.worker import AnyWorker

# The lanes of each worker, how far they were received, and what happens when the worker dies.
#
# Laws:
#
# * What a worker has sent whole is received, also if the worker has died since. Its replacement goes on
#   behind that: the batches are the same, whichever worker is killed.
# * What user code raises is raised, and never retried.
# * A replacement that dies before its first message is an error: the next sample probably kills it.

# Samples in a message, of a mixture of many components.
_MOST_NAMED = 4

_log = logging.getLogger("asyncloader.workers")


class Share(NamedTuple):
    """What one worker is given of a pass.

    Attributes:
        turns: Its lanes.
        began_s: When it began to be started, by ``time.perf_counter()``.
    """

    turns: Turns
    began_s: float


class WorkerLanes:
    """The lanes of one worker.

    Args:
        number: The worker's, in its pool.
        pool: Has started the first one.
        job: Of all lanes of the rank.
        lanes: The worker's.
        received: How far the batches of all lanes of the rank were received.
        most_restarts: How many workers of the pass may be replaced.
        counters: Count those that were.
    """

    def __init__(
        self,
        number: int,
        pool: AnyPool[Any],
        job: LanesJob,
        lanes: Sequence[int],
        received: Cursor,
        most_restarts: int,
        counters: Meter,
    ) -> None:
        self.number = number
        self._pool = pool
        self._job = job
        self._most_restarts, self._counters = most_restarts, counters
        self._mine = frozenset(lanes)
        self._received = received
        # The first one may die before it has sent anything: it has replaced no other.
        self._has_sent = True

    @property
    def worker(self) -> AnyWorker:
        """The one that reads these lanes now."""
        worker: AnyWorker = self._pool.workers[self.number]
        return worker

    @property
    def turns(self) -> Turns:
        """The lanes that have not ended, the one whose batch comes next first; see ``Cursor.turns``."""
        return tuple((lane, row) for lane, row in self._received.turns() if lane in self._mine)

    @property
    def lanes(self) -> list[int]:
        """The same without their rows."""
        return [lane for lane, _ in self.turns]

    def take(self) -> tuple[Any, Note] | None:
        """What the worker has sent, None if nothing has come; a worker that has died is replaced.

        Raises:
            EndOfChannel: All lanes have ended, and so has the worker's job.
            WorkerDiedError: The worker has died and is not replaced; again with each later call.
            Exception: See ``AnyWorker.receive_nowait``.
        """
        while True:
            worker = self.worker
            try:
                came = worker.receive_nowait()
            except EndOfChannel:
                if self.lanes:
                    raise AssertionError(f"worker {self.number} ended before lanes {self.lanes}") from None
                raise
            except WorkerDiedError as death:
                if not worker.has_died:  # the user's code raised it, from a loader of its own
                    raise
                self._replace(death)
            else:
                self._has_sent |= came is not None
                return came

    def describe_next(self) -> str:
        """Half a sentence on the next batch."""
        if not (lanes := self.lanes):
            return "whose lanes have ended"
        many = self._job.batching.samples_per_batch
        size = "" if many is None else f", of {many} sample{'s' * (many > 1)},"
        return f"whose next batch{size} is of lane {lanes[0]} and continues at {_named(self._places())}"

    def _replace(self, death: WorkerDiedError) -> None:
        """Start another worker, or raise what the consumer gets."""
        most = self._most_restarts
        if not self._has_sent:
            raise self._located(death, "the worker before it died there too") from None
        if most and not self.lanes:
            _log.warning(
                "%s: all its batches were received, but it has not left the dataset's contexts", death
            )
            raise EndOfChannel from None
        if self._counters.worker_restarts >= most:
            why = f"all {most} replacements of this pass were used" if most else "workers are not replaced"
            raise self._located(death, f"{why} (worker_restarts={most})") from None
        self._counters.worker_restarts += 1
        self._has_sent = False
        _log.warning("%s: another worker continues at its place", self._located(death))
        self._pool.replace(self.number, Share(self.turns, perf_counter()))

    def _located(self, death: WorkerDiedError, why: str = "") -> WorkerDiedError:
        """The error with the place at which the worker was."""
        lanes, places = self.lanes, self._places()
        carried = "" if not lanes else f"; it carried lane{'s' * (len(lanes) > 1)} {_listed(lanes)}"
        if lanes and self._job.batching.samples_per_batch is not None:
            carried += f", in batches of {self._job.batching.samples_per_batch}"
        if lanes and len(places) != 1:  # of a mixture; a single one is named by the error's attributes
            carried += f", and was at {_named(places)}"
        place = places[0] if len(places) == 1 else None
        return WorkerDiedError(
            f"{death.args[0]}{carried}" + (f"; {why}" if why else ""),
            worker=death.worker,
            pid=death.pid,
            exitcode=death.exitcode,
            lane=lanes[0] if lanes else None,
            shard=None if place is None else place.shard,
            sample=None if place is None else place.sample,
        )

    def _places(self) -> list[Place]:
        """Where the next batch begins, or the operators before it go on: one sample of each component."""
        if not (turns := self.turns):
            return []
        (lane, row), job = turns[0], self._job
        deal = Deal((lane,), job.lane_count, job.epoch, job.stages.order_seed)
        return places_of(job.stages, row.position, deal)


def _named(places: list[Place]) -> str:
    more = f" and {len(places) - _MOST_NAMED} more" if len(places) > _MOST_NAMED else ""
    return ", ".join(map(str, places[:_MOST_NAMED])) + more or "its beginning or end"


def _listed(lanes: list[int]) -> str:
    *some, last = map(str, sorted(lanes))
    return f"{', '.join(some)} and {last}" if some else last


# What a pass takes in beside its batches: counts, and what ``take`` lacked.

_skips_log = logging.getLogger("asyncloader.skips")
_shards_log = logging.getLogger("asyncloader.shards")


class NoteSink:
    """Takes in the notes of a rank's lanes.

    Args:
        job: Of all lanes of the rank.
        counters: Count all requests to the network, what was skipped, and where time went.
    """

    def __init__(self, job: LanesJob, counters: Meter) -> None:
        self._counters = counters
        #: Of operators, found at the ends of lanes.
        self.shortfalls: list[Shortfall] = []
        #: What operators have left out behind the last batch of each lane that has ended.
        self.left_at_ends: dict[int, Sequence[LeftSamples]] = {}
        self._empty_shards: set[str] = set()
        self._most = None if job.budget is None else job.budget.max
        self._where = {"epoch": job.epoch, "rank": job.world.rank}
        #: By lane.
        self._skipped = dict(job.skipped_before)
        counters.skipped = sum(self._skipped.values())

    def add(self, note: Note, worker: int = 0) -> bool:
        """Count what a note says; returns whether there is a batch beside it, or only a lane's end.

        Args:
            note: What came.
            worker: The number of the worker that sent it.

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
            self._counters.spend(worker, note.spent)
        self.shortfalls += note.shortfalls
        if note.position is None and note.left_out:
            self.left_at_ends[note.lane] = note.left_out
        return note.position is not None

    def _count(self, lane: int, count: int, last: str) -> None:
        if count > self._skipped.get(lane, 0):
            # The first one is news; the others are logged for a reader of all messages.
            level = logging.INFO if self._counters.skipped else logging.WARNING
            _skips_log.log(
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


# Stacks in a message. More would not be read, and each may take a second to get.
_MOST_OBSERVED = 4


class Fleet:
    """A ``Receiver`` of the batches of all workers.

    Args:
        posts: Those that read the lanes, each with its worker started.
        received: How far the batches of each lane of the rank were received; it is moved with each.
        notes: Takes in every note.
        close: Closes the workers.
        in_order: Whether a batch of each lane comes in turn, also if others are ready before.
        awaits_ends: Whether to wait for the ends of their jobs after the last batch: their clean-up may fail.
    """

    def __init__(
        self,
        posts: Sequence[WorkerLanes],
        received: Cursor,
        notes: NoteSink,
        close: Callable[[], None],
        *,
        in_order: bool,
        awaits_ends: bool,
    ) -> None:
        self._received, self._notes = received, notes
        #: See ``Receiver``.
        self.close = close
        self._rotation = Rotation(received) if in_order else None
        self._readers = {lane: post for post in posts for lane in post.lanes}
        #: Those that may have a batch, in the order in which they are looked at where none has a turn.
        self._carrying = deque(posts)
        self._ending = list(posts) if awaits_ends else []
        #: Those whose batches the consumer waits for.
        self._awaited: Sequence[WorkerLanes] = ()

    def receive(self, timeout_s: float | None = None) -> tuple[Any, Note]:
        """The next batch; see ``Receiver``."""
        deadline = None if timeout_s is None else monotonic() + timeout_s
        while (taken := self._take()) is None:
            if not wait_any([post.worker for post in self._awaited], deadline):
                raise ReceiveTimeout(f"nothing came for {timeout_s} s")
        return taken

    async def receive_async(self) -> tuple[Any, Note]:
        """Like ``receive``, from a coroutine. If cancelled, no batch is lost."""
        while (taken := self._take()) is None:
            await wait_any_async([post.worker for post in self._awaited])
        return taken

    def describe_wait(self) -> str:
        """Which workers have to send the next batch, and what they do; takes seconds at most."""
        awaited = self._awaited[:_MOST_OBSERVED]
        lines = [f"{post.worker.name}, {post.describe_next()}, {post.worker.observe()}" for post in awaited]
        if more := len(self._awaited) - len(lines):
            lines.append(f"and {more} more workers")
        return "\n".join(lines)

    def _take(self) -> tuple[Any, Note] | None:
        """The next batch that has come, None if those awaited have sent none."""
        while candidates := self._candidates():
            for post in candidates:
                if (came := post.take()) is not None:
                    break
            else:
                self._awaited = tuple(candidates)
                return None
            self._move(post, came[1])
            if self._notes.add(came[1], post.number):
                return came
        while self._ending:
            self._awaited = self._ending[:1]
            try:
                self._ending[0].take()
            except EndOfChannel:
                self._ending.pop(0)
            else:
                return None
        raise EndOfChannel

    def _candidates(self) -> Sequence[WorkerLanes]:
        """Where a batch may come from next, the first to look at in front; none when all lanes have ended."""
        if self._rotation is None:
            return self._carrying
        lane = next(iter(self._rotation), None)
        return () if lane is None else (self._readers[lane],)

    def _move(self, post: WorkerLanes, note: Note) -> None:
        """Note what came from a worker."""
        if self._rotation is not None:
            lane = next(iter(self._rotation))
            assert note.lane == lane, f"lane {note.lane} came in the turn of lane {lane}"
            self._rotation.move(note.position)
            return
        self._received.move(note.lane, note.position)
        # The last one to look at the next time: a quick one must not keep the others' batches waiting.
        self._carrying.remove(post)
        if note.position is not None or post.lanes:
            self._carrying.append(post)
