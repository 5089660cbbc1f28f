"""Who waits on what a worker is received by, so that it is not taken away from under them."""

from __future__ import annotations

import threading
from collections.abc import Callable

from .._flow.channel import ChannelClosed

__all__ = ["Tenure"]


class Tenure:
    """From the start of a worker until everything of it was given back, which the last one out does.

    Args:
        number: The worker's, for messages.
        give_back: Closes what a receiver waits on; called once.
    """

    def __init__(self, number: int, give_back: Callable[[], None]) -> None:
        self._number = number
        self._give_back = give_back
        self._lock = threading.Lock()
        self._receiving = False
        self._buried = False
        #: Whether nothing more is wanted of the worker.
        self.is_over = False

    def begin_receiving(self) -> None:
        """Keep what is waited on open.

        Raises:
            ChannelClosed: The worker was closed.
            RuntimeError: Somebody else receives.
        """
        with self._lock:
            if self.is_over:
                raise ChannelClosed
            if self._receiving:
                raise RuntimeError(f"worker {self._number} has a receiver already; it serves one at a time")
            self._receiving = True

    def end_receiving(self) -> None:
        with self._lock:
            self._receiving = False
            if self._buried:  # before, whoever closes it waits on them
                self._give_back()

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
            if not self._receiving:
                self._give_back()
