"""One event loop on its own thread, which runs while the consumer computes.

Laws:

* Every task of the library is started through a ``Scope``; ``create_task`` appears here and nowhere else.
* The owner of an engine stops it: ``stop`` cancels all its tasks, waits for their clean-up under a
  deadline, closes the loop and joins the thread. Nothing is left behind.
* An engine belongs to the process that started it; it is never used across a fork.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from functools import partial
from types import TracebackType
from typing import Any, TypeAlias, TypeVar

from .channel import OWN_THREADS, Channel, ChannelClosed, call_in_loop
from .process import occupy_standard_descriptors, patience_s
from .threads import DaemonExecutor, settle

MakeContext: TypeAlias = Callable[[], AbstractAsyncContextManager[Any]]

# Below the engine's own deadline, so that the error names what is stuck.
_LEAVE_DEADLINE_S = 4.0


class UserContexts:
    """The user's own clients on an engine's loop: entered when they are first needed, left after all tasks.

    Laws:

    * Each is entered and left in one task, which contexts with scopes of their own need.
    * All are left when the engine stops, after the last task that may use them. One that is still being
      entered is cancelled.
    * Leaving has a deadline. An error there is kept, and ``Engine.stop`` raises it.
    """

    def __init__(self) -> None:
        self._leaving = asyncio.Event()
        self._entering: set[asyncio.Task[Any]] = set()
        self._errors: list[Exception] = []

    async def reside(self, make: MakeContext, entered: Channel[Any]) -> None:
        """Enter ``make()``, send its value, and leave it after ``leave``: the life of one client.

        Raises:
            Exception: What making or entering it raised.
        """
        task = asyncio.current_task()
        assert task is not None
        deadline = asyncio.timeout(None)
        self._entering.add(task)
        try:
            async with deadline, _made(make) as value:
                self._entering.discard(task)
                entered.send(value)
                await self._leaving.wait()
                deadline.reschedule(asyncio.get_running_loop().time() + _LEAVE_DEADLINE_S)
        except Exception as error:
            if deadline.expired():
                error.add_note(f"leaving took more than {_LEAVE_DEADLINE_S:.0f} s")
            if task in self._entering:
                error.add_note(f"while entering {_name_of(make)}, a context of .map")
                raise
            error.add_note(f"while leaving {_name_of(make)}, a context of .map")
            self._errors.append(error)
        finally:
            self._entering.discard(task)

    def leave(self) -> None:
        """Leave all of them; their tasks end then."""
        self._leaving.set()
        for task in self._entering:
            task.cancel()

    def take_error(self) -> Exception | None:
        """The first error while leaving, once; None if there was none."""
        errors, self._errors = self._errors, []
        return errors[0] if errors else None


def _made(make: MakeContext) -> AbstractAsyncContextManager[Any]:
    made: object = make()
    if isinstance(made, AbstractAsyncContextManager):
        return made
    if asyncio.iscoroutine(made):
        made.close()
    raise TypeError(
        f"context should make an asynchronous context manager, but {_name_of(make)} made a "
        f"{type(made).__name__}; write it as an asynchronous generator under @contextlib.asynccontextmanager"
    )


def _name_of(make: MakeContext) -> str:
    made_of = getattr(make, "func", make)  # functools.partial
    return getattr(made_of, "__qualname__", None) or type(made_of).__qualname__


# Clean-up closes sockets and files. Five seconds is how long torch waits for a worker, and far above the
# milliseconds that it takes; beyond that something is stuck, which is an error.
_STOP_DEADLINE_S = 5.0


Work: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


class EngineStopped(Exception):
    """The engine was stopped while this work was still to be done."""


class _Stop(Exception):
    """Raised inside a scope's body to cancel its tasks."""


