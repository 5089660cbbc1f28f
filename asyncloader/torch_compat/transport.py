"""The transport of torch's loop over workers: what stands for its queues, its event and its context.

Laws:

* Each worker has a socket of its own, with slots: there is no thread, no lock that a killed process could
  hold, and no name in the file system. The consumer waits on all the sockets.
* A worker that ends without being asked to is seen at once, after all that it has sent.
* A worker sees at once that its consumer has closed its end, or died.
* Nothing gets lost: what does not pickle raises an error in the consumer. torch's queue would drop it in a
  thread of the worker, and the consumer would wait for ever.
"""

from __future__ import annotations

import pickle
import queue
import select
import socket
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from time import monotonic, perf_counter
from typing import Any

import torch.multiprocessing
from torch.utils.data import get_worker_info as torch_worker_info

from ..blocks.memory import lend
from ..collate.default import use_own_rules
from ..flow.channel import EndOfChannel
from ..observe.stopwatch import SENDING
from ..torch_private import ExceptionWrapper
from ..workers.by_value import any_class_came
from ..workers.link import Announced, Bell, Link, socketpair
from ..workers.packing import Keep, Packed, take_apart
from ..workers.slots import OpenSlot
from .timing import LoopStats, Worked, WorkerTimer
from .travel import ByValue, HomewardPickler, OutwardPickler, closing_descriptors, plain_pickler
from .worker_info import worker_number


def _pack(make_pickler: Callable[[Any, Keep], Any], held: Any, made_in: OpenSlot | None = None) -> Packed:
    with closing_descriptors():
        return Packed(*take_apart(held, make_pickler), made_in)


def _pack_result(result: tuple[Any, Any, Worked], made_in: OpenSlot | None) -> Packed:
    """The result of a task, for the consumer; or the error that it does not pickle.

    Args:
        result: The task's number, the batch or an error, and what is reported beside it.
        made_in: The slot that the batch may lie in.
    """
    try:
        # Only where a class came by value does the slower pickler pay.
        return _pack(HomewardPickler if any_class_came() else plain_pickler, result, made_in)
    except Exception as error:
        number, batch, worked = result
        return _pack(plain_pickler, (number, _in_place_of(batch, error), worked), made_in)


def _in_place_of(result: Any, error: Exception) -> ExceptionWrapper:
    """The error that is sent instead of a result that does not pickle."""
    if isinstance(result, ExceptionWrapper):
        # Only its type cannot be sent: the text names it, and has its traceback.
        result.exc_type = RuntimeError
        return result
    kind = type(result)
    error.add_note(
        f"while pickling a batch of type {kind.__module__}.{kind.__qualname__} to send it to the loop. "
        "Classes and functions in it must be found at the top level of a module"
    )
    assert torch_worker_info() is not None, "called outside a worker"
    where = f"in DataLoader worker process {worker_number()}"
    raised = type(error), error, error.__traceback__
    wrapped = ExceptionWrapper(raised, where)  # type: ignore[no-untyped-call]
    wrapped.exc_type = pickle.PicklingError
    return wrapped


