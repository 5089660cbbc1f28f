"""Waiting on descriptors themselves: a thread by ``poll``, a coroutine through its own loop."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Iterable
from time import monotonic
from typing import Protocol

__all__ = ["wait_readable", "wait_readable_async"]


class _Source(Protocol):
    def fileno(self) -> int: ...


def wait_readable(sources: Iterable[_Source], deadline: float | None) -> bool:
    """Block this thread until one of them is readable; False if none is by the deadline."""
    poll = select.poll()
    for source in sources:
        poll.register(source.fileno(), select.POLLIN)
    return bool(poll.poll(None if deadline is None else max(0.0, deadline - monotonic()) * 1000))


async def wait_readable_async(sources: Iterable[_Source]) -> None:
    """Like ``wait_readable``, from a coroutine."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    descriptors = [source.fileno() for source in sources]
    for descriptor in descriptors:
        loop.add_reader(descriptor, _settle, ready)
    try:
        await ready
    finally:
        for descriptor in descriptors:
            loop.remove_reader(descriptor)


def _settle(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
