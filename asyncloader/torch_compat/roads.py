"""The consumer's end of the roads to torch's workers: where its loop puts tasks, and gets results from.

Laws:

* A road is a socket to one worker, with slots: no thread, no lock that a killed process could hold, no name
  in the file system. Whoever wants a result waits on all the sockets.
* A worker that ends without having been told to is seen at once, behind all that it has sent.
* A worker sees at once that its consumer has let go, or died.
"""

from __future__ import annotations

import os
import pickle
import queue
import select
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from time import monotonic, perf_counter
from typing import Any

from torch.utils.data import IterDataPipe, MapDataPipe
from torch.utils.data import get_worker_info as torch_worker_info

from ..blocks.memory import lend
from ..collate.default import use_own_rules
from ..flow.channel import EndOfChannel
from ..torch_private import ExceptionWrapper
from ..workers.by_value import any_class_came
from ..workers.link import MOST_INLINE_BYTES, Announced, Link, socketpair
from ..workers.packing import Keep, Packed, PackedBatch, pack_by
from ..workers.slots import OpenSlot
from .timing import LoopStats, Worked, WorkerTimer
from .travel import (
    ByValue,
    HomewardPickler,
    OutwardPickler,
    actual_context,
    closing_descriptors,
    plain_pickler,
)
from .worker_info import worker_number

# Tasks and results as they go over the roads.
#
# Nothing gets lost: what does not pickle raises where the consumer sees it. torch's queue would drop it in a
# thread of the worker's, and the consumer wait for ever.


def pack_task(task: Any, by_value: bool) -> Packed:
    """A task, for a worker.

    Args:
        task: As torch's loop makes it.
        by_value: Whether the worker was not forked, and so has not what it cannot find by name.
    """
    return _pack(OutwardPickler if by_value else plain_pickler, task)


def pack_result(result: tuple[Any, Any, Worked], made_in: PackedBatch | None) -> Packed:
    """The result of a task, for the consumer; or else the error that it could not travel.

    Args:
        result: The task's number, the batch or an error, and what is told beside it.
        made_in: The slot that the batch may lie in.
    """
    try:
        # Only where a class came by value does the slower pickler pay.
        return _pack(HomewardPickler if any_class_came() else plain_pickler, result, made_in)
    except Exception as error:
        number, batch, worked = result
        return _pack(plain_pickler, (number, _untold(batch, error), worked))


def _untold(result: Any, error: Exception) -> Any:
    """What the consumer is told instead of a result that does not pickle."""
    if isinstance(result, ExceptionWrapper):
        # Only its type has no way home: the text names it, and has its traceback.
        result.exc_type = RuntimeError
        return result
    info = torch_worker_info()
    assert info is not None, "called outside a worker"
    kind = type(result)
    error.add_note(
        f"while pickling a batch of type {kind.__module__}.{kind.__qualname__} to send it to the loop. "
        "Classes and functions in it must be found at the top level of a module"
    )
    where = f"in DataLoader worker process {object.__getattribute__(info, 'id')}"
    told = ExceptionWrapper((type(error), error, error.__traceback__), where)  # type: ignore[no-untyped-call]
    told.exc_type = pickle.PicklingError
    return told


def _pack(make_pickler: Callable[[Any, Keep], Any], held: Any, made_in: PackedBatch | None = None) -> Packed:
    with closing_descriptors():
        return pack_by(make_pickler, held, made_in, MOST_INLINE_BYTES)


# A worker's end of the road: where torch's loop in a worker gets its tasks, and puts its results.


