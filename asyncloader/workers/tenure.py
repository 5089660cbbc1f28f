"""Who waits on what a worker is received by, so that it is not taken away from under them."""

from __future__ import annotations

import threading
from collections.abc import Callable

from .._flow.channel import ChannelClosed

__all__ = ["Reception", "Tenure"]


class Reception:
    """One wait, for one worker or several.

    Attributes:
        is_on: Unset before ``Tenure.end_receiving``, by an assignment: a signal's handler can interrupt any
            call, but not that.
    """

    __slots__ = ("is_on",)

    def __init__(self) -> None:
        self.is_on = True


class Tenure:
    """From the start of a worker until everything of it was given back, which the last one out does.

    Args:
        number: The worker's, for messages.
        give_back: Closes what a receiver waits on; called once.
    """

    def __init__(self, number: int, give_back: Callable[[], None]) -> None:
        self._number = number
        self._give_back: Callable[[], None] | None = give_back
        self._lock = threading.Lock()
        self._reception: Reception | None = None
        self._buried = False
        #: Whether nothing more is wanted of the worker.
        self.is_over = False

    def begin_receiving(self, reception: Reception) -> None:
        """Keep what is waited on open while that is on.

        Raises:
            ChannelClosed: The worker was closed.
            RuntimeError: Somebody else receives.
        """
        with self._lock:
            if self.is_over:
                raise ChannelClosed
            if self._is_received:
                raise RuntimeError(f"worker {self._number} has a receiver already; it serves one at a time")
            self._reception = reception

    def end_receiving(self) -> None:
        """Its reception is not on any more."""
        if self._buried:  # before, whoever closes it waits on them
            with self._lock:
                self._settle()

    def end(self, tell: Callable[[], None]) -> None:
        """Nothing more is wanted: ``tell`` the worker, and whoever receives, unless that was done."""
        with self._lock:
            if not self.is_over:
                self.is_over = True
                tell()

    def bury(self, clear: Callable[[], None]) -> None:
        """Give everything back, as soon as nobody waits on it."""
        with self._lock:
            clear()
            self._buried = True
            self._settle()

    @property
    def _is_received(self) -> bool:
        return self._reception is not None and self._reception.is_on

    def _settle(self) -> None:
        if self._give_back is not None and not self._is_received:
            self._give_back()
            self._give_back = None
