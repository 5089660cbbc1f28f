"""A worker's post: which lanes whoever holds it carries, how far they were received, and who comes next.

Laws:

* What a worker has sent whole is received, whatever became of it. Whoever replaces it goes on behind that:
  the batches are the same, whoever is killed.
* What user code raises is raised, and never tried again.
* A worker that dies before it has sent anything, where another one has died, is an error: it is the sample.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Any

from .._flow.channel import EndOfChannel
from ..blocks import Place
from ..errors import WorkerDiedError
from ..plan.counts import Deal
from ..plan.cursor import Cursor
from ..sources.components import places_of
from ..statistics import Meter
from ..stream import Job, Note, Turns
from ..workers import AnyPool, AnyWorker
from ..workers import Job as WorkerJob

__all__ = ["Post", "Restarts"]

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


class Post:
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
        pool: AnyPool,
        job: Job,
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
            _log.warning("%s: all its batches have come, but it has not left the recipe's contexts", death)
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
