"""Work on files in threads, and who closes a descriptor that a thread may still be using."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import partial
from typing import ParamSpec, Protocol, TypeVar

from ..._flow.opening import opened

__all__ = ["Descriptor"]

P = ParamSpec("P")
T = TypeVar("T")


class _Closable(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound="_Closable | None")


def _close(found: _Closable | None) -> None:
    if found is not None:
        found.close()


class Descriptor:
    """An open file. It is closed when its last holder has let go and no thread works on it any more.

    A thread cannot be cancelled. Were the descriptor closed under it, its number could be another file's
    by the time the thread writes.

    Args:
        number: The descriptor.
        folder: Of the folder it is in, kept open as long, for work that uses both.
    """

    def __init__(self, number: int, folder: Descriptor | None = None) -> None:
        self.number = number
        self._holders = 1
        self._folder = folder and folder.share()

    def share(self) -> Descriptor:
        """The same, for one more holder."""
        assert self._holders, "this file was closed"
        self._holders += 1
        return self

    def close(self) -> None:
        """Let go of it; once for each holder."""
        self._holders -= 1
        if not self._holders:
            os.close(self.number)
            if self._folder is not None:
                self._folder.close()

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """``work(...)`` in a thread, this file being open. If cancelled, the thread goes on to its end."""
        return await asyncio.shield(self._begin(partial(work, *args, **kwargs)))

    async def acquire(self, work: Callable[[], C], give_up: Callable[[C], object] = _close) -> C:
        """What ``work()`` opens, in a thread, this file being open.

        Args:
            work: Cannot be stopped.
            give_up: If cancelled meanwhile, called with what ``work`` has opened as soon as it is there, this
                file still being open; closes it, by default.
        """
        self.share()
        opening = self._begin(work)
        try:
            return await opened(opening, give_up)
        finally:
            # Behind what gives it up, which is called as one of these too.
            opening.add_done_callback(lambda _: self.close())

    def _begin(self, work: Callable[[], T]) -> asyncio.Future[T]:
        self.share()
        working = asyncio.get_running_loop().run_in_executor(None, work)
        working.add_done_callback(lambda _: self.close())
        return working