class WorkerEndpoint:
    """Stands in a worker for both of torch's queues, and for the event that says that the loop is over.

    Args:
        connection: The socket to the consumer.
        spare: How many free slots to keep.
        abandon: Called in a forked worker, with ``connection``, to close all other inherited sockets. None in
            others.
        begin_timer: Called in the worker, to measure it.
    """

    def __init__(
        self,
        connection: socket.socket,
        spare: int,
        abandon: Callable[[socket.socket], None] | None,
        begin_timer: Callable[[], WorkerTimer],
    ) -> None:
        self.connection = connection
        self._spare = spare
        self._abandon = abandon
        self._begin_timer = begin_timer
        self._made_in: OpenSlot | None = None
        self._result: tuple[Packed, int] | None = None

    def __reduce__(self) -> Any:
        # By multiprocessing's pickler while a worker is started, which knows of sockets.
        return WorkerEndpoint, (self.connection, self._spare, None, self._begin_timer)

    def run(self, work: Callable[..., object], *arguments: Any) -> None:
        """A worker process: run torch's loop in a worker, with its arguments."""
        if self._abandon is not None:
            self._abandon(self.connection)
            self._abandon = None
        self._link = Link(self.connection, self._spare)
        self._timer = self._begin_timer()
        use_own_rules()
        try:
            work(*arguments)
        finally:
            self._send_result()
            self._link.drain()

    # --- as a queue of tasks ---

    def get(self, timeout: float | None = None) -> Any:
        """The next task.

        Raises:
            queue.Empty: None came in time.
            SystemExit: The consumer is gone, and this worker ends.
        """
        self._send_result()
        while True:
            try:
                announced = self._link.read()
            except BlockingIOError:
                self._timer.rest()
                if not self._link.wait(timeout):
                    raise queue.Empty from None
            except EndOfChannel:
                raise SystemExit from None
            else:
                task = self._link.rebuild(announced)
                self._made_in = self._link.open_slot()
                lend(self._made_in)
                self._timer.fetch()
                return task

    # --- as a queue of results ---

    def put(self, result: tuple[Any, Any]) -> None:
        """Send the result of a task, or the error that it does not pickle.

        It is sent by the next ``get``: until then torch's loop refers to it, and a batch that is referred to
        cannot be sent in the slot that it was made in.
        """
        lend(None)
        made_in, self._made_in = self._made_in, None
        self._timer.stopwatch.enter(SENDING)
        number, batch = result
        self._result = _pack_result((number, batch, self._timer.worked()), made_in), number
        if not isinstance(number, int):  # the answer to a request to begin anew, which comes now
            self._timer.stopwatch.forget()
            self._timer.fetch()

    def _send_result(self) -> None:
        if self._result is None:
            return
        (packed, number), self._result = self._result, None
        try:
            self._link.send(packed)
        except OSError:  # there is no memory for a slot, or no descriptor
            failed = ExceptionWrapper(where=f"in DataLoader worker process {worker_number()}")  # type: ignore[no-untyped-call]
            self._link.send(_pack_result((number, failed, self._timer.worked()), None))

    def cancel_join_thread(self) -> None:
        """Nothing: there is no thread."""

    def close(self) -> None:
        """Nothing: the process ends."""

    # --- as an event ---

    def is_set(self) -> bool:
        """Whether the consumer has closed its end."""
        return self._link.is_let_go


# A process's end is seen a moment before the kernel, or the fork server, says how it ended.
_REAPED_S = 1.0

_WOKEN = (None, None)


class Tasks:
    """The consumer's end of one worker, which torch's loop takes for its queue of tasks.

    Attributes:
        number: The worker's.
        link: To the worker.
        far: The worker's end, until the worker has it.
        are_over: Whether the worker was asked to end.
    """

    def __init__(self, number: int, link: Link, far: WorkerEndpoint, by_value: bool) -> None:
        self.number = number
        self.link = link
        self.far: WorkerEndpoint | None = far
        self.are_over = False
        #: A forked worker finds by name whatever the consumer does.
        self._make_pickler = OutwardPickler if by_value else plain_pickler

    def put(self, task: Any) -> None:
        """Send a task; None asks the worker to end."""
        try:
            packed = _pack(self._make_pickler, task)
        except Exception as error:
            error.add_note("while pickling what the sampler gave, to send it to a worker")
            raise
        self.are_over = self.are_over or task is None
        self.link.send(packed)

    def cancel_join_thread(self) -> None:
        """Nothing: there is no thread."""

    def let_far_go(self) -> None:
        """Close this process's copy of the worker's end."""
        if self.far is not None:
            self.far.connection.close()
            self.far = None


