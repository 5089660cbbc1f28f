"""The workers of a pass as one stream, which lanes each of them reads, and the notes beside their batches."""

from __future__ import annotations

import logging
import warnings
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from time import monotonic
from typing import Any, Protocol

from ..blocks import Place
from ..errors import SkipBudgetError, WorkerDiedError, users_level
from ..flow.channel import EndOfChannel, ReceiveTimeout
from ..observe.audit import LeftSamples
from ..observe.statistics import Meter
from ..pipeline.components import places_of
from ..pipeline.lane import Shortfall, describe_shortfalls
from ..pipeline.stream import LanesJob, Note, Turns
from ..plan.lanes import Cursor, Deal, Rotation
from ..workers import AnyPool, AnyWorker, wait_any, wait_any_async
from ..workers import Job as WorkerJob

# A worker's post: which lanes whoever holds it carries, how far they were received, and who comes next.
#
# Laws:
#
# * What a worker has sent whole is received, whatever became of it. Whoever replaces it goes on behind that:
#   the batches are the same, whoever is killed.
# * What user code raises is raised, and never tried again.
# * A worker that dies before it has sent anything, where another one has died, is an error: it is the
#   sample.

# Samples in a message, of a mixture of many components.
_MOST_NAMED = 4

_log = logging.getLogger("asyncloader.workers")


class Restarts:
    """How many workers of a pass may be replaced.

    Args:
        most: In the whole pass.
        counters: Counts them.
    """

    def __init__(self, most: int, counters: Meter) -> None:
        self.most = most
        self._counters = counters

    def take(self) -> bool:
        """Count one; False if there were as many as may be."""
        if self._counters.worker_restarts >= self.most:
            return False
        self._counters.worker_restarts += 1
        return True


class WorkerLanes:
    """One worker's post.

    Args:
        number: The worker's, in its pool.
        pool: Has started the first one.
        job: What the first one does.
        make_job: Makes the job of a worker that opens lanes at other rows.
        restarts: Those of the pass.
    """

    def __init__(
        self,
        number: int,
        pool: AnyPool[AnyWorker],
        job: LanesJob,
        make_job: Callable[[Turns], WorkerJob],
        restarts: Restarts,
    ) -> None:
        self._number = number
        self._pool = pool
        self._job = job
        self._make_job = make_job
        self._restarts = restarts
        self._received = Cursor(job.epoch, [lane for lane, _ in job.turns], dict(job.turns))
        #: How many of its lanes have not ended.
        self.open_lanes = len(job.turns)
        # The first one may die before it has sent anything: it has replaced nobody.
        self._has_sent = True

    @property
    def worker(self) -> AnyWorker:
        """Who holds the post."""
        return self._pool.workers[self._number]

    @property
    def lanes(self) -> list[int]:
        """Those that have not ended, the one whose batch comes next first."""
        return [lane for lane, _ in self._received.turns()]

    def take(self, ready: Collection[int]) -> tuple[Any, Note] | None:
        """What the worker has sent, None if one has to wait for it; a worker that has died is replaced.

        Args:
            ready: See ``AnyWorker.receive_nowait``.

        Raises:
            EndOfChannel: All lanes have ended, and so has the worker's job.
            WorkerDiedError: The worker has died and is not replaced; each time anew that one asks.
            Exception: See ``AnyWorker.receive_nowait``.
        """
        while True:
            worker = self.worker
            try:
                came = worker.receive_nowait(ready)
            except EndOfChannel:
                if self.open_lanes:
                    raise AssertionError(f"worker {self._number} ended before lanes {self.lanes}") from None
                raise
            except WorkerDiedError as death:
                if not worker.has_died:  # the user's code raised one, of a loader of its own
                    raise
                self._replace(death)
            else:
                if came is not None:
                    self._note(came[1])
                return came

    def describe_next(self) -> str:
        """Half a sentence on the batch that comes next."""
        if not self.open_lanes:
            return "whose lanes have ended"
        many = self._job.batching.samples_per_batch
        size = "" if many is None else f", of {many} sample{'s' * (many > 1)},"
        return f"whose next batch{size} is of lane {self.lanes[0]} and goes on at {_named(self._places())}"

    def _note(self, note: Note) -> None:
        self._has_sent = True
        if note.position is None:
            self._received.ended(note.lane)
            self.open_lanes -= 1
        else:
            self._received.delivered(note.lane, note.position)

    def _replace(self, death: WorkerDiedError) -> None:
        """Have another worker go on, or raise what the death is to the consumer."""
        most = self._restarts.most
        if not self._has_sent:
            raise self._located(death, "the one that it had replaced died there too") from None
        if most and not self.open_lanes:
            _log.warning("%s: all its batches have come, but it has not left the dataset's contexts", death)
            raise EndOfChannel from None
        if not self._restarts.take():
            why = f"all {most} replacements of this pass were used" if most else "workers are not replaced"
            raise self._located(death, f"{why} (worker_restarts={most})") from None
        self._has_sent = False
        _log.warning("%s: another one goes on where it was", self._located(death))
        self._pool.replace(self._number, self._make_job(tuple(self._received.turns())))

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
        """The samples that the next batch begins with, or that the operators before it read on from: of each
        component one."""
        turns = self._received.turns()
        if not turns:
            return []
        (lane, row), job = turns[0], self._job
        deal = Deal((lane,), job.lane_count, job.epoch, job.recipe.order_seed)
        return places_of(job.recipe, row.position, deal)


