"""One worker as its consumer sees it: its batches are received one by one, until it ends.

Laws:

* The parent starts no thread and no task for its workers. A worker's socket is the bounded channel: it
  holds at most as many batches as there are credits. The receiver waits on the socket itself, a thread by
  ``poll`` and a coroutine through its own loop. Unpickling happens where the batch is received.
* A batch that was sent whole is delivered, even if its worker has died since. After the last batch, each call
  raises the job's end, its error, or WorkerDiedError; nothing else is ever an end.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

from ..errors import WorkerDiedError, describe_exit, raise_told
from ..flow.channel import ChannelClosed, EndOfChannel
from ..observe.stopwatch import IDLE, SENDING, Stopwatch
from .lifeline import Lifeline, observe
from .link import Announced, BatchSource, Link, LinkKind
from .raised import load_error


class Work(NamedTuple):
    """A job at work, in its worker's process.

    Attributes:
        batches: Pairs of a batch and its note.
        stopwatch: Of the thread that makes them; also counts what else the thread does.
        let_go: Ends a wait for the next one, from another thread. Given where contexts have to be left in
            time; without, the worker does not wait for its job's end when the parent lets go.
    """

    batches: Generator[tuple[Any, Any], None, None]
    stopwatch: Stopwatch
    let_go: Callable[[], object] | None = None

    def run(
        self,
        take_credit: Callable[[], bool],
        send: Callable[[tuple[Any, Any]], object],
        is_let_go: Callable[[], bool],
    ) -> None:
        """Make a batch for each credit, and close the job.

        Args:
            take_credit: Waits for one; false if no batch is needed any more.
            send: Sends a batch and its note.
            is_let_go: Whether no batch is needed any more: then the next one may raise anything.
        """
        with closing(self.batches):
            # The credit comes first: at most as many are made ahead of the consumer.
            while take_credit():
                try:
                    made = list(islice(self.batches, 1))
                except BaseException:
                    if is_let_go():
                        return
                    raise
                if not made:
                    return
                kind = type(made[0][0])
                self.stopwatch.enter(SENDING)
                try:
                    send(made.pop())  # without a reference here, so that packing can free it
                except OSError:
                    raise  # of the link
                except Exception as error:
                    name = f"{kind.__module__}.{kind.__qualname__}"
                    error.add_note(f"while pickling a batch of type {name} to send it")
                    raise
                self.stopwatch.enter(IDLE)


Job: TypeAlias = Callable[[int, Any], Work]
"""What a worker does. It is called with the worker's number and what that is given."""


class Reception:
    """One wait, for one worker or several.

    Attributes:
        is_on: Unset before ``AnyWorker.end_receiving``, by an assignment: a signal's handler can interrupt
            any call, but not that.
    """

    __slots__ = ("is_on",)

    def __init__(self) -> None:
        self.is_on = True


