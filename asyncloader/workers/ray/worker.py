"""One Ray actor as its consumer sees it: its batches are received one by one, until it ends.

Laws:

* An answer is looked at when it is its turn, in the order of the calls, on the thread that receives. On Ray's
  own thread nothing happens but that the bell is rung.
* An answer that was lost with its node is a death, and so is all behind it: whoever replaces the actor makes
  those batches again.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...errors import WorkerDiedError, raise_told
from ...flow.channel import ChannelClosed, EndOfChannel
from ...flow.engine import run_in_thread
from ..link import ReceiveLock, Reception
from ..raised import load_error
from .actor import ActorPlace, Answer, Bench, Is, ObjectPages
from .options import RayWorkers, import_ray

# Tells whoever waits on a descriptor that something has come, from any thread.


class Bell:
    """An eventfd: readable from the first ring until it is silenced. Linux only, as all workers are."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._descriptor: int | None = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def fileno(self) -> int:
        """Readable when it has rung."""
        assert self._descriptor is not None
        return self._descriptor

    def ring(self, _: object = None) -> None:
        """Let whoever waits look; in vain once it was closed."""
        with self._lock:  # the number may be another file's once it is closed
            if self._descriptor is not None:
                os.eventfd_write(self._descriptor, 1)

    def silence(self) -> None:
        """Not readable until it rings again. To be called before one looks, so that no ring is missed."""
        with suppress(BlockingIOError):  # it had not rung
            os.eventfd_read(self.fileno())

    def close(self) -> None:
        """Give back the descriptor. Idempotent."""
        with self._lock:
            descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


# What it is to the consumer when Ray says that an actor has failed, or finds no place for it.

# Of the beginning and the end of Ray's texts, each: a traceback has its error there, and between them is what
# is of no use to a reader.
_SHOWN_TEXT = 400


def judge(
    error: BaseException, name: str, number: int, place: ActorPlace | None
) -> tuple[bool, Callable[[], BaseException]]:
    """Whether an error of a call is the actor's death, and what is to be raised.

    Args:
        error: What Ray has for the call's result. What user code raises is none: it comes as an answer.
        name: Of the worker, in messages.
        number: Its place in the pool.
        place: Where it runs; None if it has not started yet.
    """
    exceptions = import_ray().exceptions
    told = " ".join(str(error).split())
    if len(told) > 2 * _SHOWN_TEXT:
        told = f"{told[:_SHOWN_TEXT]} ... {told[-_SHOWN_TEXT:]}"
    # Would come again of another actor too.
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
    """What to say of an actor that found no place in time."""
    ray = import_ray()
    or_else = "" if asked.runtime_env is None else "; or no process could be started in its runtime_env"
    return (
        f"{name} had no place within start_timeout_s={asked.start_timeout_s:g} seconds: it asks for "
        f"{asked.demand}, and of the cluster's {_amounts(ray.cluster_resources())} are free "
        f"{_amounts(ray.available_resources())}; ask for less, or for fewer workers, or add nodes{or_else}"
    )


def _amounts(resources: dict[str, float]) -> dict[str, float]:
    """What can be asked for; each node's own name is among a cluster's resources too."""
    return {name: amount for name, amount in sorted(resources.items()) if not name.startswith("node:")}


# How long a stack may take to come over the network, of an actor that does not hold the interpreter.
_OBSERVE_S = 2.0

# Of an actor that is lost before it has started, which is nothing of its job's doing: for some seconds Ray
# may place actors on a node that is gone.
_MOST_STARTS = 5


