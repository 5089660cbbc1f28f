"""A bounded hand-over from one thread or event loop to another.

Laws:

* Either end may be a thread or a coroutine; the rules are the same and are written once, under one
  lock. Only the waiting differs.
* The bound is a cost (bytes, or 1 an item) that the maker of the channel must choose. One item is
  always let in when nothing is held, however costly, so that an over-size item cannot deadlock.
* The end and errors travel on the channel itself, after the items sent before them; no item value is
  special. Both stay: each receiver that asks again gets the same again, until the channel is closed.
* An item wakes one receiver, and freed room the senders that fit into it, in line. Whoever is woken looks
  for itself; whoever gives up (timed out, cancelled) leaves the line, and passes on what it was woken for.
* ``close`` (the receiver has gone) wakes every sender with ``ChannelClosed``, drops what is held, and
  tells whoever asked with ``on_close``. No wait is unbounded: whoever owns a channel closes it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from time import monotonic
from types import TracebackType
from typing import Generic, Protocol, TypeVar

from .waiting import LoopWaiter, ThreadWaiter, W, Waiter

__all__ = ["Channel", "ChannelClosed", "EndOfChannel", "ReceiveTimeout", "Receiver"]

T = TypeVar("T")
R = TypeVar("R", covariant=True)


class Receiver(Protocol[R]):
    """The receiving end of a stream, whatever makes it: a channel, a worker, a stage behind one."""

    def receive(self, timeout_s: float | None = None) -> R:
        """The next item; raises EndOfChannel after the last one, or the stream's own error.

        Raises:
            ReceiveTimeout: Nothing came for ``timeout_s``; the stream is as it was.
        """
        ...

    async def receive_async(self) -> R:
        """Like ``receive``, from a coroutine."""
        ...

    def close(self) -> None:
        """Say that nothing more is wanted, and free what the stream holds. Idempotent."""
        ...


class EndOfChannel(Exception):
    """The sender has finished and everything it sent was received."""


class ReceiveTimeout(TimeoutError):
    """Nothing came in time. A TimeoutError of any other class is an error of the stream itself."""


class ChannelClosed(Exception):
    """The receiver has gone; nothing sent will be read."""


class Channel(Generic[T]):
    """A first-in first-out hand-over, bounded by cost.

    Args:
        capacity: The summed cost that may be held, in the unit of the senders' ``cost``. No default:
            the right bound depends on what is sent.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        # Re-entrant: a garbage collection while it is held may run the finalizer that closes this channel.
        self._lock = threading.RLock()
        self._items: deque[tuple[T, int]] = deque()
        self._held = 0
        self._finished = False
        self._error: BaseException | None = None
        self._error_frames: TracebackType | None = None
        self._closed = False
        self._receivers: deque[Waiter] = deque()
        self._senders: deque[Waiter] = deque()
        self._on_close: list[Callable[[], None]] = []

    # --- the sender's end ---

    def send(self, item: T, cost: int = 1, on_wait: Callable[[], object] | None = None) -> None:
        """Hand over ``item``, blocking this thread while the channel is full.

        Args:
            item: What the receiver gets.
            cost: See the class.
            on_wait: Called before this thread waits, if it has to.

        Raises:
            ChannelClosed: The receiver has gone.
        """
        while (ready := self._try_send(item, cost, ThreadWaiter)) is not None:
            try:
                if on_wait is not None:
                    on_wait()
                ready.wait()
            except BaseException:  # such as a KeyboardInterrupt
                self._give_up(ready)
                raise

    def wait_room(self, cost: int, on_wait: Callable[[], object] | None = None) -> None:
        """Block this thread until an item of that cost could be sent, for whoever makes it only then.

        Args:
            cost: Of that item.
            on_wait: See ``send``.

        Raises:
            ChannelClosed: The receiver has gone.
        """
        while (ready := self._look_for_room(cost)) is not None:
            try:
                if on_wait is not None:
                    on_wait()
                ready.wait()
            finally:
                self._give_up(ready)  # others in line need not wait until the item is made

    async def send_async(self, item: T, cost: int = 1) -> None:
        """Like ``send``, from a coroutine. If cancelled while waiting, the item was not sent."""
        while (ready := self._try_send(item, cost, LoopWaiter)) is not None:
            try:
                await ready.wait()
            except BaseException:
                self._give_up(ready)
                raise

    def finish(self, error: BaseException | None = None) -> None:
        """Say that nothing more will be sent, and why. Only the first call counts."""
        with self._lock:
            if self._finished:
                return
            self._finished = True
            self._error = error
            if error is not None:
                self._error_frames = error.__traceback__
            self._on_close.clear()
            waiters = [*self._receivers]
            self._receivers.clear()
        self._wake(waiters)

    def on_close(self, call: Callable[[], None]) -> None:
        """Call ``call`` once, in the closing thread, if the receiver goes before the sender finishes.

        For a sender that may be waiting for something else than this channel.
        """
        with self._lock:
            if not self._closed:
                if not self._finished:
                    self._on_close.append(call)
                return
        call()

    # --- the receiver's end ---

    def receive(self, timeout_s: float | None = None) -> T:
        """The next item, blocking this thread until there is one.

        Args:
            timeout_s: How long to wait at most; None, the default, leaves it to whoever owns the channel
                to close it.

        Raises:
            ReceiveTimeout: Nothing came for ``timeout_s``; the channel is as it was.
            EndOfChannel: Nothing more will come.
            BaseException: What the sender passed to ``finish``; each time anew that one asks.
        """
        deadline = None if timeout_s is None else monotonic() + timeout_s
        while True:
            outcome = self._try_receive(ThreadWaiter)
            if not isinstance(outcome, ThreadWaiter):
                return outcome[0]
            try:
                if not outcome.wait(deadline):
                    raise ReceiveTimeout(f"nothing came for {timeout_s} s")
            except BaseException:
                self._give_up(outcome)
                raise

    async def receive_async(self) -> T:
        """Like ``receive``, from a coroutine. If cancelled while waiting, no item is lost."""
        while True:
            outcome = self._try_receive(LoopWaiter)
            if not isinstance(outcome, LoopWaiter):
                return outcome[0]
            try:
                await outcome.wait()
            except BaseException:
                self._give_up(outcome)
                raise

    def close(self) -> None:
        """Tell the senders that nobody reads any more, and drop what is held. Idempotent."""
        with self._lock:
            self._closed = True
            self._finished = True
            # Its traceback leads through frames that refer to this channel: nothing would be freed at once.
            self._error = self._error_frames = None
            self._items.clear()
            self._held = 0
            waiters, calls = [*self._senders, *self._receivers], [*self._on_close]
            self._senders.clear()
            self._receivers.clear()
            self._on_close.clear()
        self._wake(waiters)
        for call in calls:
            call()

    def __len__(self) -> int:
        """How many items are held now."""
        return len(self._items)

    # --- the rules ---

    def _try_send(self, item: T, cost: int, waiter: Callable[[int], W]) -> W | None:
        with self._lock:
            if self._closed:
                raise ChannelClosed
            assert not self._finished, "sent after finish"
            if self._items and self._held + cost > self._capacity:
                return self._wait_in(self._senders, waiter(cost))
            self._items.append((item, cost))
            self._held += cost
            woken = (self._receivers.popleft(),) if self._receivers else ()
        self._wake(woken)
        return None

    def _look_for_room(self, cost: int) -> ThreadWaiter | None:
        with self._lock:
            if self._closed:
                raise ChannelClosed
            if self._items and self._held + cost > self._capacity:
                return self._wait_in(self._senders, ThreadWaiter(cost))
        return None

    def _try_receive(self, waiter: Callable[[int], W]) -> tuple[T] | W:
        with self._lock:
            if self._items:
                item, cost = self._items.popleft()
                self._held -= cost
                woken = self._senders_that_fit() if self._senders else ()
            elif self._finished:
                if self._error is not None:
                    # Without the frames of those who asked before.
                    raise self._error.with_traceback(self._error_frames)
                raise EndOfChannel
            else:
                return self._wait_in(self._receivers, waiter(0))
        self._wake(woken)
        return (item,)

    def _wait_in(self, line: deque[Waiter], waiter: W) -> W:
        line.append(waiter)
        if self._closed:  # by a garbage collection, since we looked: it has not seen this waiter
            waiter.wake()
        return waiter

    def _senders_that_fit(self) -> list[Waiter]:
        """Take those from the line that can go on now. A large one in front is not passed by."""
        fit: list[Waiter] = []
        room = self._capacity - self._held
        while self._senders and (self._senders[0].cost <= room or not (self._items or fit)):
            fit.append(self._senders.popleft())
            room -= fit[-1].cost
        return fit

    def _give_up(self, waiter: Waiter) -> None:
        """Let nobody wait for a wake that ``waiter`` has had, or for room that it stood in front of."""
        with self._lock:
            for line in (self._senders, self._receivers):
                if waiter in line:
                    line.remove(waiter)
            woken = self._senders_that_fit()
            if self._items and self._receivers:
                woken.append(self._receivers.popleft())
        self._wake(woken)

    def _wake(self, waiters: Iterable[Waiter]) -> None:
        """Outside the lock: the woken thread would only run into it."""
        for waiter in waiters:
            if not waiter.wake():
                self._give_up(waiter)
