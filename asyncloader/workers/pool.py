"""The workers of one iterator, which are started and closed together.

Laws:

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
from contextlib import contextmanager
from pickle import PickleBuffer
from time import monotonic
from typing import Any, BinaryIO, Generic, Self, TypeAlias, TypeVar

from ..flow.channel import ChannelClosed
from ..flow.process import import_path, patience_s
from .forkserver import ForkServer
from .lifeline import describe_process, wait_ended
from .link import BatchSource, Link, Setting, socketpair, wait_readable, wait_readable_async
from .slots import store_shared
from .worker import AnyWorker, Reception, Worker

# Several workers at once: waiting for any of them, and ending all.

# A job that waits for a credit ends at once, one amid a batch when that is done. Waiting longer would be
# felt at each ``break``, and nothing in a worker needs its clean-up to be whole.
_GRACE_S = 0.3

# SIGKILL acts in milliseconds, more where gigabytes have to be unmapped.
_KILL_DEADLINE_S = 5.0


def wait_any(workers: Sequence[AnyWorker], deadline: float | None) -> bool:
    """Block this thread until one of them may have something to receive; false at the deadline.

    Raises:
        ChannelClosed: One of them was closed.
    """
    reception = Reception()
    try:
        return wait_readable(_received(workers, reception), deadline)
    finally:
        reception.is_on = False
        _let_go(workers)


async def wait_any_async(workers: Sequence[AnyWorker]) -> None:
    """Like ``wait_any``, from a coroutine and without a deadline."""
    reception = Reception()
    try:
        await wait_readable_async(_received(workers, reception))
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

Pickled: TypeAlias = tuple[bytes, Sequence[PickleBuffer]]


class AnyPool(ABC, Generic[W]):
    """The workers of one pass, started and closed together. Constructing starts nothing; ``with`` does.

    Args:
        job: A ``Job``, which each worker runs in a process of its own, pickled by protocol 5, and the buffers
            that are not in the pickle. It is stored once for all workers, when they are started. It seeds its
            own random number generators: all workers inherit the same state.
        given: For each worker what its job is called with beside its number; plain data.

    Attributes:
        workers: Those that work now, by their number.
    """

    def __init__(self, job: Pickled, given: Sequence[Any]) -> None:
        self._job: Pickled | None = job
        self._given = given
        self.workers: list[W] = []
        self._owner = os.getpid()
        self._closed = False
        # Re-entrant: a garbage collection while it is held may run the finalizer that closes the pool.
        self._lock = threading.RLock()

    def start(self) -> None:
        """Start the workers.

        Raises:
            Exception: See the classes of pools.
        """
        assert self._job is not None, "a pool starts once"
        job, self._job = self._job, None
        try:
            self._start(job, self._given)
        except BaseException:
            self.close()
            raise

    def replace(self, number: int, given: Any) -> None:
        """Start another worker in the place of worker ``number``, which has died, with the same job.

        It gets the surroundings that the first one got. Returns without waiting until it is there; one that
        cannot be started has died.

        Raises:
            ChannelClosed: The pool was closed, maybe meanwhile.
            RuntimeError: The fork server has ended, and no other one can be started, or not in time.
        """
        self._end([self.workers[number]], for_good=False)
        self._enlist(self._start_another(number, given))

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

    def _end(self, workers: Sequence[W], for_good: bool) -> None:
        """End these workers; the last ones, if it is for good, with the job. Idempotent."""
        if for_good:
            self._forget_job()
        if self._owner != os.getpid():
            for worker in workers:
                worker.abandon()
            return
        for worker in workers:
            worker.let_go()
        if workers:
            self._stop(workers, for_good)
        for worker in workers:
            worker.bury()

    @abstractmethod
    def _start(self, job: Pickled, given: Sequence[Any]) -> None:
        """Store the job, start the workers, and enlist each."""

    @abstractmethod
    def _start_another(self, number: int, given: Any) -> W:
        """Start another worker of this number."""

    @abstractmethod
    def _stop(self, workers: Sequence[W], for_good: bool) -> None:
        """Have these workers end, which were let go, and kill those that do not. Takes the time of one."""

    @abstractmethod
    def _forget_job(self) -> None:
        """No further worker is started. Idempotent, also in a forked process."""


class WorkerPool(AnyPool[Worker]):
    """Processes of this machine, forked by its fork server.

    Args:
        job, given: See ``AnyPool``.
        prefetch: How many batches each worker makes ahead of those received, at least 1.
        prefetch_bytes: Bound on what those batches of one worker take in shared memory; one is always
            let in. Without a bound by default, since the count is one.
        spare_bytes: Bound on what the free slots of one worker hold, which spare it new pages for each batch.
            Without a bound by default, since there are few.
        grace_s: How long a worker may take to close its job before it is killed.
        start_timeout_s: How long their start may take, and that of one that replaces another; as long as it
            takes by default.
        server: Where the workers come from; the process's shared one by default.

    Raises:
        ValueError: ``prefetch`` is less than 1.
    """

    def __init__(
        self,
        job: Pickled,
        given: Sequence[Any],
        *,
        prefetch: int,
        prefetch_bytes: int = sys.maxsize,
        spare_bytes: int = sys.maxsize,
        grace_s: float | None = None,
        start_timeout_s: float | None = None,
        server: ForkServer | None = None,
    ) -> None:
        if prefetch < 1:
            raise ValueError(f"prefetch must be 1 or more, but is {prefetch}")
        super().__init__(job, given)
        self._bounds = prefetch, prefetch_bytes, spare_bytes
        self._grace_s = _GRACE_S if grace_s is None else grace_s
        self._start_timeout_s = start_timeout_s
        self._server = server
        self._setting: Setting | None = None
        #: The job, as long as workers may be started.
        self._stored: BinaryIO | None = None

    def _start(self, job: Pickled, given: Sequence[Any]) -> None:
        """Start the processes.

        Raises:
            RuntimeError: The workers could not be started; see ``ForkServer``.
            TimeoutError: They were not started in time. The server goes on: another pool may have them.
        """
        server = self._server = self._server or ForkServer.shared()
        self._setting = Setting(import_path(), list(sys.argv), os.getcwd(), dict(os.environ), *self._bounds)
        self._stored = store_shared(*job)
        with self._start_bounded(server) as deadline:
            for number, mine in enumerate(given):
                self._enlist(self._ask_for(server, number, mine, deadline))
            for worker in self.workers:
                worker.lifeline.wait_started(deadline)

    def _start_another(self, number: int, given: Any) -> Worker:
        server = self._server
        if server is None:
            raise ChannelClosed
        try:
            return self._ask_for(server, number, given, None)
        except RuntimeError:
            if server.alive:
                raise
        server = ForkServer.shared()  # it has ended, and so its other workers have died too
        try:
            with self._start_bounded(server) as deadline:
                worker = self._ask_for(server, number, given, deadline)
        except TimeoutError as late:
            # A TimeoutError would mean that a batch may still come.
            raise RuntimeError(str(late)) from None
        self._server = server
        return worker

    def _forget_job(self) -> None:
        with self._lock:
            self._server, stored, self._stored = None, self._stored, None
        if stored is not None:
            stored.close()

    def _stop(self, workers: Sequence[Worker], for_good: bool) -> None:
        lifelines = [worker.lifeline for worker in workers]
        wait_ended(lifelines, patience_s(self._grace_s))
        for lifeline in lifelines:
            lifeline.kill()
        wait_ended(lifelines, patience_s(_KILL_DEADLINE_S, at_exit=0.5))

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

    def _ask_for(self, server: ForkServer, number: int, given: Any, deadline: float | None) -> Worker:
        assert self._setting is not None
        its_own = pickle.dumps((number, self._setting, given), protocol=5)
        ours, theirs = socketpair()
        try:
            with theirs, self._open_job() as job:
                lifeline = server.fork(theirs, its_own, job, deadline)
        except BaseException:
            ours.close()
            raise
        return Worker(number, Link(ours, 0, self._setting.spare_bytes), lifeline)

    def _open_job(self) -> BinaryIO:
        """Another descriptor of the stored job, which stays open if the pool is closed meanwhile."""
        with self._lock:
            if self._stored is None:
                raise ChannelClosed
            return open(os.dup(self._stored.fileno()), "rb")
