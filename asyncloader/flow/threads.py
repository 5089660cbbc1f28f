"""Calls on threads: of the user's functions, whose results are taken in order, and of what blocks a loop.

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
from concurrent.futures import CancelledError, Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..errors import format_stack
from .process import patience_s, usable_processors

if TYPE_CHECKING:  # it uses these threads
    from .engine import Engine

P = TypeVar("P")
R = TypeVar("R")

# Far above the time to decode a sample or to read a part of a file, and short enough to wait for when a loop
# or a program is left.
_CLOSE_DEADLINE_S = 2.0

# Below the engine's own deadline, so that the warning names what is stuck.
_FILES_AT_EXIT_S = 0.5


class DaemonThreads:
    """Threads that make calls: one that is idle, or one more.

    Args:
        most: How many at a time.
        name: Of the threads, before their number.
        what: The calls, for messages.
    """

    def __init__(self, most: int, name: str, what: str) -> None:
        self._most = most
        self._name = name
        self._what = what
        self._asked: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._idle = threading.Semaphore(0)

    def submit(self, call: Callable[[], R]) -> Future[R]:
        """Make ``call`` as soon as a thread is idle. Always from the same thread.

        Cancelled, the future ends at once, whether or not the call was begun.
        """
        future = Future[R]()
        self._asked.put(partial(settle, future, call))
        if len(self._threads) < self._most and not self._idle.acquire(blocking=False):
            # They do not refer to this object, which may be collected before they end.
            thread = _Thread(
                target=_work,
                args=(self._asked, self._idle),
                name=f"{self._name}_{len(self._threads)}",
                daemon=True,
            )
            thread.serves = threading.current_thread()
            self._threads.append(thread)
            thread.start()
        return future

    def end(self) -> None:
        """Have the threads end once all calls were made."""
        for _ in self._threads:
            self._asked.put(None)

    def close(self, at_exit_s: float, *, drops: bool) -> None:
        """End the threads, and warn of calls that do not return.

        Args:
            at_exit_s: How long to wait for them when the interpreter exits.
            drops: Whether calls that were not begun are dropped, and not made before.
        """
        with suppress(Empty):
            while drops:
                self._asked.get_nowait()
        self.end()
        waited_s = patience_s(_CLOSE_DEADLINE_S, at_exit_s)
        deadline = monotonic() + waited_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - monotonic()))
        stuck = [thread for thread in self._threads if thread.is_alive()]
        frame = sys._current_frames().get(stuck[0].ident or 0) if stuck else None
        if frame is not None:  # else all have returned by now
            warnings.warn(
                f"{len(stuck)} call{'s' * (len(stuck) > 1)} {self._what} had not returned {waited_s:g} s "
                f"after the loader was closed; their threads end when they return. {stuck[0].name} is at\n"
                f"{format_stack(frame)}",
                RuntimeWarning,
                stacklevel=2,
            )


class _Thread(threading.Thread):
    #: The thread that takes the results; named when what it waits for is described.
    serves: threading.Thread


def _work(asked: SimpleQueue[Callable[[], object] | None], idle: threading.Semaphore) -> None:
    while (call := asked.get()) is not None:
        call()
        del call  # so that its result is not kept while this waits for the next one
        idle.release()


class DaemonExecutor(ThreadPoolExecutor):
    """A loop's threads for what blocks, such as reading a file, which never returns if its disk hangs.

    asyncio takes no executor of another class, so this one is derived from it, and uses nothing of it.
    """

    def __init__(self) -> None:
        super().__init__(1)
        most = min(32, usable_processors() + 4)  # as asyncio's own
        self._own = DaemonThreads(most, "asyncloader-files", "beside the event loop, such as reads of files,")

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """See ``Executor``; called on the loop alone."""
        return self._own.submit(partial(fn, *args, **kwargs))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the threads, however long their calls may take, once those that wait were made."""
        self._own.close(_FILES_AT_EXIT_S, drops=False)


def settle(future: Future[R], call: Callable[[], R]) -> None:
    """Make ``call``, unless the future was cancelled before, and end the future with its result or error."""
    if future.cancelled():
        return
    try:
        result = call()
    except BaseException as error:  # for the thread or task that waits
        with suppress(InvalidStateError):  # it was cancelled meanwhile
            future.set_exception(error)
        del future, call  # the error's traceback holds this frame
    else:
        with suppress(InvalidStateError):
            future.set_result(result)


class Threads(Generic[P, R]):
    """Calls on several threads; one other thread submits them and takes the results.

    Args:
        call: Called with what is submitted.
        count: How many calls at a time.
        what: The operator that calls, for messages.
        engine: Of the pass.
    """

    def __init__(self, call: Callable[[P], R], count: int, what: str, engine: Engine) -> None:
        self._call, self._engine = call, engine
        #: Calls whose results were not taken, oldest first.
        self._calls: deque[Future[R]] = deque()
        self._threads = DaemonThreads(count, "asyncloader-map", f"of {what}")
        self._forget = engine.on_stop(self._cancel)

    def submit(self, piece: P) -> None:
        """Call for ``piece`` as soon as a thread is idle."""
        self._calls.append(self._threads.submit(partial(self._call, piece)))

    def is_first_done(self) -> bool:
        """Whether ``take`` would return at once."""
        return self._calls[0].done()

    def take(self) -> R:
        """The result of the oldest call; waits for it.

        Raises:
            EngineStopped: The engine was stopped, maybe meanwhile.
            BaseException: What the call raised.
        """
        self._engine.check()
        try:
            return self._calls[0].result()
        except CancelledError:
            self._engine.check()
            raise
        finally:
            self._calls.popleft()

    def close(self) -> None:
        """End the threads. Calls that were not begun are dropped, and so are the results of the others."""
        self._forget()
        self._calls.clear()
        self._threads.close(at_exit_s=1.0, drops=True)

    def _cancel(self) -> None:
        for call in self._calls.copy():  # the thread that takes the results goes on
            call.cancel()
