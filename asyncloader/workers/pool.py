"""The workers of one iterator, which are started and closed together.

Laws:

* A job that cannot be pickled raises before any process starts.
* Only a worker that has died can be replaced. A worker that starts while the pool is closed ends too.
* ``close`` takes less than a second, also when a job does not react, and leaves nothing behind but the
  tensors that the user kept.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pickle import PickleBuffer
from time import monotonic
from typing import Generic, Self, TypeVar

from ..flow.channel import ChannelClosed
from ..flow.process import import_path, patience_s
from .by_value import dumps_outward
from .forkserver import ForkServer
from .lifeline import describe_process, wait_ended
from .link import BatchSource, Link, Setting, socketpair, wait_readable, wait_readable_async
from .slots import SharedStore
from .worker import GRACE_S, AnyWorker, Job, Reception, Worker

# Several workers at once: waiting for any of them, and ending all.

# SIGKILL acts in milliseconds, more where gigabytes have to be unmapped.
_KILL_DEADLINE_S = 5.0


def wait_any(workers: Sequence[AnyWorker], deadline: float | None) -> list[int]:
    """Block this thread until one of them may have something to receive.

    Returns:
        The descriptors that are readable; none at the deadline.

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


W = TypeVar("W", bound=AnyWorker)


class AnyPool(ABC, Generic[W]):
    """The workers of one pass, started and closed together. Constructing starts nothing; ``with`` does.

    Args:
        jobs: Called without arguments, or with what the jobs share, in a process of its own, each returns an
            iterator of ``(batch, note)``. Sent by cloudpickle: lambdas and what is defined in ``__main__``
            work. A job seeds its own random number generators: all workers inherit the same state.

    Attributes:
        workers: Those that work now, by their number.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = list(jobs)
        self.workers: list[W] = []
        self._closed = False
        # Re-entrant: a garbage collection while it is held may run the finalizer that closes the pool.
        self._lock = threading.RLock()

    def start(self) -> None:
        """Start a worker for each job.

        Raises:
            Exception: What cloudpickle raises for a job that cannot be sent; no worker was started. Or see
                the classes of pools.
        """
        pickled = [pickled_job(number, job) for number, job in enumerate(self._jobs)]
        self._jobs.clear()
        try:
            self._start(pickled)
        except BaseException:
            self.close()
            raise

    def replace(self, number: int, job: Job) -> None:
        """Start another worker in the place of worker ``number``, which has died.

        It gets the surroundings that the first one got. Returns without waiting until it is there; one that
        cannot be started has died.

        Raises:
            ChannelClosed: The pool was closed, maybe meanwhile.
            RuntimeError: The fork server has ended, and no other one can be started, or not in time.
        """
        pickled = pickled_job(number, job)
        self._end([self.workers[number]], for_good=False)
        self._enlist(self._start_another(number, pickled))

    def close(self) -> None:
        """End all workers, and return once they have ended. Idempotent, from any thread."""
        with self._lock:
            self._closed = True
            workers = list(self.workers)
        self._end(workers, for_good=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _enlist(self, worker: W) -> None:
        """Add a worker, in the place of the previous one of its number.

        Raises:
            ChannelClosed: The pool was closed while the worker was started; it is ended too.
        """
        with self._lock:
            self.workers[worker.number : worker.number + 1] = [worker]
            closed = self._closed
        if closed:
            self._end([worker], for_good=False)
            raise ChannelClosed

    @abstractmethod
    def _start(self, jobs: Sequence[bytes]) -> None:
        """Start workers for these pickled jobs, and enlist each."""

    @abstractmethod
    def _start_another(self, number: int, job: bytes) -> W:
        """Start another worker of this number."""

    @abstractmethod
    def _end(self, workers: Sequence[W], for_good: bool) -> None:
        """End these workers; the last ones, if it is for good, with what they share. Idempotent."""


class WorkerPool(AnyPool[Worker]):
    """Processes of this machine, one a job.

    Args:
        jobs: See ``AnyPool``.
        prefetch: How many batches each worker makes ahead of those received, at least 1.
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
        ValueError: ``prefetch`` is less than 1.
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
            raise ValueError(f"prefetch must be 1 or more, but is {prefetch}")
        super().__init__(jobs)
        self._make_setting = partial(
            Setting, number=0, prefetch=prefetch, prefetch_bytes=prefetch_bytes, spare_bytes=spare_bytes
        )
        self._grace_s = GRACE_S if grace_s is None else grace_s
        self._start_timeout_s = start_timeout_s
        self._server = server
        self._shared = shared
        self._stored: SharedStore | None = None
        self._setting: Setting | None = None

    def _start(self, jobs: Sequence[bytes]) -> None:
        """Start the processes.

        Raises:
            RuntimeError: The workers could not be started; see ``ForkServer``.
            TimeoutError: They were not started in time. The server goes on: another pool may have them.
        """
        assert self._setting is None, "a pool starts once"
        server = self._server = self._server or ForkServer.shared()
        self._setting = self._make_setting(
            path=import_path(), argv=list(sys.argv), directory=os.getcwd(), environment=dict(os.environ)
        )
        if self._shared is not None:
            self._stored = SharedStore(*self._shared)
            self._shared = None
        with self._start_bounded(server) as deadline:
            for number, job in enumerate(jobs):
                self._enlist(self._ask_for(server, number, job, deadline))
            for worker in self.workers:
                worker.lifeline.wait_started(deadline)

    def _start_another(self, number: int, job: bytes) -> Worker:
        server = self._server
        if server is None:
            raise ChannelClosed
        try:
            return self._ask_for(server, number, job, None)
        except RuntimeError:
            if server.alive:
                raise
        server = ForkServer.shared()  # it has ended, and so its other workers have died too
        try:
            with self._start_bounded(server) as deadline:
                worker = self._ask_for(server, number, job, deadline)
        except TimeoutError as late:
            # A TimeoutError would mean that a batch may still come.
            raise RuntimeError(str(late)) from None
        self._server = server
        return worker

    def _end(self, workers: Sequence[Worker], for_good: bool) -> None:
        """Ask all to end, kill those that do not, and release what they held. Takes the time of one."""
        if for_good:
            self._server = None
            if self._stored is not None:
                self._stored.close()
        if any(worker.is_inherited for worker in workers):
            for worker in workers:
                worker.abandon()
            return
        for worker in workers:
            worker.let_go()
        lifelines = [worker.lifeline for worker in workers]
        wait_ended(lifelines, patience_s(max((worker.grace_s for worker in workers), default=0.0)))
        for lifeline in lifelines:
            lifeline.kill()
        wait_ended(lifelines, patience_s(_KILL_DEADLINE_S, at_exit=0.5))
        for worker in workers:
            worker.bury()

    @contextmanager
    def _start_bounded(self, server: ForkServer) -> Iterator[float | None]:
        """The deadline for starting workers; a ``TimeoutError`` within names the state of the server."""
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
        setting = replace(self._setting, number=number)
        given: list[int] = []
        ours, theirs = socketpair()
        try:
            with closing(SharedStore(pickle.dumps((setting, job), protocol=5), ())) as stored:
                given.append(stored.duplicate())
            if self._stored is not None:
                given.append(self._stored.duplicate())
            lifeline = server.fork(theirs, given, deadline)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            for descriptor in given:
                os.close(descriptor)
        return Worker(number, Link(ours, 0, setting.spare_bytes), lifeline, self._grace_s)


def pickled_job(number: int, job: Job) -> bytes:
    """A job, to be sent to worker ``number``; raises what cloudpickle does."""
    try:
        return dumps_outward(job)
    except Exception as error:
        error.add_note(f"while pickling the job of worker {number}, to send it to its process")
        raise