class Scope:
    """Tasks that end together: leaving the ``async with`` waits for all, an error cancels the rest."""

    def __init__(self) -> None:
        self._group = asyncio.TaskGroup()

    async def __aenter__(self) -> Scope:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._group.__aexit__(kind, error, trace)
        except BaseExceptionGroup as group:
            # A channel that its receiver has closed raises in each sender.
            if len(group.exceptions) > 1 and group.split(ChannelClosed)[1] is not None:
                raise
            alone = group.exceptions[0]
            context = alone.__context__
            try:
                raise alone
            finally:
                # ``raise`` has put the group there, in place of what the error itself came from.
                # Past a __setattr__ of the user's: an error may be a frozen dataclass.
                vars(BaseException)["__context__"].__set__(alone, context)
                del alone, context

    def start(self, work: Work, outlet: Channel[Any] | None = None) -> Callable[[], object]:
        """Run ``work()`` beside the others; ``outlet`` ends as it ends. Returns a function that cancels it.

        When the task returns, the channel is finished; an exception finishes the channel with it. If it is
        cancelled first, the channel ends with ``EngineStopped``, so that a cut stream cannot be taken for one
        that ended. If the channel is closed first, the task is cancelled, since its result is not needed any
        more. Without an outlet, an exception cancels the others and leaves the scope.
        """
        running = work() if outlet is None else _run_into(work, outlet)
        try:
            task = self._group.create_task(running)
        except RuntimeError:  # the scope is being left: submitted while the engine was stopped
            running.close()
            if outlet is None:
                raise
            outlet.finish(EngineStopped())
            return bool  # nothing to cancel
        if outlet is not None:
            # A loop that is closed has ended the task.
            outlet.on_close(partial(call_in_loop, task.get_loop(), task.cancel))
            # Also for a task that was cancelled before its first step, and so never ran.
            task.add_done_callback(lambda _: outlet.finish(EngineStopped()))
        return task.cancel


class Engine:
    """An event loop thread and the tasks on it.

    Constructing starts nothing; ``start`` (or ``with``) does.

    Args:
        name: Name of the thread, seen in debuggers and stack dumps.
        with_uvloop: Use uvloop's loop where it is installed, which is faster, and not asyncio's own, which
            leaves nothing behind: a process that has used uvloop keeps a pipe of it, and cannot be forked.
    """

    def __init__(self, name: str = "asyncloader-engine", *, with_uvloop: bool = True) -> None:
        self._name, self._with_uvloop = name, with_uvloop
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._scope: Scope | None = None
        self._stopping: asyncio.Event | None = None
        self._stop_asked = False
        self._at_stop: dict[object, Callable[[], object]] = {}
        self._started = Future[None]()
        #: Clients (sessions) of this engine; closed after its last task has ended.
        self.resources = AsyncExitStack()
        self._residents = UserContexts()
        self._residence: Scope | None = None

    def start(self) -> None:
        """Start the thread, and return once its loop runs.

        Raises:
            OSError: No loop could be made, such as without free descriptors.
        """
        assert self._thread is None, "an engine starts once"
        occupy_standard_descriptors()
        # A daemon: the interpreter must be able to exit while a consumer has an unfinished iterator, whose
        # finalizer stops the engine during exit.
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()
        self._started.result()

    @property
    def native_id(self) -> int | None:
        """The system's id of its thread; None before it is started."""
        return None if self._thread is None else self._thread.native_id

    def submit(self, work: Work, outlet: Channel[Any]) -> None:
        """Start ``work()`` as a task from any thread; see ``Scope.start``.

        Raises:
            EngineStopped: The engine was stopped before.
        """
        self._start_in(self._scope, work, outlet)

    def enter(self, make: MakeContext) -> Any:
        """Enter ``make()`` on the loop and return its value; left after the last task when the engine stops.

        Blocks the calling thread, which is not the loop's.

        Raises:
            Exception: What making or entering it raised.
            EngineStopped: The engine was stopped before.
        """
        entered = Channel[Any](1)
        self._start_in(self._residence, partial(self._residents.reside, make, entered), entered)
        try:
            return entered.receive()
        except BaseException:
            entered.close()
            raise

    def check(self) -> None:
        """Raise if the engine was stopped: for work that does not use the engine otherwise.

        Raises:
            EngineStopped: The engine was stopped before.
        """
        if self._stop_asked:
            raise EngineStopped

    def on_stop(self, call: Callable[[], object]) -> Callable[[], object]:
        """Call ``call`` when the engine is stopped, in the stopping thread.

        For threads that wait for something else than its tasks, and then call ``check``. Returns a function
        that undoes this.
        """
        key = object()
        self._at_stop[key] = call
        return partial(self._at_stop.pop, key, None)

    def stop(self) -> None:
        """Cancel every task, close the loop and join the thread. Idempotent, from any thread.

        One of the library's own threads does not join it: it may hold what the tasks' clean-up needs.

        Raises:
            RuntimeError: The tasks' clean-up did not end within its deadline of five seconds.
            Exception: What leaving a context of ``enter`` raised; once.
        """
        if self._thread is None or self._loop is None:
            return
        if not self._stop_asked:
            self._stop_asked = True
            for call in list(self._at_stop.values()):
                call()
            assert self._stopping is not None
            call_in_loop(self._loop, self._stopping.set)
        # A garbage collection may run a finalizer in any thread: on the loop itself, or in one that holds a
        # lock which the loop waits for.
        here = threading.current_thread()
        if here is self._thread or here.name.startswith(OWN_THREADS):
            return
        waited_s = patience_s(_STOP_DEADLINE_S)
        self._thread.join(waited_s)
        if self._thread.is_alive():
            raise RuntimeError(f"{self._name} did not stop within {waited_s} s: a task is stuck")
        if (error := self._residents.take_error()) is not None:
            raise error

    def __enter__(self) -> Engine:
        self.start()
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        try:
            self.stop()
        except Exception as at_stop:
            if not isinstance(error, Exception):
                raise
            # The first error is the one that the user has to see.
            error.add_note(f"then, while the engine stopped: {type(at_stop).__name__}: {at_stop}")

    def _start_in(self, scope: Scope | None, work: Work, outlet: Channel[Any]) -> None:
        assert self._loop is not None and scope is not None, "engine not started"
        if self._stop_asked or not call_in_loop(self._loop, scope.start, work, outlet):
            raise EngineStopped

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=_loop_factory(self._with_uvloop)) as runner:
                runner.run(self._serve())
        except BaseException as error:
            if self._started.done():
                raise
            self._started.set_exception(error)

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(DaemonExecutor())
        self._stopping = asyncio.Event()
        self._loop = loop  # last: who sees it may stop the engine
        async with self.resources, Scope() as self._residence:
            try:
                async with Scope() as self._scope:
                    self._started.set_result(None)
                    await self._stopping.wait()
                    raise _Stop
            except* _Stop:
                pass
            finally:
                self._residents.leave()


