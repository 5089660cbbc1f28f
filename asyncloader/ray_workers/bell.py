"""Tells whoever waits on a descriptor that something has come, from any thread."""

from __future__ import annotations

import os
import threading
from contextlib import suppress

__all__ = ["Bell"]


class Bell:
    """An eventfd: readable from the first ring until it is silenced. Linux only, as all workers are."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._descriptor: int | None = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def fileno(self) -> int:
        """Readable when it has rung."""
        assert self._descriptor is not None
        return self._descriptor

    def ring(self, _: object = None) -> None:
        """Let whoever waits look; in vain once it was closed."""
        with self._lock:  # the number may be another file's once it is closed
            if self._descriptor is not None:
                os.eventfd_write(self._descriptor, 1)

    def silence(self) -> None:
        """Not readable until it rings again. To be called before one looks, so that no ring is missed."""
        with suppress(BlockingIOError):  # it had not rung
            os.eventfd_read(self.fileno())

    def close(self) -> None:
        """Give back the descriptor. Idempotent."""
        with self._lock:
            descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)
