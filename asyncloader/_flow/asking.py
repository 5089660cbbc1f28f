"""A stream that makes its next item only when somebody asks for it, though others stand in between.

Streams run ahead of their consumer by default, which costs memory at most. Where making an item costs more
than that, the consumer asks for each one (``Asking``), and whoever makes them waits for it (``Asks.wait``).
"""

from __future__ import annotations

from typing import Generic, TypeVar

from .channel import Channel, Receiver

__all__ = ["Asking", "Asks"]

T = TypeVar("T")

# Never reached: an item is asked for before it is received, and what is asked for is begun before anything
# is made unasked; so these are no more than the items that lie ready, and one.
_MOST = 1 << 30


class Asks:
    """What was asked for and not yet begun.

    Args:
        unasked: How many items may be made ahead of the asking.
    """

    def __init__(self, unasked: int = 0) -> None:
        self._asked = Channel[None](_MOST)
        # Counted by the making end alone. It may be any number: nothing is held for each.
        self._unasked = unasked
        self._is_finished = False

    def ask(self) -> None:
        """Ask for one more item."""
        self._asked.send(None)

    def wait(self) -> None:
        """Wait until the next item is asked for.

        Raises:
            EndOfChannel: Nothing more will be.
        """
        if not self._may_make_unasked():
            self._asked.receive()

    def finish(self) -> None:
        """Wake whoever waits to be asked: nothing more will be. Idempotent."""
        self._is_finished = True
        self._asked.finish()

    def _may_make_unasked(self) -> bool:
        if not self._unasked or len(self._asked) or self._is_finished:
            return False
        self._unasked -= 1
        return True


class Asking(Generic[T]):
    """The consumer's end: a ``Receiver`` that asks before it receives."""

    def __init__(self, source: Receiver[T], asks: Asks) -> None:
        self._source = source
        self._asks = asks
        # Once for each item: a call that timed out, or was cancelled, has asked for the next one's item.
        self._has_asked = False

    def receive(self, timeout_s: float | None = None) -> T:
        """See ``Receiver``."""
        self._ask()
        item = self._source.receive(timeout_s)
        self._has_asked = False
        return item

    async def receive_async(self) -> T:
        """See ``Receiver``."""
        self._ask()
        item = await self._source.receive_async()
        self._has_asked = False
        return item

    def close(self) -> None:
        """See ``Receiver``."""
        self._asks.finish()
        self._source.close()

    def _ask(self) -> None:
        if not self._has_asked:
            self._asks.ask()
            self._has_asked = True
