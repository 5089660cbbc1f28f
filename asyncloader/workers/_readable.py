"""Waiting on descriptors themselves: a thread by ``poll``, a coroutine through its own loop."""

from __future__ import annotations

import asyncio
import select
from collections.abc import Iterable
from time import monotonic

from .protocol import Source

__all__ = ["wait_readable", "wait_readable_async"]


def wait_readable(sources: Iterable[Source], deadline: float | None) -> list[int]:
    """Block this thread until one of them is readable; the descriptors of those, none at the deadline."""
    poll = select.poll()
    for source in sources:
        poll.register(source.fileno(), select.POLLIN)
    ready = poll.poll(None if deadline is None else max(0.0, deadline - monotonic()) * 1000)
    return [descriptor for descriptor, _ in ready]


async def wait_readable_async(sources: Iterable[Source]) -> list[int]:
    """Like ``wait_readable``, from a coroutine and without a deadline."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    descriptors = [source.fileno() for source in sources]
    for descriptor in descriptors:
        loop.add_reader(descriptor, _settle, ready, descriptor)
    try:
        return [await ready]
    finally:
        for descriptor in descriptors:
            loop.remove_reader(descriptor)


def _settle(ready: asyncio.Future[int], descriptor: int) -> None:
    if not ready.done():
        ready.set_result(descriptor)