class AnyWorker(ABC):
    """One job that runs elsewhere: in a process of this machine, or in a Ray actor.

    It makes only as many batches ahead as were requested, so that what it may hold is bounded in number and
    bytes. A consumer waits for it on descriptors, which stay open as long as it does.

    Args:
        number: Its place in the pool, from 0.

    Attributes:
        number: Likewise.
        has_died: Whether the worker itself has died, rather than that its job raised an error.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.has_died = False
        #: Makes what is raised after the last batch, anew each time; None while batches may come.
        self._verdict: Callable[[], BaseException] | None = None
        #: Whether nothing more is wanted of it.
        self._is_over = False
        self._receiving_lock = threading.Lock()
        self._reception: Reception | None = None
        self._is_buried = False

    @property
    @abstractmethod
    def name(self) -> str:
        """What messages call it, such as ``"worker 1 (pid 4711)"``."""

    def receive_nowait(self) -> tuple[Any, Any] | None:
        """The next batch, without waiting for it.

        Returns:
            ``(batch, note)`` as the job yielded them; None if there is none yet.

        Raises:
            EndOfChannel: The job has ended, and every batch was received.
            Exception: What the job raised, with its own type where that can be rebuilt here and as a
                RuntimeError otherwise, with its causes, and with its frames as a note.
            WorkerDiedError: The worker ended without finishing the job.
            ChannelClosed: It was closed.
        """
        reception = Reception()
        try:
            self.begin_receiving(reception)
            return self._receive()
        finally:
            reception.is_on = False
            self.end_receiving()

    def begin_receiving(self, reception: Reception) -> None:
        """Keep the sources open while the reception is on: the caller waits on them.

        Raises:
            ChannelClosed: The worker was closed.
            RuntimeError: Another caller receives.
        """
        with self._receiving_lock:
            if self._is_over:
                raise ChannelClosed
            if self._is_received:
                raise RuntimeError(f"worker {self.number} has a receiver already; it serves one at a time")
            self._reception = reception

    def end_receiving(self) -> None:
        """The reception is off: the sources may be closed."""
        if self._is_buried:  # else ``bury`` is still to come, and closes them
            with self._receiving_lock:
                self._settle()

    @abstractmethod
    def sources(self) -> Sequence[BatchSource]:
        """What is readable when there is something to receive."""

    @abstractmethod
    def observe(self) -> str:
        """What it is doing: half a sentence, and its Python stack if available. Takes seconds at most."""

    def let_go(self) -> None:
        """Ask the job to end, and wake the receiver. Idempotent."""
        with self._receiving_lock:
            if not self._is_over:
                self._is_over = True
                self._wake()

    def bury(self) -> None:
        """Release everything as soon as no receiver waits for it."""
        with self._receiving_lock:
            self._is_buried = True
            self._settle()

    @property
    def _is_received(self) -> bool:
        return self._reception is not None and self._reception.is_on

    def abandon(self) -> None:
        """In a forked process: leave the worker to its owner."""
        self._is_over = True
        self._close_copies()

    def _settle(self) -> None:
        if not self._is_received:
            self._close_sources()

    @abstractmethod
    def _receive(self) -> tuple[Any, Any] | None:
        """See ``receive_nowait``; called while a reception is on."""

    @abstractmethod
    def _wake(self) -> None:
        """Tell the receiver, and the job if it listens, that it is over."""

    @abstractmethod
    def _close_sources(self) -> None:
        """Close what a receiver waits on, and let go of what was received. Idempotent."""

    @abstractmethod
    def _close_copies(self) -> None:
        """In a forked process: close its copies of what is open."""


class Worker(AnyWorker):
    """One process of a ``WorkerPool``, running one job.

    Tensors and arrays of 16 KiB and more that it sends lie in shared memory, which is reused once all of a
    batch's are gone.

    Attributes:
        lifeline: What the fork server reports of it.
    """

    def __init__(self, number: int, link: Link, lifeline: Lifeline) -> None:
        super().__init__(number)
        self.lifeline = lifeline
        self._link = link
        self._silent = False

    @property
    def pid(self) -> int | None:
        """Its process id; None before it was started."""
        return self.lifeline.pid

    @property
    def name(self) -> str:
        return f"worker {self.number} (pid {self.pid})"

    def observe(self) -> str:
        return observe(self.lifeline)

    def sources(self) -> list[Link | Lifeline]:
        # The end of a stream stays readable for ever: waiting on it again would spin.
        return [self.lifeline] if self._silent else [self._link, self.lifeline]

    # --- the messages ---

    def _receive(self) -> tuple[Any, Any] | None:
        is_all_there = False
        while self._verdict is None:
            if self._is_over:
                raise ChannelClosed
            try:
                announced = self._link.read()
            except BlockingIOError:
                pass
            except EndOfChannel:
                self._silent = True
            else:
                if announced.kind == LinkKind.OBJECT:
                    return self._take(announced)
                self._verdict = self._last_words(announced)
                continue
            if is_all_there:
                self.has_died, self._verdict = True, self._death
            elif self.lifeline.advance():
                is_all_there = True  # all that it has sent: an empty socket is the end afterwards
            else:
                return None
        raise_told(self._verdict())

    def _last_words(self, announced: Announced) -> Callable[[], BaseException]:
        if announced.kind == LinkKind.END:
            return EndOfChannel
        return partial(load_error, self._link.rebuild(announced))

    def _take(self, announced: Announced) -> tuple[Any, Any]:
        self._link.grant(1)  # first: the worker makes the next batch while this one is unpickled
        try:
            batch, note = self._link.rebuild(announced)
        except Exception as error:
            error.add_note(f"while rebuilding a batch from {self.name}")
            raise
        return batch, note

    def _death(self) -> WorkerDiedError:
        exitcode, failure = self.lifeline.exitcode, self.lifeline.failure
        how = describe_exit(exitcode) if failure is None else f"could not be started: {failure}"
        return WorkerDiedError(
            f"a worker process {how}, before its job had ended",
            worker=self.number,
            pid=self.pid,
            exitcode=exitcode,
        )

    # --- the end ---

    def _wake(self) -> None:
        self._link.let_go()

    def _close_sources(self) -> None:
        self.lifeline.kill()
        self._link.close()
        self.lifeline.close()

    def _close_copies(self) -> None:
        self._link.abandon()
        self.lifeline.abandon()
