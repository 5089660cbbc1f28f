"""The actors of one pass, which are started and ended together."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from typing import Any

from ... import __version__
from ...flow.channel import ChannelClosed
from ..pool import AnyPool, Pickled
from .actor import Bench, LaneWorker
from .options import connect, import_ray
from .worker import RayWorker

# For a worker to complete the batch that it is making, so that its actor can be kept: as long as closing may
# take.
_BENCH_GRACE_S = 1.0


class RayPool(AnyPool[RayWorker]):
    """Actors, wherever Ray places them. The job is put into its object store.

    Args:
        job, given: See ``AnyPool``.
        bench: What each actor is requested with; idle actors are taken from it, and go back to it when their
            job has ended, if they are kept.
        prefetch: How many batches each makes ahead of those received.
        prefetch_bytes: Bound on what those batches of one worker take in the object store; one is always let
            in, and the next ones are assumed to be as large as the last.
        grace_s: How long jobs may take to close before their actors are killed; None kills at once.
    """

    def __init__(
        self,
        job: Pickled,
        given: Sequence[Any],
        bench: Bench,
        *,
        prefetch: int,
        prefetch_bytes: int,
        grace_s: float | None,
    ) -> None:
        super().__init__(job, given)
        self._ahead = prefetch, prefetch_bytes
        #: Ray's reference to the job; without that it would be gone when an actor is replaced.
        self._stored: Any = None
        self._bench, self._grace_s = bench, grace_s

    def _start(self, job: Pickled, given: Sequence[Any]) -> None:
        """Request the actors, without waiting until they are there.

        Raises:
            RuntimeError: This process is connected to its cluster by Ray Client.
            ConnectionError: There is no cluster where the environment says that there is one.
        """
        self._stored = connect().put(job)
        for number, mine in enumerate(given):
            self._enlist(self._start_another(number, mine))

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return  # of two that close at a time, one gives idle actors back
            self._closed = True
        super().close()

    def _start_another(self, number: int, given: Any) -> RayWorker:
        # The workers must not refer to the pool: the cycle would keep the bench, and its actors, until a
        # garbage collection.
        pool_ref = weakref.ref(self)
        asked = self._bench.asked
        made = import_ray().remote(concurrency_groups={"beside": 1})(LaneWorker)
        # Ray's own restart would begin the job where it began, and not where it was.
        options = {**asked.actor_options, "max_restarts": 0, "max_task_retries": 0}

        def ask() -> tuple[Any, Any]:
            pool = pool_ref()
            if pool is None or pool._stored is None:
                raise ChannelClosed
            actor = pool._bench.take() or made.options(**options).remote(__version__)
            return actor, actor.start.remote(number, given, pool._stored)

        return RayWorker(number, ask, asked, *self._ahead)

    def _forget_job(self) -> None:
        if self._owner == os.getpid():
            self._stored = None

    def _stop(self, workers: Sequence[RayWorker], for_good: bool) -> None:
        ray = import_ray()
        # At the interpreter's end Ray may have gone before us, and its actors with it.
        if not ray.is_initialized():
            return
        keeps = for_good and self._bench.keeps
        grace_s = self._grace_s if for_good else None
        if keeps:
            grace_s = grace_s or _BENCH_GRACE_S
        ends = [] if grace_s is None else [end for worker in workers for end in worker.finish()]
        if ends:
            ray.wait(ends, num_returns=len(ends), timeout=grace_s, fetch_local=False)
        for worker in workers:
            if not (keeps and worker.hand_over(self._bench)):
                worker.kill()
