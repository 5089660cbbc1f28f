"""The Ray actors of one pass as their consumer sees them: started and ended together, received one by one.

Laws:

* Answers are read in the order of the calls, on the thread that receives. Ray's own thread only rings the
  bell.
* An answer that was lost with its node is a death, and so are all after it: the actor's successor makes those
  batches again.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any

from ... import __version__
from ...errors import WorkerDiedError, raise_told
from ...flow.channel import ChannelClosed, EndOfChannel
from ..link import Bell
from ..pool import AnyPool, Pickled
from ..raised import load_error
from ..worker import AnyWorker
from .actor import ActorPlace, Answer, Bench, Is, LaneWorker, ObjectPages, Parts
from .options import RayWorkers, connect, import_ray

# What is raised when Ray reports that an actor has failed, or finds no place for it.

# Of the beginning and the end of Ray's texts, each: a traceback has its error there, and what is between them
# is of no use to a reader.
_SHOWN_TEXT = 400


def judge(
    error: BaseException, name: str, number: int, place: ActorPlace | None
) -> tuple[bool, Callable[[], BaseException]]:
    """Whether an error of a call is the actor's death, and what is to be raised.

    Args:
        error: Ray's, instead of the call's result. What user code raises comes as an answer.
        name: Of the worker, in messages.
        number: Its place in the pool.
        place: Where it runs; None if it has not started yet.
    """
    exceptions = import_ray().exceptions
    told = " ".join(str(error).split())
    if len(told) > 2 * _SHOWN_TEXT:
        told = f"{told[:_SHOWN_TEXT]} ... {told[-_SHOWN_TEXT:]}"
    # Another actor would fail in the same way.
    never = (
        exceptions.RuntimeEnvSetupError,
        exceptions.ActorUnschedulableError,
        exceptions.ActorPlacementGroupRemoved,
        exceptions.RayTaskError,
    )
    if isinstance(error, never) or getattr(error, "actor_init_failed", False):
        return False, partial(
            RuntimeError,
            f"{name} could not be started; asyncloader, in this version, and what the dataset uses must be "
            f"importable on every node, see RayWorkers(runtime_env=...). Ray says: {told}",
        )
    if not isinstance(error, exceptions.RayError):
        return False, lambda: error
    where = "" if place is None else f" on node {place.node}"
    return True, partial(
        WorkerDiedError,
        f"a Ray actor{where} was lost, before its job had ended; Ray says: {told}",
        worker=number,
        pid=None if place is None else place.pid,
    )


def describe_lateness(name: str, asked: RayWorkers) -> str:
    """The message for an actor that found no place in time."""
    ray = import_ray()
    or_else = "" if asked.runtime_env is None else "; or no process could be started in its runtime_env"
    return (
        f"{name} had no place within start_timeout_s={asked.start_timeout_s:g} seconds: it needs "
        f"{asked.demand}, and of the cluster's {_amounts(ray.cluster_resources())}, "
        f"{_amounts(ray.available_resources())} are free. Ask for less, or for fewer workers, or add "
        f"nodes{or_else}"
    )


def _amounts(resources: dict[str, float]) -> dict[str, float]:
    """What can be asked for; each node's own name is among a cluster's resources too."""
    return {name: amount for name, amount in sorted(resources.items()) if not name.startswith("node:")}


# How long a stack may take over the network, if the actor does not hold the interpreter lock.
_OBSERVE_S = 2.0

# Small batches are sent several at a time: an answer costs the same whatever is in it. The bound on their
# bytes is low, since a batch that the loop keeps also keeps those that came with it. And they are a part of
# those made ahead, so that the actor makes others meanwhile.
_MOST_PACKED_BYTES = 4 << 20
_PART_PACKED = 4

# Of an actor that is lost before its job has started: for some seconds Ray may place actors on a lost node.
_MOST_STARTS = 5


class RayWorker(AnyWorker):
    """One actor of a ``RayPool``, running its job.

    Args:
        number: Its place in the pool.
        given: What the job is called with.
        pool: Has the actor, the job, and the bounds on batches made ahead.
    """

    def __init__(self, number: int, given: Any, pool: RayPool) -> None:
        super().__init__(number)
        self._given = given
        # Weak: the cycle would keep the bench, and its actors, until a garbage collection.
        self._pool = weakref.ref(pool)
        self._actor: Any = None
        self._starts = 0
        self._asked_with = pool.bench.asked
        self._prefetch, self._prefetch_bytes = pool.ahead
        self._bell = Bell()
        self._pages = ObjectPages()
        self._place: ActorPlace | None = None
        self._calls: deque[Future[Answer]] = deque()
        #: Batches that have come and were not yet received, each with its size.
        self._in_hand: deque[tuple[Parts, int]] = deque()
        #: How many more may come.
        self._granted = 0
        self._ends: Sequence[Any] = ()
        self._is_late = self._is_kept = False
        patience_s = min(self._asked_with.start_timeout_s, threading.TIMEOUT_MAX)
        self._patience = threading.Timer(patience_s, self._lose_patience)
        self._patience.daemon = True
        try:
            self._start()
        except BaseException:
            self._bell.close()
            raise
        self._patience.start()

    @property
    def name(self) -> str:
        where = "" if self._place is None else f", pid {self._place.pid} on node {self._place.node}"
        return f"worker {self.number} (a Ray actor{where})"

    def sources(self) -> Sequence[Bell]:
        return (self._bell,)

    # --- the answers ---

    def _receive(self) -> tuple[Any, Any] | None:
        self._bell.silence()
        while self._verdict is None:
            if self._is_over:
                raise ChannelClosed
            if self._in_hand:
                return self._take(*self._in_hand.popleft())
            if self._calls and self._calls[0].done():
                self._understand(self._calls.popleft())
            elif self._is_late and self._place is None:
                self._verdict = partial(RuntimeError, describe_lateness(self.name, self._asked_with))
            else:
                return None
        raise_told(self._verdict())

    def _understand(self, call: Future[Answer]) -> None:
        error = call.exception()  # if raised, it would refer to this frame, and that to the call: a cycle
        if error is not None:
            self._fail(error)
            return
        kind, held = call.result()
        if kind is Is.BATCHES:
            self._in_hand.extend(held)
            self._granted -= len(held)
        elif kind is Is.END:
            self._verdict = EndOfChannel
        elif kind is Is.STARTED:
            self._place = held
            self._patience.cancel()
        else:
            self._verdict = partial(load_error, held)

    def _take(self, parts: Parts, size_bytes: int) -> tuple[Any, Any]:
        # The next batches are assumed to be as large as this one. They are requested first: the actor makes
        # the next one while this one is unpickled.
        most = max(1, min(self._prefetch, self._prefetch_bytes // size_bytes))
        pack = max(1, min(most // _PART_PACKED, _MOST_PACKED_BYTES // size_bytes))
        credits = max(0, most - self._granted - len(self._in_hand))
        if not self._calls and (credits >= pack or len(self._in_hand) < pack):
            self._request(credits, pack)
        try:
            batch, note = self._pages.join(parts)
        except Exception as error:
            error.add_note(f"while rebuilding a batch from {self.name}")
            raise
        return batch, note

    def _start(self) -> None:
        pool = self._pool()
        if pool is None or pool.stored is None:
            raise ChannelClosed
        self._starts += 1
        actor = pool.take_actor()
        started = actor.start.remote(self.number, self._given, pool.stored)
        self._actor = actor  # only now: closing meanwhile clears it
        if self._is_over:  # it was closed meanwhile, which may have killed the previous actor
            self.kill()
        self._await(started)
        self._granted = 0
        self._request(1, 1)

    def _request(self, credits: int, most: int) -> None:
        """See ``LaneWorker.next``; one call at a time is under way."""
        self._granted += credits
        self._await(self._actor.next.remote(credits, most))

    def _await(self, reference: Any) -> None:
        call: Future[Answer] = reference.future()
        self._calls.append(call)
        call.add_done_callback(self._bell.ring)

    # --- what ends it ---

    def _fail(self, error: BaseException) -> None:
        """Handle an error of Ray's."""
        is_death, verdict = judge(error, self.name, self.number, self._place)
        if is_death and self._place is None and self._starts < _MOST_STARTS:
            self._calls.clear()
            self.kill()
            self._start()
        else:
            self.has_died, self._verdict = is_death, verdict

    def _lose_patience(self) -> None:
        self._is_late = True
        self._bell.ring()

    # --- watching ---

    def observe(self) -> str:
        """See ``AnyWorker``."""
        ray = import_ray()
        from ray.exceptions import GetTimeoutError, RayError

        if self._place is None:
            return f"is not started yet; it waits for {self._asked_with.demand} of the cluster"
        if (actor := self._actor) is None:  # it was closed meanwhile
            return "has ended"
        call = actor.observe.options(concurrency_group="beside").remote()
        try:
            stack = ray.get(call, timeout=_OBSERVE_S)
        except GetTimeoutError:
            return f"showed no Python stack within {_OBSERVE_S:g} s"
        except RayError:
            return "has ended"
        return f"is running, or waits for something; its Python stack:\n{stack.rstrip()}"

    # --- the end ---

    def let_go(self) -> None:
        super().let_go()
        self._patience.cancel()

    def finish(self) -> Sequence[Any]:
        """Ask the job to end, at once if it can; returns Ray's references to that, if the actor lives."""
        if (actor := self._actor) is None:  # one that was lost, and could not be replaced
            return []
        self._is_kept = self._has_started()
        self._ends = [actor.finish.options(concurrency_group="beside").remote()]
        return self._ends

    def hand_over(self, bench: Bench) -> bool:
        """Move the actor to the bench if its job has ended, as requested; False if it has not."""
        if not self._is_kept:
            return False
        try:
            import_ray().get(self._ends, timeout=0)
        except Exception:  # not in time, or it was lost
            return False
        bench.seat(self._actor)
        return True

    def _has_started(self) -> bool:
        """Whether the job is at work: asked to end before, it would begin later, in the next pass."""
        if self._place is not None:
            return True
        with suppress(IndexError):
            start = self._calls[0]  # its answer may be there and not yet looked at
            return start.done() and start.exception() is None and start.result()[0] is Is.STARTED
        return False

    def kill(self) -> None:
        """End the actor, whatever it does."""
        with suppress(Exception):  # it has ended, or the cluster has
            import_ray().kill(self._actor)

    def bury(self) -> None:
        super().bury()
        self._patience.cancel()
        self._patience.join()

    def _wake(self) -> None:
        self._bell.ring()

    def _close_sources(self) -> None:
        self._bell.close()
        self._calls.clear()
        self._in_hand.clear()
        self._ends = ()
        self._actor = None

    def _close_copies(self) -> None:
        self._bell.close()


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
        self.ahead = prefetch, prefetch_bytes
        #: Ray's reference to the job; without that it would be gone when an actor is replaced.
        self.stored: Any = None
        self.bench, self._grace_s = bench, grace_s

    def _start(self, job: Pickled, given: Sequence[Any]) -> None:
        """Request the actors, without waiting until they are there.

        Raises:
            RuntimeError: This process is connected to its cluster by Ray Client.
            ConnectionError: There is no cluster where the environment says that there is one.
        """
        self.stored = connect().put(job)
        for number, mine in enumerate(given):
            self._enlist(self._start_another(number, mine))

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return  # of two that close at a time, one gives idle actors back
            self._closed = True
        super().close()

    def _start_another(self, number: int, given: Any) -> RayWorker:
        return RayWorker(number, given, self)

    def take_actor(self) -> Any:
        """An idle actor, or a new one, which is requested."""
        # Ray's own restart would begin the job where it began, and not where it was.
        options = {**self.bench.asked.actor_options, "max_restarts": 0, "max_task_retries": 0}
        made = import_ray().remote(concurrency_groups={"beside": 1})(LaneWorker)
        return self.bench.take() or made.options(**options).remote(__version__)

    def _forget_job(self) -> None:
        if self._owner == os.getpid():
            self.stored = None

    def _stop(self, workers: Sequence[RayWorker], for_good: bool) -> None:
        ray = import_ray()
        # At the interpreter's end Ray may have gone before us, and its actors with it.
        if not ray.is_initialized():
            return
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
