"""One shard on its way into the cache, and those in this process who wait for its copy."""

from __future__ import annotations

import asyncio
import copy as copying

from ..errors import StoreError
from .copy import Copy

__all__ = ["Loading"]


class Loading:
    """Gives each reader a share of the copy as soon as there is one.

    Law: a copy is let go by whoever was given it, also if cancelled in that very moment.
    """

    def __init__(self) -> None:
        self._copy: Copy | None = None
        self._settled = False
        self._waiting: list[asyncio.Future[Copy | None]] = []

    @property
    def is_wanted(self) -> bool:
        """Whether a reader waits for it."""
        return any(not waiter.done() for waiter in self._waiting)

    async def join(self) -> Copy | None:
        """The copy, to be closed by the caller; None if there will be none.

        Raises:
            StoreError: The shard cannot be had at all.
        """
        if self._settled:
            return self._copy and self._copy.share()
        waiter: asyncio.Future[Copy | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                given = waiter.result()
                if given is not None:
                    given.close()
            raise

    def opened(self, copy: Copy) -> None:
        """There is a copy, complete or growing; it stays open until ``close``."""
        if not self._settled:
            self._copy = copy.share()
            self._settle(None)

    def close(self, error: Exception | None = None) -> None:
        """Nothing more comes of it; those who still wait get ``error``, or no copy."""
        self._settle(error)
        if self._copy is not None:
            self._copy.close()
            self._copy = None

    def _settle(self, error: Exception | None) -> None:
        self._settled = True
        for waiter in self._waiting:
            if waiter.done():
                continue
            if error is not None:
                # Each its own: a traceback grows with each place that one error is raised in.
                waiter.set_exception(copying.copy(error) if isinstance(error, StoreError) else error)
            else:
                waiter.set_result(self._copy and self._copy.share())
        self._waiting.clear()
