"""Calls of the user's functions on threads, whose results are taken in the order of the calls.

Laws:

* The threads are daemons, unlike those of ``concurrent.futures``, which the interpreter joins before it runs
  any finalizer: a function that never returns would prevent it from exiting.
* A thread that waits for a result is woken when the engine is stopped.
* Closing waits for calls under way, under a deadline, and reports those that have not returned by then.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Generic, TypeVar

from ..errors import format_stack
from .engine import Engine

R = TypeVar("R")

# Far above the time to decode a sample, and short enough to wait for when a loop or a program is left.
_CLOSE_DEADLINE_S = 2.0


class Threads(Generic[R]):
    """Calls on several threads; one other thread submits them and takes the results.

    Args:
        count: How many calls at a time.
        name: Of the threads, before their number.
        what: The operator that calls, for messages.
        engine: Of the pass.
    """

    def __init__(self, count: int, name: str, what: str, engine: Engine) -> None:
        self._count = count
        self._name = name
        self._what = what
        self._engine = engine
        self._asked: SimpleQueue[_ThreadCall[R] | None] = SimpleQueue()
        #: Calls whose results were not taken, oldest first.
        self._calls: deque[_ThreadCall[R]] = deque()
        self._threads: list[threading.Thread] = []
        self._idle = threading.Semaphore(0)
        # Re-entrant: a garbage collection while it is held may run the finalizer that stops the engine.
        self._changed = threading.Condition(threading.RLock())
        self._forget = engine.on_stop(self._wake)

    def submit(self, call: Callable[[], R]) -> None:
        """Make ``call`` as soon as a thread is idle."""
        self._calls.append(asked := _ThreadCall(call))
        self._asked.put(asked)
        if len(self._threads) < self._count and not self._idle.acquire(blocking=False):
            # They do not refer to this object, which may be collected before they end.
            arguments = (self._asked, self._idle, self._changed)
            thread = _Thread(
                target=_work, args=arguments, name=f"{self._name}_{len(self._threads)}", daemon=True
            )
            thread.serves = threading.current_thread()
            self._threads.append(thread)
            thread.start()

    @property
    def is_first_done(self) -> bool:
        """Whether ``take`` would return at once."""
        return self._calls[0].is_done

    def take(self) -> R:
        """The result of the oldest call; waits for it.

        Raises:
            EngineStopped: The engine was stopped, maybe meanwhile.
            BaseException: What the call raised.
        """
        self._engine.check()
        first = self._calls[0]
        with self._changed:
            while not first.is_done:
                self._changed.wait()
                self._engine.check()
        return self._calls.popleft().result()

    def close(self) -> None:
        """End the threads. Calls that were not begun are dropped, and so are the results of the others."""
        self._forget()
        self._calls.clear()
        with suppress(Empty):
            while True:
                self._asked.get_nowait()
        for _ in self._threads:
            self._asked.put(None)
        deadline = monotonic() + _CLOSE_DEADLINE_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - monotonic()))
        if stuck := [thread for thread in self._threads if thread.is_alive()]:
            self._report(stuck)

    def _report(self, stuck: list[threading.Thread]) -> None:
        frame = sys._current_frames().get(stuck[0].ident or 0)
        if frame is None:
            return  # it has returned now
        calls = f"{len(stuck)} call{'s' * (len(stuck) > 1)} of {self._what}"
        warnings.warn(
            f"{calls} had not returned {_CLOSE_DEADLINE_S:g} s after the loader was closed; their threads "
            f"end when they return. {stuck[0].name} is at\n"
            f"{format_stack(frame)}",
            RuntimeWarning,
            stacklevel=2,
        )

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()


class _Thread(threading.Thread):
    #: The thread that takes the results; named when what it waits for is described.
    serves: threading.Thread


class _ThreadCall(Generic[R]):
    """One call and its result."""

    __slots__ = ("_call", "_error", "_result", "is_done")

    def __init__(self, call: Callable[[], R]) -> None:
        self._call: Callable[[], R] | None = call
        self._result: list[R] = []
        self._error: BaseException | None = None
        self.is_done = False

    def make(self) -> None:
        assert self._call is not None
        call, self._call = self._call, None  # its arguments are freed with it
        try:
            self._result.append(call())
        except BaseException as error:  # any error is passed to the consumer
            self._error = error

    def result(self) -> R:
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback refers to this frame
        return self._result.pop()


def _work(
    asked: SimpleQueue[_ThreadCall[R] | None], idle: threading.Semaphore, changed: threading.Condition
) -> None:
    while (call := asked.get()) is not None:
        call.make()
        with changed:
            call.is_done = True
            changed.notify_all()
        del call  # so that its result is not kept while this waits for the next one
        idle.release()