def _named(places: list[Place]) -> str:
    more = f" and {len(places) - _MOST_NAMED} more" if len(places) > _MOST_NAMED else ""
    return ", ".join(map(str, places[:_MOST_NAMED])) + more or "its beginning or end"


def _listed(lanes: list[int]) -> str:
    *some, last = map(str, sorted(lanes))
    return f"{', '.join(some)} and {last}" if some else last


# What a pass takes in beside its batches, whoever makes them: counts, and what ``take`` lacked.

_skips_log = logging.getLogger("asyncloader.skips")
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


class NoteSink:
    """Takes in the notes of a rank's lanes.

    Args:
        job: Of all lanes of the rank.
        counters: Told of all that was asked of the network, of what was skipped, and where time went.
        makers: The lanes of each worker.
    """

    def __init__(self, job: LanesJob, counters: Meter, makers: Sequence[Collection[int]] = ()) -> None:
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

    def warn_of_shortfalls(self) -> None:
        """Say what ``take`` lacked when the pass is closed, which is in the consumer's own thread.

        Where a lane ends nobody's line could be named: that is on a thread or in a worker.
        """
        for sentence in describe_shortfalls(self._shortfalls):
            warnings.warn(sentence, stacklevel=users_level())


# Stacks in a message: of more workers, nobody reads them, and each may take a second to be had.
_MOST_OBSERVED = 4


class TurnOrder(Protocol):
    """Which posts a batch may come from next."""

    def candidates(self) -> Sequence[WorkerLanes]:
        """Those, the one to be asked first in front; none when all lanes have ended."""
        ...

    def passed(self, post: WorkerLanes, note: Note) -> None:
        """``note`` came from ``post``."""
        ...


class InTurn:
    """A batch of each lane in turn, whoever is done.

    Args:
        rotation: Of the rank's lanes.
        posts: Which carry them.
    """

    def __init__(self, rotation: Rotation, posts: Sequence[WorkerLanes]) -> None:
        self._rotation = rotation
        self._turns = iter(rotation)
        self._posts = {lane: post for post in posts for lane in post.lanes}

    def candidates(self) -> Sequence[WorkerLanes]:
        lane = next(self._turns, None)
        return () if lane is None else (self._posts[lane],)

    def passed(self, post: WorkerLanes, note: Note) -> None:
        lane = next(self._turns)
        assert note.lane == lane, f"lane {note.lane} came in the turn of lane {lane}"
        if note.position is None:
            self._rotation.mark_dry()
        else:
            self._rotation.advance()