async def _run_into(work: Work, outlet: Channel[Any]) -> None:
    try:
        await work()
    except Exception as error:
        outlet.finish(error)
    else:
        outlet.finish()


def _loop_factory(with_uvloop: bool) -> Callable[[], asyncio.AbstractEventLoop]:
    with suppress(ImportError):  # Windows has no uvloop
        if with_uvloop:
            import uvloop

            factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
            return factory
    return asyncio.new_event_loop


T = TypeVar("T")


async def opened(opening: asyncio.Future[T], close: Callable[[T], object]) -> T:
    """Wait for what a thread is opening. If cancelled meanwhile, it is closed as soon as it is open.

    Args:
        opening: From ``run_in_executor``: a thread cannot be cancelled.
        close: Called on the loop.
    """
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(
            lambda late: None if late.cancelled() or late.exception() else close(late.result())
        )
        raise


async def pause(seconds: float) -> None:
    """Wait for a computed time, such as before a retry; never in order to poll."""
    await asyncio.sleep(seconds)


async def run_in_thread(work: Callable[[], T], name: str) -> T:
    """The result of ``work``, once that has ended, and so has its thread; the event loop goes on meanwhile.

    A thread cannot be stopped: if cancelled, this waits for the end of ``work`` first, which has to be soon.
    The loop's own pool is not used, since it keeps its thread when the work is done.

    Args:
        work: What to do, in some seconds at most.
        name: Of the thread.

    Raises:
        Exception: What ``work`` raised.
    """
    done = Future[T]()
    # No daemon: the interpreter waits for work that was begun.
    thread = threading.Thread(target=settle, args=(done, work), name=name)
    thread.start()
    waiting, cancelled = asyncio.wrap_future(done), None
    while not waiting.done():
        try:
            await asyncio.wait([waiting])
        except asyncio.CancelledError as error:
            cancelled = error
    thread.join()  # it has nothing left to do
    if cancelled is not None:
        waiting.exception()  # retrieved, since only the cancellation is raised
        raise cancelled
    return waiting.result()
