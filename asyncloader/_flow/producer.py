"""A thread that runs a generator and hands its items over, bounded by cost."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Generator
from contextlib import closing
from typing import Generic, TypeVar

from ..tracebacks import format_stack, is_in_users_code
from .channel import Channel, ChannelClosed

__all__ = ["OWN_THREADS", "Producer"]

T = TypeVar("T")

# As for the engine: far above what clean-up takes. A user's function may be stuck in this thread, and a
# thread cannot be killed; beyond the deadline we say so and go on.
_CLOSE_DEADLINE_S = 5.0

OWN_THREADS = ("asyncloader-", "asyncio_")
"""How the library's threads are named: the engine's, the producers', the map's and the device's, and those in
which the loop reads files."""


class Producer(Generic[T]):
    """The receiving end of a generator that runs ahead on a thread of its own.

    Args:
        generate: Called in the thread; yields pairs of an item and its cost.
        capacity: Bound on the summed cost of the items made and not yet received, the one in the making
            included; one is always let in.
        on_close: Called first when the receiver closes, to wake the generator wherever it waits.
        name: Of the thread.
        on_wait: Called in the thread before it waits for the receiver, if it has to.
    """

    def __init__(
        self,
        generate: Callable[[], Generator[tuple[T, int], None, None]],
        capacity: int,
        on_close: Callable[[], None],
        name: str,
        on_wait: Callable[[], object] | None = None,
    ) -> None:
        self._channel = Channel[T](capacity)
        self._on_close = on_close
        self._closed = False
        self._starter: threading.Thread | None = None
        # A daemon, since the interpreter joins others before any finalizer could end this one.
        self._thread = threading.Thread(
            target=_produce, args=(generate, self._channel, on_wait), name=name, daemon=True
        )

    def start(self) -> None:
        """Start the thread, which belongs to the one that calls this."""
        self._starter = threading.current_thread()
        self._thread.start()

    def receive(self, timeout_s: float | None = None) -> T:
        """See ``Receiver``."""
        return self._channel.receive(timeout_s)

    async def receive_async(self) -> T:
        """See ``Receiver``."""
        return await self._channel.receive_async()

    def close(self) -> None:
        """Stop the generator and join the thread, under a deadline. Idempotent.

        Of the library's own threads only the one that has started it joins it.
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
        # Only now: closing that was interrupted, as by Ctrl-C, can be repeated.
        self._join()
        self._closed = True

    def describe_stack(self) -> str:
        """Where the thread is now, or one that calls the user's functions for it; the latest call last."""
        frames = sys._current_frames()
        callers = [each for each in threading.enumerate() if getattr(each, "serves", None) is self._thread]
        for thread in (*callers, self._thread):
            frame = frames.get(thread.ident or 0)
            if frame is not None and is_in_users_code(frame):
                return format_stack(frame)
        frame = frames.get(self._thread.ident or 0)
        return "its end" if frame is None else format_stack(frame)

    def _join(self) -> None:
        if self._thread.ident is None:
            return
        # A garbage collection may run a finalizer in any thread, also in one that this one waits for. For its
        # starter it never waits: so that one joins it, which may be a thread of the library itself.
        here = threading.current_thread()
        if here is not self._starter and here.name.startswith(OWN_THREADS):
            return
        self._thread.join(_CLOSE_DEADLINE_S)
        if self._thread.is_alive():
            warnings.warn(
                f"{self._thread.name} is still inside a function of the dataset {_CLOSE_DEADLINE_S} s after "
                "the loader was closed; it ends when that function returns",
                ResourceWarning,
                stacklevel=2,
            )


def _produce(
    generate: Callable[[], Generator[tuple[T, int], None, None]],
    channel: Channel[T],
    on_wait: Callable[[], object] | None,
) -> None:
    # The thread holds the channel alone, never the Producer: its owner must be able to go away.
    try:
        with closing(generate()) as items:
            for item, cost in items:
                channel.send(item, cost, on_wait)
                del item
                # Before the next one is made, which is taken to cost as much: made, it would be held beside.
                channel.wait_room(cost, on_wait)
    except ChannelClosed:
        return
    except BaseException as error:  # whatever it is, the consumer has to hear of it
        channel.finish(error)
    else:
        channel.finish()
