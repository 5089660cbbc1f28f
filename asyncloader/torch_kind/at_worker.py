"""A worker's end of the road: where torch's loop in a worker gets its tasks, and puts its results."""

from __future__ import annotations

import queue
import socket
from collections.abc import Callable
from typing import Any

from .._flow.channel import EndOfChannel
from ..collate.default import use_own_rules
from ..tensors import lend
from ..torch_private import ExceptionWrapper
from ..workers.link import Link
from ..workers.packing import Packed
from ..workers.pages import OpenSlot
from .parcels import pack_result
from .timing import WorkerTimer
from .worker_info import worker_number

__all__ = ["AtWorker", "run_worker"]


class AtWorker:
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
        return AtWorker, (self.connection, self._spare, None, self._begin_watch)

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


def run_worker(end: AtWorker, work: Callable[..., object], *arguments: Any) -> None:
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
