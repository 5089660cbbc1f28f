"""The actors of one pass, which are started and ended together."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from pickle import PickleBuffer
from typing import Any

from ... import __version__
from ...flow.channel import ChannelClosed
from ..pool import AnyPool, WorkerRegistry
from ..worker import Job
from .actor import Bench, LaneWorker
from .options import connect, import_ray
from .worker import RayWorker

# For a worker to complete the batch that it is making, so that its actor can be kept: as long as closing may
# take.
_BENCH_GRACE_S = 1.0


class RayPool(AnyPool[RayWorker]):
    """Actors, one a job, wherever Ray places them.

    Args:
        jobs: See ``AnyPool``.
        bench: What each actor is requested with; idle actors are taken from it, and go back to it when their
            job has ended, if they are kept.
        prefetch: How many batches each makes ahead of those received.
        prefetch_bytes: Bound on what those batches of one worker take in the object store; one is always let
            in, and the next ones are assumed to be as large as the last.
        grace_s: How long jobs may take to close before their actors are killed; None kills at once.
        shared: See ``WorkerPool``. Put into the object store once, for all actors.
    """

    _registry: _Actors

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
        super().__init__(jobs, _Actors(grace_s, bench))
        self._ahead = prefetch, prefetch_bytes
        self._shared: Any = shared

    def _start(self, jobs: Sequence[bytes]) -> None:
        """Request the actors, without waiting until they are there.

        Raises:
            RuntimeError: This process is connected to its cluster by Ray Client.
            ConnectionError: There is no cluster where the environment says that there is one.
        """
        self._registry.shared = connect().put(self._shared)
        self._shared = None
        for number, job in enumerate(jobs):
            self._registry.enlist(self._start_another(number, job))

    def close(self) -> None:
        self._finalizer()  # once: of two that close at a time, one gives idle actors back

    def _start_another(self, number: int, job: bytes) -> RayWorker:
        # The workers must not refer to the pool, which ends them when it is collected. Nor to the registry,
        # which refers to them: that cycle would keep the bench, and its actors, until a garbage collection.
        registry_ref = weakref.ref(self._registry)
        asked = self._registry.bench.asked
        made = import_ray().remote(concurrency_groups={"beside": 1})(LaneWorker)
        # Ray's own restart would begin the job where it began, and not where it was.
        options = {**asked.actor_options, "max_restarts": 0, "max_task_retries": 0}

        def ask() -> tuple[Any, Any]:
            registry = registry_ref()
            if registry is None or registry.shared is None:
                raise ChannelClosed
            actor = registry.bench.take() or made.options(**options).remote(__version__)
            return actor, actor.start.remote(number, job, registry.shared)

        return RayWorker(number, ask, asked, *self._ahead)


class _Actors(WorkerRegistry[RayWorker]):
    """See ``WorkerRegistry``.

    Args:
        grace_s: See ``RayPool``.
        bench: See ``RayPool``.
    """

    def __init__(self, grace_s: float | None, bench: Bench) -> None:
        super().__init__()
        #: Ray's reference to what the jobs share; without it that would be gone when an actor is replaced.
        self.shared: Any = None
        self.bench = bench
        self._owner = os.getpid()
        self._grace_s = grace_s

    def end(self, workers: Sequence[RayWorker], for_good: bool) -> None:
        """Ask all to end if they get time for that, kill or keep their actors, and release what they held."""
        if for_good and self._owner == os.getpid():
            self.shared = None
        if any(worker.is_inherited for worker in workers):
            for worker in workers:
                worker.abandon()
            return
        if not workers:
            return  # maybe none were started, and Ray was never imported
        ray = import_ray()
        for worker in workers:
            worker.let_go()
        # At the interpreter's end Ray may have gone before us, and its actors with it.
        if ray.is_initialized():
            keeps = for_good and self.bench.keeps
            grace_s = self._grace_s if for_good else None
            if keeps:
                grace_s = grace_s or _BENCH_GRACE_S
            ends = [] if grace_s is None else [end for worker in workers for end in worker.finish()]
            if ends:
                ray.wait(ends, num_returns=len(ends), timeout=grace_s, fetch_local=False)
            for worker in workers:
                if not (keeps and worker.hand_over(self.bench)):
                    worker.kill()
        for worker in workers:
            worker.bury()