class LinkContext(BaseContext):
    """The multiprocessing context of one iterator, and its queue of results; all else is the loader's own.

    torch asks for the queue of results first, and then for each worker's queue of tasks and its process.

    Args:
        context: The loader's ``multiprocessing_context``.
        prefetch_factor: How many tasks torch gives each worker ahead.
        tally: Gets what workers report beside their results.
        dataset: What torch reads, which a worker that is not forked gets by value.
        given: The loader's dataset, for messages.

    Attributes:
        is_waiting: Whether a thread waits for a result, or was interrupted while it did.
        sends_by_value: Whether workers are not forked, so that some of what they need has no name there.
    """

    def __init__(
        self,
        context: BaseContext | None,
        prefetch_factor: int,
        tally: LoopStats,
        dataset: Any,
        given: Any,
    ) -> None:
        self._tally = tally
        # By being imported, torch.multiprocessing has taught multiprocessing's pickler what tensors are.
        self._context = context if context is not None else torch.multiprocessing.get_context()
        # One for each batch ahead, one that the consumer holds, one that is being made.
        self._spare = prefetch_factor + 2
        self._dataset, self._given = dataset, given
        self.sends_by_value = self.get_start_method() != "fork"
        self.is_waiting = False
        #: By their number. None are asked for before the queue of results.
        self._tasks: list[Tasks] = []
        self._has_results = False
        #: By their descriptors, those that may have something to be read, and the workers that may end.
        self._open: dict[int, Tasks] = {}
        self._processes: dict[int, tuple[Tasks, BaseProcess]] = {}
        #: Descriptors that were found ready and not yet looked at.
        self._ready = deque[int]()
        self._lock = threading.Lock()
        self._is_wanted_awake = self._is_receiving = self._is_closed = False
        self._woken = Bell()
        # Also where torch refuses to make an iterator, which then never closes this.
        self._close_woken = weakref.finalize(self, self._woken.close)
        self._close_woken.atexit = False
        self._poll = select.poll()
        self._poll.register(self._woken, select.POLLIN)

    # --- as a context ---

    def get_context(self, method: str | None = None) -> Any:
        return self._context

    def get_start_method(self, allow_none: bool = False) -> str:
        return self._context.get_start_method()

    def Queue(self, maxsize: int = 0) -> Any:
        if not self._has_results:
            self._has_results = True
            return self
        ours, theirs = socketpair()
        far = WorkerEndpoint(theirs, self._spare, self._abandon, self._tally.watch_from(perf_counter()))
        tasks = Tasks(len(self._tasks), Link(ours, self._spare), far, self.sends_by_value)
        self._tasks.append(tasks)
        self._open[tasks.link.fileno()] = tasks
        return tasks

    def Event(self) -> Any:
        """What torch's own loop sets at the end. It stays unset: the sockets end the workers."""
        return threading.Event()

    def Process(self, *, target: Callable[..., object], args: Sequence[Any]) -> Any:
        """A worker, in which its endpoint stands for the queues and the event."""
        (far,) = (each.far for each in args if isinstance(each, Tasks))
        assert far is not None, "a worker is started once"
        stand_ins = (LinkContext, Tasks, threading.Event)
        there: list[Any] = [far if isinstance(each, stand_ins) else each for each in args]
        if self.sends_by_value:
            # Only now: torch's loop must see in this process whether the dataset is a pipe.
            sent = ByValue(self._dataset, "dataset", self._given)
            there = [sent if each is self._dataset else each for each in there]
        process: Any = self._context
        return process.Process(target=far.run, args=(target, *there))

    # --- as a queue of results, each worker's in its order ---

    def get(self, timeout: float | None = None) -> Any:
        """The next result.

        Args:
            timeout: Seconds.

        Returns:
            What a worker has put. Or ``(None, None)``: once for each worker that has ended without being
            asked to, and if this was woken or closed.

        Raises:
            queue.Empty: There was none in time.
        """
        receives = False
        try:
            with self._lock:
                if self._is_closed:
                    return _WOKEN
                # Within this try: a signal's handler may raise after each call, also after the one that
                # releases the lock, and as long as a thread counts as receiving nothing is closed.
                receives = self._is_receiving = True
            self.is_waiting = False
            deadline = None if timeout is None else monotonic() + timeout
            while True:
                while self._ready:
                    result = self._take(self._ready.popleft())
                    if result is not None:
                        return result
                if self._is_closed:
                    return _WOKEN
                if not self._look(deadline):
                    raise queue.Empty
        finally:
            if receives:
                with self._lock:
                    self._is_receiving = False
                    if self._is_closed:  # until now this thread waited on them
                        self._close_all()

    def _look(self, deadline: float | None) -> bool:
        """Wait until something is ready."""
        for descriptor, tasks in self._open.items():
            self._poll.register(descriptor, select.POLLIN | (select.POLLOUT if tasks.link.is_behind else 0))
        self.is_waiting = True
        found = self._poll.poll(None if deadline is None else max(0.0, deadline - monotonic()) * 1000)
        self.is_waiting = False
        self._ready.extend(descriptor for descriptor, _ in found)
        return bool(found)

    def _take(self, descriptor: int) -> Any:
        """What is ready there; None if it is no result."""
        if descriptor == self._woken.fileno():
            self._woken.silence()
            woken, self._is_wanted_awake = self._is_wanted_awake, False
            return _WOKEN if woken else None
        if descriptor in self._processes:
            return self._take_last(descriptor)
        tasks = self._open[descriptor]
        if tasks.link.is_behind:
            tasks.link.catch_up()
        try:
            announced = tasks.link.read()
        except BlockingIOError:
            return None
        except EndOfChannel:  # the process's end says what it means
            self._poll.unregister(descriptor)
            del self._open[descriptor]
            return None
        if tasks.link.holds_message:
            self._ready.append(descriptor)
        return self._open_result(tasks, announced)

    def _take_last(self, sentinel: int) -> Any:
        """What a worker has left that has ended."""
        tasks, process = self._processes[sentinel]
        try:
            announced = tasks.link.read()
        except (BlockingIOError, EndOfChannel):
            self._poll.unregister(sentinel)
            del self._processes[sentinel]
            if tasks.are_over:
                return None
            process.join(_REAPED_S)
            return _WOKEN
        return self._open_result(tasks, announced)

    def _open_result(self, tasks: Tasks, announced: Announced) -> tuple[Any, Any]:
        began_s = perf_counter()
        number, batch, worked = tasks.link.rebuild(announced)
        if isinstance(batch, ExceptionWrapper):  # a batch may have become one on the way
            worked = worked._replace(is_batch=False)
        self._tally.hear(tasks.number, number, worked, perf_counter() - began_s)
        return number, batch

    # --- called by the iterator ---

    def began(self, processes: Sequence[BaseProcess]) -> None:
        """All workers were started: watch for their ends."""
        with self._lock:
            for tasks, process in zip(self._tasks, processes, strict=True):
                tasks.let_far_go()
                self._processes[process.sentinel] = tasks, process
                self._poll.register(process.sentinel, select.POLLIN)
            self._woken.ring()  # the thread that pins batches has begun to wait

    def wake(self) -> None:
        """Have a ``get`` that waits return ``(None, None)``; from any thread."""
        with self._lock:
            if not self._is_closed:
                self._is_wanted_awake = True
                self._woken.ring()

    def let_go(self) -> None:
        """Have the workers end."""
        for tasks in self._tasks:
            tasks.link.let_go()

    def close(self) -> None:
        """Release everything but what lies under batches, and end a ``get`` that waits. Idempotent.

        The workers have ended.
        """
        for tasks in self._tasks:
            tasks.let_far_go()
        with self._lock:
            was_closed, self._is_closed = self._is_closed, True
            if self._is_receiving:
                self._woken.ring()
            elif not was_closed:
                self._close_all()

    def _close_all(self) -> None:
        for tasks in self._tasks:
            tasks.link.close()
        self._close_woken()

    def _abandon(self, own: socket.socket) -> None:
        """In a forked worker: close the copies of what belongs to the consumer, and to workers before it."""
        for tasks in self._tasks:
            if tasks.far is not None and tasks.far.connection is own:
                tasks.far = None
        self.close()
