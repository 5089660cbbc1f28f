"""The workers of a pool, wherever they run: who is there, and the end of all, also of those yet to come."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

from .._flow.channel import ChannelClosed
from .protocol import AnyWorker

__all__ = ["Crew"]

W = TypeVar("W", bound=AnyWorker)


class Crew(ABC, Generic[W]):
    """What a pool and its finalizer have in common, since what a finalizer refers to is never collected."""

    def __init__(self) -> None:
        #: Those that work now, by their number.
        self.workers: list[W] = []
        self._closed = False
        # Re-entrant: a garbage collection while it is held may run the finalizer that closes the pool.
        self._lock = threading.RLock()

    def enlist(self, worker: W) -> None:
        """Take in a worker, in the place of the one of its number.

        Raises:
            ChannelClosed: The pool was closed while the worker was asked for; it is ended too.
        """
        with self._lock:
            self.workers[worker.number : worker.number + 1] = [worker]
            closed = self._closed
        if closed:
            self.dismiss([worker])
            raise ChannelClosed

    def close(self) -> None:
        """End all workers that there are and that may yet come, and let go of what they share."""
        with self._lock:
            self._closed = True
            workers = list(self.workers)
        self._end(workers)

    @abstractmethod
    def dismiss(self, workers: Sequence[W]) -> None:
        """End those, of which nothing more is expected."""

    @abstractmethod
    def _end(self, workers: Sequence[W]) -> None:
        """End all, and let go of what they share."""
