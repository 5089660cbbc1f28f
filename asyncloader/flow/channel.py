"""A bounded hand-over from one thread or event loop to another.

Laws:

* Either end may be a thread or a coroutine. The rules are the same and are written once, under one lock; only
  the waiting differs.
* The bound is a cost (bytes, or 1 per item) that the maker of the channel chooses. One item is always
  accepted when the channel is empty, whatever its cost, so that an over-size item cannot deadlock.
* The end and errors travel on the channel itself, after the items sent before them; no item value is special.
  Both stay: every further ``receive`` gets the same, until the channel is closed.
* An item wakes one receiver, and freed room wakes the senders that fit into it, in order. A woken waiter
  checks for itself, and stays in line until it has what it waits for or gives up (timed out, cancelled). The
  lines alone decide which waiters have to be awake, so no wake can be lost.
* An exception of a signal handler may come at and after any call in here. It loses no item and no wake: wakes
  come before the change that they announce, which consists of assignments. A receiver that was interrupted
  with an item puts it back. ``finish`` and ``close`` can be repeated after an interruption.
* ``close`` (by the receiver) wakes every sender with ``ChannelClosed``, drops what is held, and calls the
  function of ``on_close``. No wait is unbounded: the owner of a channel closes it.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, suppress
from time import monotonic
from types import TracebackType
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from ..errors import format_stack, is_in_users_code
from .process import patience_s


class ThreadWaiter:
    """One blocked thread.

    Args:
        cost: Of what it waits to send.
    """

    def __init__(self, cost: int) -> None:
        self.cost = cost
        # Held until the waiter is woken. A threading.Event would make two more, and take three times as long.
        self._asleep = threading.Lock()
        self._asleep.acquire()
        self.is_awake = False

    def wake(self) -> bool:
        """Wake it to check again, once until it waits anew; returns whether it still exists."""
        if not self.is_awake:
            with suppress(RuntimeError):  # released before, by a wake that was interrupted
                self._asleep.release()
            self.is_awake = True
        return True

    def wait_anew(self) -> None:
        """It has checked, and waits again."""
        self.is_awake = False

    def wait(self, deadline: float | None = None) -> bool:
        return self._asleep.acquire(timeout=-1 if deadline is None else max(0.0, deadline - monotonic()))


class LoopWaiter:
    """One suspended coroutine, woken from any thread."""

    def __init__(self, cost: int) -> None:
        self.cost = cost
        self._loop = asyncio.get_running_loop()
        self.is_awake = False
        self._future: asyncio.Future[None] = self._loop.create_future()

    def wake(self) -> bool:
        """See ``ThreadWaiter``."""
        if self.is_awake:
            return not self._loop.is_closed()
        # Directly from its own loop: the call for other threads costs twice as much.
        if asyncio._get_running_loop() is self._loop:
            self._settle()
        elif not call_in_loop(self._loop, self._settle):
            return False  # the waiter is still in line, but its coroutine has gone
        self.is_awake = True
        return True

    def wait_anew(self) -> None:
        """See ``ThreadWaiter``."""
        self._future = self._loop.create_future()
        self.is_awake = False

    def _settle(self) -> None:
        if not self._future.done():
            self._future.set_result(None)

    async def wait(self) -> None:
        await self._future


def call_in_loop(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *arguments: Any) -> bool:
    """Have a loop call something, from any thread; says whether the loop is still open."""
    try:
        loop.call_soon_threadsafe(call, *arguments)
    except RuntimeError:
        if not loop.is_closed():
            raise
        return False
    return True


Waiter: TypeAlias = ThreadWaiter | LoopWaiter
"""A thread or coroutine in line. All but the waiting itself happens under the channel's lock."""

W = TypeVar("W", ThreadWaiter, LoopWaiter)


T = TypeVar("T")
R = TypeVar("R", covariant=True)


class Receiver(Protocol[R]):
    """The receiving end of a stream: of a channel, a worker, or a stage behind one."""

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
        """End the stream from the receiver's side, and free what it holds. Idempotent."""
        ...


class EndOfChannel(Exception):
    """The sender has finished, and everything it sent was received."""


class ReceiveTimeout(TimeoutError):
    """Nothing came in time. A TimeoutError of another class is an error of the stream itself."""


class ChannelClosed(Exception):
    """The receiver has closed the channel; nothing sent will be read."""


