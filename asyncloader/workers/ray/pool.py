"""The actors of one pass, which are asked for and killed together."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from pickle import PickleBuffer
from typing import Any

from ... import __version__
from ...flow.channel import ChannelClosed
from .. import Job
from ..pool import WorkerRegistry, pickled_job
from .actor import Bench, LaneWorker
from .options import connect, import_ray
from .worker import Ahead, RayWorker

# For a worker to come to the end of the batch that it makes, so that its actor can be kept: as long as
# closing may take.
_BENCH_GRACE_S = 1.0


class RayPool:
    """Actors, one a job, an ``AnyPool``. Constructing asks for nothing; ``with`` does.

    Args:
        jobs: See ``WorkerPool``.
        bench: What each actor is asked for with; where they come from if some sit there, and where they go
            whose jobs have ended, if they are kept.
        prefetch: How many batches each makes ahead of those received. 0: it makes each only when somebody
            waits for it.
        prefetch_bytes: Bound on what those batches of one worker take in the object store; one is always let
            in, and the next ones are taken to be as large as the last.
        grace_s: How long jobs may take to close before their actors are killed; None kills at once.
        shared: See ``WorkerPool``. Put into the object store once, for all actors.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        bench: Bench,
        *,
        prefetch: int,
        prefetch_bytes: int,
        grace_s: float | None,
        shared: tuple[bytes, Sequence[PickleBuffer]],
    ) -> None:
        self._jobs = list(jobs)
        self._ahead = Ahead(prefetch, prefetch_bytes)
        self._shared: Any = shared
        self._crew = _Actors(grace_s, bench)
        self._finalizer = weakref.finalize(self, self._crew.close)

    def start(self) -> None:
        """Ask for an actor for each job, without waiting until they are there.

        Raises:
            Exception: What cloudpickle raises for a job that cannot be sent; no actor was asked for.
            RuntimeError: This process is connected to its cluster by Ray Client.
            ConnectionError: There is no cluster where the environment says that there is one.
        """
        pickled = [pickled_job(number, job) for number, job in enumerate(self._jobs)]
        self._jobs.clear()
        ray = connect()
        try:
            self._crew.shared = ray.put(self._shared)
            self._shared = None
            for number, job in enumerate(pickled):
                self._crew.enlist(self._ask_for(number, job))
        except BaseException:
            self.close()
            raise

    @property
    def workers(self) -> list[RayWorker]:
        """Those that work now, by their number."""
        return self._crew.workers

    def replace(self, number: int, job: Job) -> RayWorker:
        """Ask for another actor in the place of worker ``number``, which was lost; see ``AnyPool``.

        Raises:
            ChannelClosed: The pool was closed, maybe meanwhile.
        """
        pickled = pickled_job(number, job)
        self._crew.dismiss([self.workers[number]])
        worker = self._ask_for(number, pickled)
        self._crew.enlist(worker)
        return worker

    def close(self) -> None:
        """Kill all actors, and let go of what they were sent. Idempotent, from any thread."""
        self._finalizer()

    def __enter__(self) -> RayPool:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask_for(self, number: int, job: bytes) -> RayWorker:
        # The workers must not keep the pool, whose end is theirs. Nor the crew, which has them: in a ring
        # with it the bench, and the actors that sit there, would outlive the loader until a collection.
        crew_ref = weakref.ref(self._crew)
        asked = self._crew.bench.asked
        made = import_ray().remote(concurrency_groups={"aside": 1})(LaneWorker)
        # Ray's own restart would begin the job where it began, and not where it was.
        options = {**asked.actor_options, "max_restarts": 0, "max_task_retries": 0}

        def ask() -> tuple[Any, Any]:
            crew = crew_ref()
            if crew is None or crew.shared is None:
                raise ChannelClosed
            actor = crew.bench.take() or made.options(**options).remote(__version__)
            return actor, actor.start.remote(number, job, crew.shared)

        return RayWorker(number, ask, asked, self._ahead)


class _Actors(WorkerRegistry[RayWorker]):
    """See ``WorkerRegistry``.

    Args:
        grace_s: See ``RayPool``.
        bench: See ``RayPool``.
    """

    def __init__(self, grace_s: float | None, bench: Bench) -> None:
        super().__init__()
        #: Ray's reference to what all jobs are given; held, or it would be gone when an actor is replaced.
        self.shared: Any = None
        self.bench = bench
        self._owner = os.getpid()
        self._grace_s = grace_s

    def dismiss(self, workers: Sequence[RayWorker]) -> None:
        _close_workers(workers, None)

    def _end(self, workers: Sequence[RayWorker]) -> None:
        if self._owner == os.getpid():
            self.shared = None
        _close_workers(workers, self._grace_s, self.bench if self.bench.keeps else None)


def _close_workers(workers: Sequence[RayWorker], grace_s: float | None, bench: Bench | None = None) -> None:
    """Ask all to end, if there is time for that, kill them, and give back what they held.

    Args:
        workers: Those.
        grace_s: How long they may take; None asks for nothing.
        bench: Takes the actors of those that have ended in time; None has all of them killed.
    """
    if any(worker.is_inherited for worker in workers):
        for worker in workers:
            worker.abandon()
        return
    if not workers:
        return  # maybe none were asked for, and Ray was never imported
    ray = import_ray()
    for worker in workers:
        worker.let_go()
    # At the interpreter's end Ray may have gone before us, and its actors with it.
    if ray.is_initialized():
        if bench is not None:
            grace_s = grace_s or _BENCH_GRACE_S
        ends = [] if grace_s is None else [end for worker in workers for end in worker.finish()]
        if ends:
            ray.wait(ends, num_returns=len(ends), timeout=grace_s, fetch_local=False)
        for worker in workers:
            if bench is None or not worker.hand_over(bench):
                worker.kill()
    for worker in workers:
        worker.bury()
