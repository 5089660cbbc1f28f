"""What a consumer of one worker does: wait until there is something, and take it."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any

from asyncloader.workers.pool import wait_any, wait_any_async
from asyncloader.workers.worker import AnyWorker

__all__ = ["RECEIVE", "receive", "receive_async"]

#: ``receive`` for scripts, which find nothing of the tests.
RECEIVE = """
from asyncloader.workers.pool import wait_any

def receive(worker):
    ready = ()
    while (got := worker.receive_nowait(ready)) is None:
        ready = wait_any([worker], None)
    return got
"""


def receive(worker: AnyWorker, timeout_s: float | None = None) -> tuple[Any, Any]:
    """The next batch and its note, blocking this thread until it is there. TimeoutError behind that time."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    ready: Collection[int] = ()
    while (got := worker.receive_nowait(ready)) is None:
        ready = wait_any([worker], deadline)
        if not ready:
            raise TimeoutError(f"{worker.name}: no batch for {timeout_s} s")
    return got


async def receive_async(worker: AnyWorker) -> tuple[Any, Any]:
    """Like ``receive``, from a coroutine and without a deadline."""
    ready: Collection[int] = ()
    while (got := worker.receive_nowait(ready)) is None:
        ready = await wait_any_async([worker])
    return got