class WorkerEndpoint:
    """Stands in a worker for both of torch's queues, and for the event that says that the loop is over.

    Args:
        connection: The socket to the consumer.
        spare: How many free slots to keep.
        abandon: Called in a worker that was forked, with ``connection``, to close all that it has inherited
            beside that. None in others.
        watch: Called in the worker, to watch it.
    """

    def __init__(
        self,
        connection: socket.socket,
        spare: int,
        abandon: Callable[[socket.socket], None] | None,
        watch: Callable[[], WorkerTimer],
    ) -> None:
        self.connection = connection
        self._spare = spare
        self._abandon = abandon
        self._begin_watch = watch
        self._made_in: OpenSlot | None = None
        self._result: tuple[Packed, OpenSlot | None, int] | None = None

    def __reduce__(self) -> Any:
        # By multiprocessing's pickler while a worker is started, which knows of sockets.
        return WorkerEndpoint, (self.connection, self._spare, None, self._begin_watch)

    def enter(self) -> None:
        """Begin, in the worker."""
        if self._abandon is not None:
            self._abandon(self.connection)
            self._abandon = None
        self._link = Link(self.connection, self._spare)
        self._watch = self._begin_watch()
        use_own_rules()

    def leave(self) -> None:
        """End, with all that was given to ``put`` sent."""
        self._send_result()
        self._link.drain()

    # --- as a queue of tasks ---

    def get(self, timeout: float | None = None) -> Any:
        """The next task.

        Raises:
            queue.Empty: None came in time.
            SystemExit: Nobody is there any more to give one, and this worker ends.
        """
        self._send_result()
        while True:
            try:
                announced = self._link.read()
            except BlockingIOError:
                self._watch.rest()
                if not self._link.wait(timeout):
                    raise queue.Empty from None
            except EndOfChannel:
                raise SystemExit from None
            else:
                task = self._link.rebuild(announced)
                self._made_in = self._link.open_slot()
                lend(self._made_in)
                self._watch.fetch()
                return task

    # --- as a queue of results ---

    def put(self, result: tuple[Any, Any]) -> None:
        """Send the result of a task, or else the error that it could not travel.

        It goes with the next ``get``: until then torch's loop holds it, and a batch that somebody holds
        cannot be sent in the slot that it was made in.
        """
        lend(None)
        made_in, self._made_in = self._made_in, None
        self._watch.send()
        number, batch = result
        self._result = pack_result((number, batch, self._watch.worked()), made_in), made_in, number
        if not isinstance(number, int):  # an answer to being told to begin anew, which comes now
            self._watch.stopwatch.forget()
            self._watch.fetch()

    def _send_result(self) -> None:
        if self._result is None:
            return
        (packed, made_in, number), self._result = self._result, None
        try:
            self._link.send(packed, made_in)
        except OSError:  # there is no memory for a slot, or no descriptor
            failed = ExceptionWrapper(where=f"in DataLoader worker process {worker_number()}")  # type: ignore[no-untyped-call]
            self._link.send(pack_result((number, failed, self._watch.worked()), None))

    def cancel_join_thread(self) -> None:
        """Nothing: there is no thread."""

    def close(self) -> None:
        """Nothing: the process ends."""

    # --- as an event ---

    def is_set(self) -> bool:
        """Whether the consumer wants no more."""
        return self._link.is_let_go


def run_worker(end: WorkerEndpoint, work: Callable[..., object], *arguments: Any) -> None:
    """A worker process of torch's loop.

    Args:
        end: This worker's.
        work: torch's loop in a worker.
        arguments: Its arguments.
    """
    end.enter()
    try:
        work(*arguments)
    finally:
        end.leave()


# The consumer's ends of the roads, as torch's loop takes them for queues.

# A process's end is seen a moment before the kernel, or the fork server, says how it ended.
_REAPED_S = 1.0

_WOKEN = (None, None)


class Tasks:
    """The tasks of one worker.

    Attributes:
        link: To the worker.
        far: The worker's end, until that has it.
        are_over: Whether it was told that there are no more.
    """

    def __init__(self, link: Link, far: WorkerEndpoint, by_value: bool) -> None:
        self.link = link
        self.far: WorkerEndpoint | None = far
        self.are_over = False
        self._by_value = by_value

    def put(self, task: Any) -> None:
        """Send a task; None says that there are no more."""
        try:
            packed = pack_task(task, self._by_value)
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

    def abandon(self, own: socket.socket) -> None:
        """In a forked worker, which keeps its ``own`` socket: close the copies that it has."""
        self.link.close()
        if self.far is not None and self.far.connection is not own:
            self.far.connection.close()


