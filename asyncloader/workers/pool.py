"""The workers of one iterator, which are started and closed together.

Laws:

* A job that cannot be sent is told before any process starts.
* Only a worker that has died can be replaced. Whatever is being started while the pool is closed ends too.
* ``close`` takes less than a second, also when a job does not react, and leaves nothing behind but the
  tensors that the user kept.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pickle import PickleBuffer
from time import monotonic
from typing import Generic, TypeVar

from ..flow.channel import ChannelClosed
from ..flow.process import import_path
from .by_value import dumps_outward
from .forkserver import ForkServer
from .lifeline import describe_process, wait_ended
from .link import (
    AnyWorker,
    BatchSource,
    Job,
    Reception,
    Setting,
    socketpair,
    store,
    wait_readable,
    wait_readable_async,
)
from .slots import InboundSlots, SharedStore
from .worker import GRACE_S, Worker

# Several workers at once: waiting for any of them, and ending all.

# SIGKILL acts in milliseconds, more where gigabytes have to be unmapped.
_KILL_DEADLINE_S = 5.0


def wait_any(workers: Sequence[AnyWorker], deadline: float | None) -> list[int]:
    """Block this thread until one of them has something to tell; the descriptors, none at the deadline.

    Raises:
        ChannelClosed: One of them was closed.
    """
    reception = Reception()
    try:
        return wait_readable(_received(workers, reception), deadline)
    finally:
        reception.is_on = False
        _let_go(workers)


async def wait_any_async(workers: Sequence[AnyWorker]) -> list[int]:
    """Like ``wait_any``, from a coroutine and without a deadline."""
    reception = Reception()
    try:
        return await wait_readable_async(_received(workers, reception))
    finally:
        reception.is_on = False
        _let_go(workers)


def _received(workers: Sequence[AnyWorker], reception: Reception) -> list[BatchSource]:
    for worker in workers:
        worker.begin_receiving(reception)
    return [source for worker in workers for source in worker.sources()]


def _let_go(workers: Sequence[AnyWorker]) -> None:
    for worker in workers:
        worker.end_receiving()


def close_workers(workers: Sequence[Worker]) -> None:
    """Ask all to end, kill those that do not, and give back what they held. Takes the time of one."""
    if any(worker.is_inherited for worker in workers):
        for worker in workers:
            worker.abandon()
        return
    for worker in workers:
        worker.let_go()
    lifelines = [worker.lifeline for worker in workers]
    wait_ended(lifelines, max((worker.grace_s for worker in workers), default=0.0))
    for lifeline in lifelines:
        lifeline.kill()
    wait_ended(lifelines, _KILL_DEADLINE_S)
    for worker in workers:
        worker.bury()


# The workers of a pool, wherever they run: who is there, and the end of all, also of those yet to come.

W = TypeVar("W", bound=AnyWorker)


class WorkerRegistry(ABC, Generic[W]):
    """What a pool and its finalizer have in common, since what a finalizer refers to is never collected."""

    def __init__(self) -> None:
        #: Those that work now, by their number.
        self.workers: list[W] = []
        self._closed = False
        # Re-entrant: a garbage collection while it is held may run the finalizer that closes the pool.
        self._lock = threading.RLock()

    def enlist(self, worker: W) -> None:
        """Take in a worker, in the place of the one of its number.

        Raises:
            ChannelClosed: The pool was closed while the worker was asked for; it is ended too.
        """
        with self._lock:
            self.workers[worker.number : worker.number + 1] = [worker]
            closed = self._closed
        if closed:
            self.dismiss([worker])
            raise ChannelClosed

    def close(self) -> None:
        """End all workers that there are and that may yet come, and let go of what they share."""
        with self._lock:
            self._closed = True
            workers = list(self.workers)
        self._end(workers)

    @abstractmethod
    def dismiss(self, workers: Sequence[W]) -> None:
        """End those, of which nothing more is expected."""

    @abstractmethod
    def _end(self, workers: Sequence[W]) -> None:
        """End all, and let go of what they share."""


class WorkerPool:
    """Workers, one a job, started and closed together. Constructing starts nothing; ``with`` does.

    Args:
        jobs: Called without arguments, or with ``shared``, in a process of its own, each returns an
            iterator of ``(batch, note)``. Sent by cloudpickle: lambdas and what is defined in ``__main__``
            work. A job seeds its own random number generators: all workers inherit the same state.
        prefetch: How many batches each worker makes ahead of those received. 0: it makes each only when
            somebody waits for it.
        prefetch_bytes: Bound on what those batches of one worker take in shared memory; one is always
            let in. Without a bound by default, since the count is one.
        spare_bytes: Bound on what the free slots of one worker hold, which spare it new pages for each batch.
            Without a bound by default, since there are few.
        grace_s: How long a worker may take to close its job before it is killed; with a job whose iterator
            has a ``let_go``, which is then called on another thread to end a wait inside of ``next``.
        start_timeout_s: How long their start may take, and that of one that replaces another; as long as it
            takes by default.
        server: Where the workers come from; the process's shared one by default.
        shared: What every job is called with, pickled by protocol 5, and the buffers that are not in the
            pickle. Stored once for all workers, when they are started.

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
        start_timeout_s: float | None = None,
        server: ForkServer | None = None,
        shared: tuple[bytes, Sequence[PickleBuffer]] | None = None,
    ) -> None:
        if prefetch < 1:
            raise ValueError(f"prefetch must not be negative, but is {prefetch}")
        self._jobs = list(jobs)
        self._prefetch = prefetch
        self._prefetch_bytes = prefetch_bytes
        self._spare_bytes = spare_bytes
        self._grace_s = GRACE_S if grace_s is None else grace_s
        self._start_timeout_s = start_timeout_s
        self._server = server
        self._shared = shared
        self._setting: Setting | None = None
        self._crew = _Processes()
        self._finalizer = weakref.finalize(self, self._crew.close)

    def start(self) -> None:
        """Start a worker for each job.

        Raises:
            Exception: What cloudpickle raises for a job that cannot be sent; no process was started.
            RuntimeError: The workers could not be started; see ``ForkServer``.
            TimeoutError: They were not started in time. The server goes on: another pool may have them.
        """
        assert self._setting is None, "a pool starts once"
        pickled = [pickled_job(number, job) for number, job in enumerate(self._jobs)]
        self._jobs.clear()
        server = self._server = self._server or ForkServer.shared()
        self._setting = Setting(
            number=0,
            prefetch=self._prefetch,
            prefetch_bytes=self._prefetch_bytes,
            spare_bytes=self._spare_bytes,
            path=import_path(),
            argv=list(sys.argv),
            directory=os.getcwd(),
            environment=dict(os.environ),
        )
        try:
            if self._shared is not None:
                self._crew.shared = SharedStore(*self._shared)
                self._shared = None
            with self._start_bounded(server) as deadline:
                for number, job in enumerate(pickled):
                    self._crew.enlist(self._ask_for(server, number, job, deadline))
                for worker in self.workers:
                    worker.lifeline.wait_started(deadline)
        except BaseException:
            self.close()
            raise

    @property
    def workers(self) -> list[Worker]:
        """Those that work now, by their number."""
        return self._crew.workers

    def replace(self, number: int, job: Job) -> Worker:
        """Start another process in the place of worker ``number``, which has died.

        What it finds around itself is what the first one found. Returns without waiting until it is there;
        one that cannot be started has died.

        Raises:
            ChannelClosed: The pool was closed, maybe meanwhile.
            RuntimeError: The fork server has ended, and no other one can be started, or not in time.
        """
        pickled, server = pickled_job(number, job), self._server
        self._crew.dismiss([self.workers[number]])
        if server is None:
            raise ChannelClosed
        try:
            worker = self._ask_for(server, number, pickled, None)
        except RuntimeError:
            if server.alive:
                raise
            server = ForkServer.shared()  # it has ended, and so its other workers have died too
            try:
                with self._start_bounded(server) as deadline:
                    worker = self._ask_for(server, number, pickled, deadline)
            except TimeoutError as late:
                # Such an error means elsewhere that a batch may still come.
                raise RuntimeError(str(late)) from None
        self._crew.enlist(worker)
        self._server = server
        return worker

    def close(self) -> None:
        """End all workers, and return once they have ended. Idempotent, from any thread."""
        if self._finalizer.alive:
            self._crew.close()
            self._finalizer.detach()
        self._server = None

    def __enter__(self) -> WorkerPool:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _start_bounded(self, server: ForkServer) -> Iterator[float | None]:
        """Until when workers may take to start; a ``TimeoutError`` within says what the server is at."""
        bound_s = self._start_timeout_s
        try:
            yield None if bound_s is None else monotonic() + bound_s
        except TimeoutError:
            for worker in self.workers:
                worker.lifeline.give_up()
            raise TimeoutError(
                f"no workers were started within timeout={bound_s:g} seconds: the process that they come "
                f"from (pid {server.pid}) {describe_process(server.pid)}. It first imports what they need; "
                "iterate again, or allow more seconds"
            ) from None

    def _ask_for(self, server: ForkServer, number: int, job: bytes, deadline: float | None) -> Worker:
        assert self._setting is not None
        stored, shared = [store(replace(self._setting, number=number), job)], None
        ours, theirs = socketpair()
        try:
            if self._crew.shared is not None:
                stored.append(shared := self._crew.shared.duplicate())
            lifeline = server.fork(theirs, stored[0], shared, deadline)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            for descriptor in stored:
                os.close(descriptor)
        slots = InboundSlots(self._spare_bytes)
        return Worker(number, ours, lifeline, slots, self._grace_s)


class _Processes(WorkerRegistry[Worker]):
    def __init__(self) -> None:
        super().__init__()
        self.shared: SharedStore | None = None

    def dismiss(self, workers: Sequence[Worker]) -> None:
        close_workers(workers)

    def _end(self, workers: Sequence[Worker]) -> None:
        if self.shared is not None:
            self.shared.close()
        close_workers(workers)


def pickled_job(number: int, job: Job) -> bytes:
    """A job, to be sent to worker ``number``; raises what cloudpickle does."""
    try:
        return dumps_outward(job)
    except Exception as error:
        error.add_note(f"while pickling the job of worker {number}, to send it to its process")
        raise