class Channel(Generic[T]):
    """A first-in first-out hand-over, bounded by cost.

    Args:
        capacity: The total cost that may be held, in the unit of the senders' ``cost``. It has no default:
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
        #: In line for an item, and for room; including those that were woken and have not checked yet.
        self._receivers: deque[Waiter] = deque()
        self._senders: deque[Waiter] = deque()
        self._on_close: Callable[[], object] | None = None

    # --- the sender's end ---

    def send(self, item: T, cost: int = 1, on_wait: Callable[[], object] | None = None) -> None:
        """Send ``item``; blocks this thread while the channel is full.

        Args:
            item: What the receiver gets.
            cost: See the class.
            on_wait: Called before this thread waits, if it has to.

        Raises:
            ChannelClosed: The receiver has closed the channel.
        """
        waiting: list[ThreadWaiter] = []
        try:
            while not self._try_send(item, cost, waiting, ThreadWaiter):
                if on_wait is not None:
                    on_wait()
                waiting[0].wait()
        except BaseException:  # such as a KeyboardInterrupt
            self._give_up(waiting)
            raise

    def wait_room(self, cost: int, on_wait: Callable[[], object] | None = None) -> None:
        """Block this thread until an item of that cost could be sent, for senders that make it only then.

        Args:
            cost: Of that item.
            on_wait: See ``send``.

        Raises:
            ChannelClosed: The receiver has closed the channel.
        """
        waiting: list[ThreadWaiter] = []
        try:
            while not self._has_room(cost, waiting):
                if on_wait is not None:
                    on_wait()
                waiting[0].wait()
        finally:
            if waiting:
                self._give_up(waiting)  # others in line should not wait until the item is made

    async def send_async(self, item: T, cost: int = 1) -> None:
        """Like ``send``, from a coroutine. If cancelled while waiting, the item was not sent."""
        waiting: list[LoopWaiter] = []
        try:
            while not self._try_send(item, cost, waiting, LoopWaiter):
                await waiting[0].wait()
        except BaseException:
            self._give_up(waiting)
            raise

    def send_nowait(self, item: T, cost: int = 1) -> None:
        """Send ``item``, however full the channel is: for senders that something else bounds.

        Raises:
            ChannelClosed: The receiver has closed the channel.
        """
        with self._lock:
            if self._closed:
                raise ChannelClosed
            self._append(item, cost)

    def finish(self, error: BaseException | None = None) -> None:
        """End the stream from the sender's side, maybe with an error. Only the first call counts."""
        with self._lock:
            if not self._finished:
                self._error = error
                if error is not None:
                    self._error_frames = error.__traceback__
                self._on_close = None
                self._finished = True
            self._wake(self._receivers)

    def on_close(self, call: Callable[[], object]) -> None:
        """Call ``call`` in the closing thread, if the receiver closes before the sender finishes.

        For the sender, which may be waiting for something else than this channel. It may be called again if
        an interrupted ``close`` is repeated.
        """
        with self._lock:
            if not self._closed:
                if not self._finished:
                    self._on_close = call
                return
        call()

    # --- the receiver's end ---

    def receive(self, timeout_s: float | None = None) -> T:
        """The next item, blocking this thread until there is one.

        Args:
            timeout_s: How long to wait at most; None, the default, waits until the owner closes the channel.

        Raises:
            ReceiveTimeout: Nothing came for ``timeout_s``; the channel is as it was.
            EndOfChannel: The sender has finished.
            BaseException: What the sender passed to ``finish``, at each call.
        """
        deadline = None if timeout_s is None else monotonic() + timeout_s
        waiting: list[ThreadWaiter] = []
        taken: list[tuple[T, int] | None] = [None]
        try:
            while not self._try_receive(taken, waiting, ThreadWaiter):
                if not waiting[0].wait(deadline):
                    raise ReceiveTimeout(f"nothing came for {timeout_s} s")
        except BaseException:
            self._give_up(waiting, taken)
            raise
        assert taken[0] is not None
        return taken[0][0]

    async def receive_async(self) -> T:
        """Like ``receive``, from a coroutine. If cancelled while waiting, no item is lost."""
        waiting: list[LoopWaiter] = []
        taken: list[tuple[T, int] | None] = [None]
        try:
            while not self._try_receive(taken, waiting, LoopWaiter):
                await waiting[0].wait()
        except BaseException:
            self._give_up(waiting, taken)
            raise
        assert taken[0] is not None
        return taken[0][0]

    def close(self) -> None:
        """Report to the senders that the receiver has gone, and drop what is held. Idempotent."""
        call: Callable[[], object] | None = None
        try:
            with self._lock:
                call, self._on_close = self._on_close, None
                self._closed = True
                self._finished = True
                # Its traceback leads to frames that refer to this channel: nothing would be freed at once.
                self._error = self._error_frames = None
                self._held = 0
                self._items.clear()
                self._wake(self._senders)
                self._wake(self._receivers)
            if call is not None:
                call()
        except BaseException:
            self._on_close = call or self._on_close  # an interrupted close can be repeated
            raise

    def __iter__(self) -> Iterator[T]:
        """What a thread receives, until the sender has finished."""
        with suppress(EndOfChannel):
            while True:
                yield self.receive()

    def __len__(self) -> int:
        """How many items are held now."""
        return len(self._items)

    # --- the rules ---

    # ``waiting`` holds the waiter of a call, once it has one: an interrupted call leaves the line with it.

    def _try_send(self, item: T, cost: int, waiting: list[W], kind: Callable[[int], W]) -> bool:
        with self._lock:
            if self._closed:
                raise ChannelClosed
            if self._items and self._held + cost > self._capacity:
                self._stand(self._senders, waiting, kind, cost)
                return False
            if waiting:
                self._leave(self._senders, waiting[0])
            self._append(item, cost)
        return True

    def _append(self, item: T, cost: int) -> None:
        assert not self._finished, "sent after finish"
        if (line := self._receivers) and (len(line) > 1 or not line[0].is_awake):
            self._wake_receivers(len(self._items) + 1)
        self._held += cost
        self._items.append((item, cost))

    def _has_room(self, cost: int, waiting: list[ThreadWaiter]) -> bool:
        with self._lock:
            if self._closed:
                raise ChannelClosed
            if self._items and self._held + cost > self._capacity:
                self._stand(self._senders, waiting, ThreadWaiter, cost)
                return False
        return True

    def _try_receive(
        self, taken: list[tuple[T, int] | None], waiting: list[W], kind: Callable[[int], W]
    ) -> bool:
        """Put the next item into ``taken``; False if the caller has to wait, and stands in line."""
        with self._lock:
            if self._items:
                if waiting:
                    self._leave(self._receivers, waiting[0])
                # One that is awake is the usual case, until its thread runs.
                if (line := self._senders) and (len(line) > 1 or not line[0].is_awake):
                    self._wake_senders(self._held - self._items[0][1], len(self._items) - 1)
            if self._items:  # a garbage collection meanwhile may have closed this channel
                # Nothing is called from here on, so nothing can interrupt.
                taken[0] = first = self._items[0]
                self._held -= first[1]
                del self._items[0]
                return True
            if self._finished:
                if self._error is not None:
                    # Without the frames of earlier receivers.
                    raise self._error.with_traceback(self._error_frames)
                raise EndOfChannel
            self._stand(self._receivers, waiting, kind, 0)
        return False

    def _stand(self, line: deque[Waiter], waiting: list[W], kind: Callable[[int], W], cost: int) -> None:
        """Stand in line, in the same place if the caller has one."""
        if not waiting:
            waiting.append(kind(cost))
        waiter = waiting[0]
        if waiter in line:
            waiter.wait_anew()
        else:
            line.append(waiter)
        if self._closed:  # by a garbage collection meanwhile, which has not seen this waiter
            waiter.wake()

    def _leave(self, line: deque[Waiter], waiter: Waiter) -> None:
        if waiter in line:
            line.remove(waiter)

    def _wake_senders(self, held: int, items: int) -> None:
        """Wake senders that can go on if so much is held. Smaller ones do not overtake a large one."""
        room = self._capacity - held
        for waiter in [*self._senders]:
            if waiter.cost > room and items:
                break
            if waiter.wake():
                room -= waiter.cost
                items += 1
            else:
                self._leave(self._senders, waiter)

    def _wake_receivers(self, items: int) -> None:
        """Wake as many receivers as there are items, from the front."""
        for waiter in [*self._receivers]:
            if not items:
                break
            if waiter.wake():
                items -= 1
            else:
                self._leave(self._receivers, waiter)

    def _wake(self, line: deque[Waiter]) -> None:
        for waiter in [*line]:
            waiter.wake()

    def _give_up(self, waiting: list[W], taken: list[tuple[T, int] | None] | None = None) -> None:
        """Put back an item that was ``taken``, and wake others in place of a waiter that leaves."""
        with self._lock:
            if taken is not None and taken[0] is not None and not self._closed:
                self._held += taken[0][1]
                self._items.appendleft(taken[0])
            for waiter in waiting:
                self._leave(self._senders, waiter)
                self._leave(self._receivers, waiter)
            if self._senders:
                self._wake_senders(self._held, len(self._items))
            if self._receivers:
                self._wake_receivers(len(self._items))