class Results:
    """The results of all workers, each worker's in its order.

    Args:
        tally: Hears of what is told beside them.
    """

    def __init__(self, tally: LoopStats) -> None:
        self._tally = tally
        self._woken = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._is_wanted_awake = False
        self._poll = select.poll()
        self._poll.register(self._woken, select.POLLIN)
        #: Those of all workers, by their number.
        self._links: list[Link] = []
        #: Those that may have something to be read, and the workers that may end.
        self._open: dict[int, Link] = {}
        self._processes: dict[int, tuple[Tasks, BaseProcess]] = {}
        #: Whether somebody waits, or was interrupted while it did.
        self.is_waiting = False
        #: Descriptors that were found ready and not yet looked at.
        self._ready = deque[int]()
        #: Those of links that want to send, too.
        self._behind: set[int] = set()
        self._lock = threading.Lock()
        self._is_receiving = self._is_closed = False

    def add(self, link: Link) -> None:
        """Have results of a worker come from this link, which is this object's own from now on."""
        with self._lock:
            self._links.append(link)
            self._open[link.fileno()] = link
            self._poll.register(link, select.POLLIN)

    def watch(self, tasks: Tasks, process: BaseProcess) -> None:
        """See when this worker ends."""
        with self._lock:
            self._processes[process.sentinel] = tasks, process
            self._poll.register(process.sentinel, select.POLLIN)
            os.eventfd_write(self._woken, 1)  # whoever pins batches has begun to wait

    def wake(self) -> None:
        """Have whoever waits get ``(None, None)``; from any thread."""
        with self._lock:
            if not self._is_closed:
                self._is_wanted_awake = True
                os.eventfd_write(self._woken, 1)

    def get(self, timeout: float | None = None) -> Any:
        """The next result.

        Args:
            timeout: Seconds.

        Returns:
            What a worker has put. Instead ``(None, None)``, if a worker has ended that was not told to, once
            for each, or if this was woken or closed.

        Raises:
            queue.Empty: There was none in time.
        """
        receives = False
        try:
            with self._lock:
                if self._is_closed:
                    return _WOKEN
                # Within this try: an exception of a signal's handler may come behind each call, also the one
                # that releases the lock, and while somebody is taken to receive nothing is closed.
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
                    if self._is_closed:  # before, somebody waited on them
                        self._close_all()

    def _look(self, deadline: float | None) -> bool:
        """Wait until something is ready."""
        behind = {descriptor for descriptor, link in self._open.items() if link.is_behind}
        for descriptor in behind ^ self._behind:
            self._poll.modify(descriptor, select.POLLIN | (select.POLLOUT if descriptor in behind else 0))
        self._behind = behind
        self.is_waiting = True
        found = self._poll.poll(None if deadline is None else max(0.0, deadline - monotonic()) * 1000)
        self.is_waiting = False
        self._ready.extend(descriptor for descriptor, _ in found)
        return bool(found)

    def _take(self, descriptor: int) -> Any:
        """What is ready there; None if it is no result."""
        if descriptor == self._woken:
            os.eventfd_read(self._woken)
            woken, self._is_wanted_awake = self._is_wanted_awake, False
            return _WOKEN if woken else None
        if descriptor in self._processes:
            return self._take_last(descriptor)
        link = self._open[descriptor]
        if link.is_behind:
            link.catch_up()
        try:
            announced = link.read()
        except BlockingIOError:
            return None
        except EndOfChannel:  # what it means is told by the process's end
            self._poll.unregister(descriptor)
            self._behind.discard(descriptor)
            del self._open[descriptor]
            return None
        return self._open_result(link, announced)

    def _open_result(self, link: Link, announced: Announced) -> tuple[Any, Any]:
        began_s = perf_counter()
        number, batch, worked = link.rebuild(announced)
        if isinstance(batch, ExceptionWrapper):  # a batch may have become one on the way
            worked = worked._replace(is_batch=False)
        self._tally.hear(self._links.index(link), number, worked, perf_counter() - began_s)
        return number, batch

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
        return self._open_result(tasks.link, announced)

    def close(self) -> None:
        """Close the links, and let whoever waits go."""
        with self._lock:
            was_closed, self._is_closed = self._is_closed, True
            if self._is_receiving:
                os.eventfd_write(self._woken, 1)
            elif not was_closed:
                self._close_all()

    def _close_all(self) -> None:
        for link in self._links:
            link.close()
        os.close(self._woken)