class AsDone:
    """Whichever batch is done first.

    Args:
        posts: Which may have done one.
    """

    def __init__(self, posts: Sequence[WorkerLanes]) -> None:
        self._carrying = deque(posts)

    def candidates(self) -> Sequence[WorkerLanes]:
        return self._carrying

    def passed(self, post: WorkerLanes, note: Note) -> None:
        # Asked last the next time: a quick one must not keep the others' batches waiting.
        self._carrying.remove(post)
        if post.open_lanes:
            self._carrying.append(post)


class Fleet:
    """A ``Receiver`` of the batches of all posts.

    Args:
        posts: Each with its worker started.
        order: Which of them is next.
        intake: Told of every note.
        close: Closes the workers.
        awaits_ends: Whether to wait for the ends of their jobs after the last batch, since what they still
            have to do may fail.
    """

    def __init__(
        self,
        posts: Sequence[WorkerLanes],
        order: TurnOrder,
        intake: NoteSink,
        close: Callable[[], None],
        *,
        awaits_ends: bool,
    ) -> None:
        self._order = order
        self._intake = intake
        self._close = close
        self._ending = list(posts) if awaits_ends else []
        #: Those that the consumer waits for.
        self._awaited: Sequence[WorkerLanes] = ()

    def receive(self, timeout_s: float | None = None) -> tuple[Any, Note]:
        """The next batch; see ``Receiver``."""
        deadline = None if timeout_s is None else monotonic() + timeout_s
        ready: Collection[int] = ()
        while (taken := self._take(ready)) is None:
            ready = wait_any([post.worker for post in self._awaited], deadline)
            if not ready:
                raise ReceiveTimeout(f"nothing came for {timeout_s} s")
        return taken

    async def receive_async(self) -> tuple[Any, Note]:
        """Like ``receive``, from a coroutine. If cancelled, no batch is lost."""
        ready: Collection[int] = ()
        while (taken := self._take(ready)) is None:
            ready = await wait_any_async([post.worker for post in self._awaited])
        return taken

    @property
    def left_at_ends(self) -> Mapping[int, Sequence[LeftSamples]]:
        """What operators have left out behind the last batch of each lane that has ended."""
        return self._intake.left_at_ends

    def close(self) -> None:
        """End the workers."""
        self._close()

    def describe_wait(self) -> str:
        """Whom the consumer waits for, and what they do; takes seconds at most."""
        awaited = self._awaited[:_MOST_OBSERVED]
        return self._tell([_tell_post(post, post.worker.observe()) for post in awaited])

    async def describe_wait_async(self) -> str:
        """Like ``describe_wait``, from a coroutine."""
        awaited = self._awaited[:_MOST_OBSERVED]
        return self._tell([_tell_post(post, await post.worker.observe_async()) for post in awaited])

    def _tell(self, told: list[str]) -> str:
        if more := len(self._awaited) - len(told):
            told.append(f"and {more} more workers")
        return "\n".join(told)

    def _take(self, ready: Collection[int]) -> tuple[Any, Note] | None:
        """The next batch that has come, None if one has to wait for those awaited."""
        while candidates := self._order.candidates():
            for post in candidates:
                if (came := post.take(ready)) is not None:
                    break
            else:
                self._awaited = tuple(candidates)
                return None
            self._order.passed(post, came[1])
            if self._intake.add(came[1]):
                return came
        while self._ending:
            self._awaited = self._ending[:1]
            try:
                self._ending[0].take(ready)
            except EndOfChannel:
                self._ending.pop(0)
            else:
                return None
        raise EndOfChannel


def _tell_post(post: WorkerLanes, doing: str) -> str:
    """Which worker it is, where it is as far as is known, and what it does."""
    return f"{post.worker.name}, {post.describe_next()}, {doing}"
