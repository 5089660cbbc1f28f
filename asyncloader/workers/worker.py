"""One worker process as the parent sees it: its batches are received one by one, until it ends.

Laws:

* The parent starts no thread and no task for its workers. A worker's socket is the bounded channel: it
  holds no more batches than there are credits, and whoever receives waits on the socket itself, a thread
  by ``poll`` and a coroutine through its own loop. Unpickling happens where the batch is received.
* A batch that was sent whole is delivered, whatever became of its worker. After the last one comes the
  job's end, its error, or WorkerDiedError, each time anew that one asks; nothing else is ever an end.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from ..errors import WorkerDiedError, describe_exit, raise_told
from ..flow.channel import ChannelClosed, EndOfChannel
from .lifeline import Lifeline, observe, observe_async
from .link import (
    DONT_WAIT,
    FROM_WORKER,
    MOST_FREED,
    FromWorker,
    Grant,
    ReceiveLock,
    Reception,
    receive_message,
    send_grant,
)
from .packing import unpack
from .raised import load_error
from .slots import InboundSlots

# A job that waits for a credit ends at once, one amid a batch when that is done. Waiting longer would be
# felt at each ``break``, and nothing in a worker needs its clean-up to be whole.
GRACE_S = 0.3


_Announced: TypeAlias = tuple[int, int, bytes]
"""A batch that has come: its slot, or 0, and the message about it: where in the slot it lies, or itself."""


class Worker:
    """One process running one job, an ``AnyWorker`` of a ``WorkerPool``.

    Attributes:
        number: Its place in the pool, from 0.
        pid: Its process id; None before it was started.
        grace_s: How long it may take to end when it is closed.
    """

    def __init__(
        self,
        number: int,
        connection: socket.socket,
        lifeline: Lifeline,
        slots: InboundSlots,
        grace_s: float = GRACE_S,
    ) -> None:
        self.number = number
        self.grace_s = grace_s
        self._owner = os.getpid()
        self._connection = connection
        self._lifeline = lifeline
        self._slots = slots
        self._tenure = ReceiveLock(number, self._close_sockets)
        self._owed = Grant(0, (), ())
        self._silent = False
        self._verdict: Callable[[], Exception] | None = None

    @property
    def pid(self) -> int | None:
        return self._lifeline.pid

    def receive_nowait(self, ready: Collection[int]) -> tuple[Any, Any] | None:
        """See ``AnyWorker``.

        Returns:
            ``(batch, note)`` as the job yielded them. Tensors and arrays of 16 KiB and more lie in
            shared memory, which is reused once all of this batch's are gone.
        """
        reception = Reception()
        try:
            self.begin_receiving(reception)
            batch = self._next_batch(ready)
            return None if batch is None else self._take(*batch)
        finally:
            reception.is_on = False
            self.end_receiving()

    @property
    def name(self) -> str:
        return f"worker {self.number} (pid {self.pid})"

    def observe(self) -> str:
        return observe(self._lifeline)

    async def observe_async(self) -> str:
        return await observe_async(self._lifeline)

    @property
    def has_died(self) -> bool:
        """Whether what comes after the last batch is the worker's own death, and not what its job raised."""
        return self._verdict == self._death

    # --- waiting ---

    def begin_receiving(self, reception: Reception) -> None:
        self._tenure.begin_receiving(reception)

    def end_receiving(self) -> None:
        self._tenure.end_receiving()

    def sources(self) -> list[socket.socket | Lifeline]:
        # The end of a stream stays readable for ever: waiting on it again would spin.
        return [self._lifeline] if self._silent else [self._connection, self._lifeline]

    # --- the messages ---

    def _next_batch(self, ready: Collection[int]) -> _Announced | None:
        """The next batch, or None if one has to wait; raises what comes after the last one.

        Args:
            ready: The descriptors that were found readable just now, if somebody has looked.
        """
        is_all_there = False
        while self._verdict is None:
            if self._tenure.is_over:
                raise ChannelClosed
            try:
                message, descriptors = receive_message(self._connection, DONT_WAIT)
            except BlockingIOError:
                message, descriptors = b"", ()
            except ConnectionError:
                # Told once, before what is queued: the worker ended with a grant unread.
                continue
            else:
                self._silent = not message
            if message:
                batch = self._understand(message, descriptors)
                if batch is not None:
                    return batch
            elif is_all_there:
                self._verdict = self._death
            elif self._hears_of_death(ready):
                is_all_there = True  # whatever it has sent: an empty socket is the end from now on
            else:
                return None
        raise_told(self._verdict())

    def _hears_of_death(self, ready: Collection[int]) -> bool:
        # Asked only where there is an answer: each look is a system call, and there is one for each batch.
        return (self._lifeline.ended or self._lifeline.fileno() in ready) and self._lifeline.advance()

    def _understand(self, message: bytes, descriptors: Sequence[int]) -> _Announced | None:
        kind, slot, at = FROM_WORKER.unpack_from(message)
        for descriptor in descriptors:
            self._slots.add(slot, descriptor)
        if kind == FromWorker.BATCH:
            return slot, at, message
        if kind == FromWorker.DROP:
            self._slots.drop(slot)
        elif kind == FromWorker.END:
            self._verdict = EndOfChannel
        else:
            dumped = unpack(memoryview(message)[FROM_WORKER.size :], self._slots.lend(slot), at)
            self._verdict = lambda: load_error(dumped)
        return None

    def _take(self, slot: int, at: int, message: bytes) -> tuple[Any, Any]:
        pages = self._slots.lend(slot)
        self._grant()  # first: the worker makes the next batch while this one is unpickled
        try:
            batch, note = unpack(memoryview(message)[FROM_WORKER.size :], pages, at)
        except Exception as error:
            error.add_note(f"while rebuilding a batch from {self.name}")
            raise
        return batch, note

    def _grant(self) -> None:
        credits, freed, retired = self._owed
        freed = freed or self._slots.take_freed(MOST_FREED)
        retired = retired or self._slots.take_retired(MOST_FREED)
        self._owed = Grant(credits + 1, freed, retired)
        try:
            send_grant(self._connection, self._owed)
        except BlockingIOError:
            return  # a backlog of unread grants: there are batches to come, and this goes with the next
        except OSError:
            return  # the worker has gone; what it sent and how it ended is still to be read
        self._owed = Grant(0, (), ())

    def _death(self) -> WorkerDiedError:
        exitcode, failure = self._lifeline.exitcode, self._lifeline.failure
        how = describe_exit(exitcode) if failure is None else f"could not be started: {failure}"
        return WorkerDiedError(
            f"a worker process {how}, before its job had ended",
            worker=self.number,
            pid=self.pid,
            exitcode=exitcode,
        )

    # --- the end ---

    @property
    def lifeline(self) -> Lifeline:
        return self._lifeline

    @property
    def is_inherited(self) -> bool:
        """Whether this is a copy in a process forked from the worker's owner."""
        return self._owner != os.getpid()

    def let_go(self) -> None:
        """Tell the job to end, and whoever receives that it is over."""
        self._tenure.end(self._shut_down)

    def bury(self) -> None:
        """Give everything back; if the process still lives, it is killed."""
        self._tenure.bury(self._slots.clear)

    def abandon(self) -> None:
        """In a forked process: let go of the copies, and leave the worker to its owner."""
        self._tenure.is_over = True
        self._connection.close()
        self._lifeline.close()

    def _shut_down(self) -> None:
        # Unlike close this reaches through the copies that a process forked by the user holds.
        with suppress(OSError):  # the worker has gone
            self._connection.shutdown(socket.SHUT_RDWR)

    def _close_sockets(self) -> None:
        self._lifeline.kill()
        self._connection.close()
        self._lifeline.close()
