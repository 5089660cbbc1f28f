"""The consumer's ends of the roads, as torch's loop takes them for queues."""

from __future__ import annotations

import os
import queue
import select
import socket
import threading
from collections import deque
from multiprocessing.process import BaseProcess
from time import monotonic, perf_counter
from typing import Any

from .._flow.channel import EndOfChannel
from ..torch_private import ExceptionWrapper
from ..workers.link import Announced, Link
from .at_worker import AtWorker
from .parcels import pack_task
from .timing import LoopStats

__all__ = ["Results", "Tasks"]

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

    def __init__(self, link: Link, far: AtWorker, by_value: bool) -> None:
        self.link = link
        self.far: AtWorker | None = far
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
        with self._lock:
            if self._is_closed:
                return _WOKEN
            self._is_receiving = True
        self.is_waiting = False
        try:
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