class LinkContext(BaseContext):
    """The multiprocessing context of one iterator: its queues are roads; all else is the loader's own.

    torch asks for the queue of results first, and then for each worker's queue of tasks and its process.

    Args:
        context: The loader's ``multiprocessing_context``.
        prefetch_factor: How many tasks torch gives each worker ahead.
        tally: Hears of what workers tell beside their results.
    """

    def __init__(self, context: BaseContext | None, prefetch_factor: int, tally: LoopStats) -> None:
        self._tally = tally
        self._context = actual_context(context)
        # One for each batch ahead, one that the consumer holds, one that is being made.
        self._spare = prefetch_factor + 2
        self._results: Results | None = None
        self._tasks: list[Tasks] = []

    # --- asked by torch's loop ---

    def get_context(self, method: str | None = None) -> Any:
        return self._context

    def get_start_method(self, allow_none: bool = False) -> str:
        return self._context.get_start_method()

    def Queue(self, maxsize: int = 0) -> Any:
        if self._results is None:
            self._results = Results(self._tally)
            return self._results
        ours, theirs = socketpair()
        far = WorkerEndpoint(theirs, self._spare, self._abandon, self._tally.watch_from(perf_counter()))
        tasks = Tasks(Link(ours, self._spare), far, by_value=self.get_start_method() != "fork")
        self._tasks.append(tasks)
        self._results.add(tasks.link)
        return tasks

    def Event(self) -> Any:
        return NotOver()

    def Process(self, *, target: Callable[..., object], args: Sequence[Any]) -> Any:
        """A worker, in which its end of the road stands for the queues and the event."""
        (tasks,) = (each for each in args if isinstance(each, Tasks))
        stand_ins = (Results, Tasks, NotOver)
        there: list[Any] = [tasks.far if isinstance(each, stand_ins) else each for each in args]
        if self.get_start_method() != "fork":
            # Only now: torch's loop must see in this process that the dataset is a pipe.
            pipes = (IterDataPipe, MapDataPipe)
            there = [ByValue(each, "dataset", each) if isinstance(each, pipes) else each for each in there]
        process: Any = self._context
        return process.Process(target=run_worker, args=(tasks.far, target, *there))

    # --- told by who runs torch's loop ---

    def began(self, processes: Sequence[BaseProcess]) -> None:
        """All workers were started."""
        assert self._results is not None
        for tasks, process in zip(self._tasks, processes, strict=True):
            tasks.let_far_go()
            self._results.watch(tasks, process)

    @property
    def is_waiting(self) -> bool:
        """Whether nothing was taken in since the consumer has begun to wait."""
        return self._results is not None and self._results.is_waiting

    def wake(self) -> None:
        """Have whoever waits for a result get ``(None, None)``; from any thread."""
        if self._results is not None:
            self._results.wake()

    def let_go(self) -> None:
        """Have the workers end."""
        for tasks in self._tasks:
            tasks.link.let_go()

    def close(self) -> None:
        """Give everything back but what lies under batches. The workers have ended."""
        for tasks in self._tasks:
            tasks.let_far_go()
        if self._results is not None:
            self._results.close()

    def _abandon(self, own: socket.socket) -> None:
        """In a forked worker: close the copies of what belongs to the consumer, and to workers before it."""
        for tasks in self._tasks:
            tasks.abandon(own)
        if self._results is not None:
            self._results.close()


class NotOver:
    """Stands for the event that torch sets at the end: here sockets tell the workers."""

    def is_set(self) -> bool:
        return False