# As for the engine: far above what clean-up takes. A user's function may be stuck in this thread, and a
# thread cannot be killed; beyond the deadline there is a warning.
_CLOSE_DEADLINE_S = 5.0

OWN_THREADS = ("asyncloader-", "asyncio_", "Dummy-")
"""The prefixes of the names of threads in which a garbage collection must not join the library's threads.

The own ones: the loop reads files in those of the second. Python calls a thread by the third that it does
not know yet, since it is starting: who starts it waits for it, and that may be the loop.
"""


class Producer(Generic[T]):
    """The receiving end of a generator that runs ahead on a thread of its own.

    Args:
        generate: Called in the thread; makes the generator of the items.
        capacity: Bound on the total cost of the items made and not yet received, including the one being
            made; one is always accepted.
        on_close: Called first when the receiver closes, to wake the generator if it waits.
        name: Of the thread.
        cost_of: The cost of an item; by default each costs 1.
        on_wait: Called in the thread before it waits for the receiver, if it has to.
        makes_before_room: Whether an item is made before there is room for it, and held in addition until
            there is.
    """

    def __init__(
        self,
        generate: Callable[[], Generator[T, None, None]],
        capacity: int,
        on_close: Callable[[], None],
        name: str,
        cost_of: Callable[[T], int] | None = None,
        on_wait: Callable[[], object] | None = None,
        makes_before_room: bool = False,
    ) -> None:
        self._channel = Channel[T](capacity)
        #: See ``Receiver``.
        self.receive, self.receive_async = self._channel.receive, self._channel.receive_async
        self._on_close = on_close
        self._closed = False
        self._starter: threading.Thread | None = None
        # A daemon, since the interpreter joins other threads before any finalizer could end this one.
        arguments = generate, self._channel, cost_of, on_wait, makes_before_room
        self._thread = threading.Thread(target=_produce, args=arguments, name=name, daemon=True)

    def __iter__(self) -> Iterator[T]:
        """The items, for the receiver's thread."""
        return iter(self._channel)

    def start(self) -> None:
        """Start the thread; the calling thread owns it."""
        self._starter = threading.current_thread()
        self._thread.start()

    def close(self) -> None:
        """Stop the generator and join the thread, under a deadline. Idempotent.

        Of the library's own threads, only the one that has started it joins it.
        """
        if self._closed:
            return
        self._channel.close()
        try:
            self._on_close()
        except Exception:
            self._join()
            self._closed = True
            raise
        # Only now, so that closing can be repeated after an interruption such as Ctrl-C.
        self._join()
        self._closed = True

    def describe_wait(self) -> str:
        """Where the thread is that makes the next item."""
        return f"the thread that makes them is at\n{self._describe_stack()}"

    def _describe_stack(self) -> str:
        """The stack of the thread, or of one that calls the user's functions for it; the latest call last."""
        frames = sys._current_frames()
        callers = [each for each in threading.enumerate() if getattr(each, "serves", None) is self._thread]
        for thread in (*callers, self._thread):
            frame = frames.get(thread.ident or 0)
            if frame is not None and is_in_users_code(frame):
                return format_stack(frame)
        frame = frames.get(self._thread.ident or 0)
        return "its end" if frame is None else format_stack(frame)

    @property
    def is_alive(self) -> bool:
        """Whether its thread has begun and not ended."""
        return self._thread.is_alive()

    def _join(self) -> None:
        if self._thread.ident is None:
            return
        # A garbage collection may run a finalizer in any thread, also in one that this one waits for. It
        # never waits for its starter, so that one may join it, even if it is a thread of the library.
        here = threading.current_thread()
        if here is not self._starter and here.name.startswith(OWN_THREADS):
            return
        # Longer than what the thread itself waits for, such as its own threads, which it names.
        waited_s = patience_s(_CLOSE_DEADLINE_S, at_exit=1.5)
        self._thread.join(waited_s)
        if self._thread.is_alive():
            warnings.warn(
                f"{self._thread.name} is still at work {waited_s:g} s after the loader was closed, such as "
                "in a function of the dataset; it ends when that returns. It is at\n"
                f"{self._describe_stack()}",
                RuntimeWarning,
                stacklevel=2,
            )


def _produce(
    generate: Callable[[], Generator[T, None, None]],
    channel: Channel[T],
    cost_of: Callable[[T], int] | None,
    on_wait: Callable[[], object] | None,
    makes_before_room: bool,
) -> None:
    # The thread refers to the channel only, never to the Producer, which can then be collected.
    try:
        with closing(generate()) as items:
            for item in items:
                cost = 1 if cost_of is None else cost_of(item)
                channel.send(item, cost, on_wait)
                del item
                if not makes_before_room:
                    # The next one is expected to cost as much, and would be held in addition.
                    channel.wait_room(cost, on_wait)
    except ChannelClosed:
        return
    except BaseException as error:  # any error is passed to the consumer
        channel.finish(error)
    else:
        channel.finish()
