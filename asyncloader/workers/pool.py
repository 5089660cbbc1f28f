"""The workers of one iterator, which live and die together.

Laws:

* A job that cannot be sent is told before any process starts.
* ``close`` takes less than a second, also when a job does not react, and leaves nothing behind but the
  tensors that the user kept.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from .._flow.children import import_path
from ..by_value import dumps_outward
from ._wire import Setting, socketpair, store
from .forkserver import ForkServer
from .slots import InboundSlots
from .worker import GRACE_S, Worker, close_workers

__all__ = ["Job", "WorkerPool"]

Job: TypeAlias = Callable[[], Iterator[tuple[Any, Any]]]


class WorkerPool:
    """Workers, one a job, that live and die together. Constructing starts nothing; ``with`` does.

    Args:
        jobs: Called without arguments in a process of its own, each returns an iterator of
            ``(batch, note)``. Sent by cloudpickle: lambdas and what is defined in ``__main__`` work.
            A job seeds its own random number generators: all workers inherit the same state.
        prefetch: How many batches each worker makes ahead of those received. 0: it makes each only when
            somebody waits for it.
        prefetch_bytes: Bound on what those batches of one worker take in shared memory; one is always
            let in. Without a bound by default, since the count is one.
        spare_bytes: Bound on what the free slots of one worker hold, which spare it new pages for each batch.
            Without a bound by default, since there are few.
        grace_s: How long a worker may take to close its job before it is killed; with a job whose iterator
            has a ``let_go``, which is then called on another thread to end a wait inside of ``next``.
        server: Where the workers come from; the process's shared one by default.

    Raises:
        ValueError: ``prefetch`` is negative.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        *,
        prefetch: int,
        prefetch_bytes: int = sys.maxsize,
        spare_bytes: int = sys.maxsize,
        grace_s: float | None = None,
        server: ForkServer | None = None,
    ) -> None:
        if prefetch < 0:
            raise ValueError(f"prefetch must not be negative, but is {prefetch}")
        self._jobs = list(jobs)
        self._prefetch = prefetch
        self._prefetch_bytes = prefetch_bytes
        self._spare_bytes = spare_bytes
        self._grace_s = GRACE_S if grace_s is None else grace_s
        self._server = server
        self.workers: list[Worker] = []
        # The list, not the pool: what a finalizer refers to is never collected.
        self._finalizer = weakref.finalize(self, close_workers, self.workers)

    def start(self) -> None:
        """Start a worker for each job.

        Raises:
            Exception: What cloudpickle raises for a job that cannot be sent; no process was started.
            RuntimeError: The workers could not be started; see ``ForkServer``.
        """
        assert not self.workers, "a pool starts once"
        pickled = [_pickled_job(number, job) for number, job in enumerate(self._jobs)]
        self._jobs.clear()
        if self._server is None:
            self._server = ForkServer.shared()
        try:
            for number, job in enumerate(pickled):
                self.workers.append(self._ask_for(number, job))
            for worker in self.workers:
                worker.lifeline.wait_started()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End all workers, and return once they have ended. Idempotent, from any thread."""
        self._finalizer()
        self._server = None

    def __enter__(self) -> WorkerPool:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask_for(self, number: int, pickled_job: bytes) -> Worker:
        assert self._server is not None, "pool not started, or closed"
        setting = Setting(
            number=number,
            prefetch=self._prefetch,
            prefetch_bytes=self._prefetch_bytes,
            spare_bytes=self._spare_bytes,
            path=import_path(),
            argv=list(sys.argv),
            directory=os.getcwd(),
            environment=dict(os.environ),
        )
        stored = store(setting, pickled_job)
        ours, theirs = socketpair()
        try:
            lifeline = self._server.fork(theirs, stored)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            os.close(stored)
        slots = InboundSlots(self._spare_bytes)
        return Worker(number, ours, lifeline, slots, self._grace_s, on_demand=self._prefetch == 0)


def _pickled_job(number: int, job: Job) -> bytes:
    try:
        return dumps_outward(job)
    except Exception as error:
        error.add_note(f"while pickling the job of worker {number}, to send it to its process")
        raise