@dataclass(frozen=True)
class Ahead:
    """How much an actor makes ahead.

    Attributes:
        batches: At most so many.
        size_bytes: And no more than this; one is always let in.
    """

    batches: int
    size_bytes: int

    def calls(self, last_bytes: int) -> int:
        """How many may be under way; the next batches are taken to be as large as the last.

        Of the first one nothing is known, and so it comes alone: ``last_bytes`` is 0.
        """
        if not last_bytes:
            return 1
        return max(1, min(self.batches, self.size_bytes // last_bytes))


class RayWorker:
    """One actor running one job, an ``AnyWorker``. Made by ``RayPool``.

    Args:
        number: Its place in the pool.
        ask: Asks Ray for an actor, and that to start its job: its handle, and the reference to that.
        asked: What it is asked for with.
        ahead: How much it makes ahead.
    """

    def __init__(
        self, number: int, ask: Callable[[], tuple[Any, Any]], asked: RayWorkers, ahead: Ahead
    ) -> None:
        self.number = number
        self._owner = os.getpid()
        self._ask = ask
        self._actor: Any = None
        self._starts = 0
        self._asked_with = asked
        self._ahead = ahead
        self._bell = Bell()
        self._tenure = ReceiveLock(number, self._bell.close)
        self._pages = ObjectPages()
        self._place: ActorPlace | None = None
        self._last_bytes = 0
        self._calls: deque[Future[Answer]] = deque()
        self._ends: Sequence[Any] = ()
        self._verdict: Callable[[], BaseException] | None = None
        self._is_death = False
        self._is_late = False
        patience_s = min(asked.start_timeout_s, threading.TIMEOUT_MAX)
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

    @property
    def has_died(self) -> bool:
        """See ``AnyWorker``."""
        return self._is_death

    def receive_nowait(self, ready: Collection[int]) -> tuple[Any, Any] | None:
        """See ``AnyWorker``."""
        reception = Reception()
        try:
            self.begin_receiving(reception)
            self._bell.silence()
            answer = self._next_batch()
            return None if answer is None else self._take(answer)
        finally:
            reception.is_on = False
            self.end_receiving()

    # --- waiting ---

    def begin_receiving(self, reception: Reception) -> None:
        self._tenure.begin_receiving(reception)

    def end_receiving(self) -> None:
        self._tenure.end_receiving()

    def sources(self) -> Sequence[Bell]:
        return (self._bell,)

    # --- the answers ---

    def _next_batch(self) -> Answer | None:
        """The next batch, or None if one has to wait; raises what comes after the last one."""
        while self._verdict is None:
            if self._tenure.is_over:
                raise ChannelClosed
            if self._calls and self._calls[0].done():
                answer = self._understand(self._calls.popleft())
                if answer is not None:
                    return answer
            elif self._is_late and self._place is None:
                self._verdict = partial(RuntimeError, describe_lateness(self.name, self._asked_with))
            else:
                return None
        raise_told(self._verdict())

    def _understand(self, call: Future[Answer]) -> Answer | None:
        error = call.exception()  # raised it would hold this frame, and with that the call: a cycle
        if error is not None:
            self._take_blow(error)
            return None
        kind, parts, _ = answer = call.result()
        if kind == Is.BATCH:
            return answer
        if kind == Is.END:
            self._verdict = EndOfChannel
        elif kind == Is.STARTED:
            self._place = self._pages.join(parts)
            self._patience.cancel()
        else:
            dumped = self._pages.join(parts)
            self._verdict = lambda: load_error(dumped)
        return None

    def _take(self, answer: Answer) -> tuple[Any, Any]:
        _, parts, self._last_bytes = answer
        # First: the actor makes the next batch while this one is unpickled.
        for _ in range(self._ahead.calls(self._last_bytes) - len(self._calls)):
            self._await(self._actor.next.remote())
        try:
            batch, note = self._pages.join(parts)
        except Exception as error:
            error.add_note(f"while rebuilding a batch from {self.name}")
            raise
        return batch, note

    def _start(self) -> None:
        self._starts += 1
        self._actor, started = self._ask()
        if self._tenure.is_over:  # whoever ended it meanwhile may have killed the one before
            self.kill()
        self._await(started)
        self._await(self._actor.next.remote())

    def _await(self, reference: Any) -> None:
        call: Future[Answer] = reference.future()
        self._calls.append(call)
        call.add_done_callback(self._bell.ring)

    # --- what ends it ---

    def _take_blow(self, error: BaseException) -> None:
        """Ray has failed a call."""
        is_death, verdict = judge(error, self.name, self.number, self._place)
        if is_death and self._place is None and self._starts < _MOST_STARTS:
            self._calls.clear()
            self.kill()
            self._start()
        else:
            self._is_death, self._verdict = is_death, verdict

    def _lose_patience(self) -> None:
        self._is_late = True
        self._bell.ring()

    # --- watching ---

    def observe(self) -> str:
        """See ``AnyWorker``."""
        ray = import_ray()
        from ray.exceptions import GetTimeoutError, RayError

        if self._place is None:
            return f"is not started yet; it asks the cluster for {self._asked_with.demand}"
        if (actor := self._actor) is None:  # whoever closed it meanwhile
            return "has ended"
        call = actor.observe.options(concurrency_group="aside").remote()
        try:
            stack = ray.get(call, timeout=_OBSERVE_S)
        except GetTimeoutError:
            return f"showed no Python stack within {_OBSERVE_S:g} s"
        except RayError:
            return "has ended"
        return f"is running, or waits for something; its Python stack:\n{stack.rstrip()}"

    async def observe_async(self) -> str:
        """See ``AnyWorker``."""
        told: list[str] = []
        await run_in_thread(lambda: told.append(self.observe()), "asyncloader-observe")
        return told[0]

    # --- the end ---

    @property
    def is_inherited(self) -> bool:
        """Whether this is a copy in a process forked from the worker's owner."""
        return self._owner != os.getpid()

    def let_go(self) -> None:
        """Tell whoever receives that it is over."""
        self._tenure.end(self._bell.ring)
        self._patience.cancel()

    def finish(self) -> Sequence[Any]:
        """Ask the job to end, at once where it can; Ray's references to the ends of that, if it lives."""
        if (actor := self._actor) is None:  # one that was lost, and could not be replaced
            return []
        let_go = actor.let_go.options(concurrency_group="aside").remote()
        self._ends = [let_go, actor.finish.remote()]
        return self._ends

    def hand_over(self, bench: Bench) -> bool:
        """Leave the actor to others if its job has ended, as it was asked to; False if it has not."""
        if not self._ends:
            return False
        try:
            import_ray().get(self._ends, timeout=0)
        except Exception:  # not in time, or it was lost
            return False
        bench.seat(self._actor)
        return True

    def kill(self) -> None:
        """End the actor, whatever it does."""
        with suppress(Exception):  # it has ended, or the cluster has
            import_ray().kill(self._actor)

    def bury(self) -> None:
        """Let go of what it has sent, and of the actor."""
        self._tenure.bury(self._clear)
        self._patience.join()

    def _clear(self) -> None:
        self._calls.clear()
        self._ends = ()
        self._actor = None

    def abandon(self) -> None:
        """In a forked process: leave the actor to its owner."""
        self._tenure.is_over = True
        self._bell.close()
