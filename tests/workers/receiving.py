"""Pools for the jobs of tests, and what a consumer of one worker does: wait for a batch, and take it."""

from __future__ import annotations

import inspect
import time
from typing import Any

from asyncloader.observe.stopwatch import Stopwatch
from asyncloader.workers.by_value import dumps_with_modules
from asyncloader.workers.pool import WorkerPool, wait_any, wait_any_async
from asyncloader.workers.worker import AnyWorker, Work

__all__ = ["RECEIVE", "pool_of", "receive", "receive_async"]


def pool_of(jobs: Any, **options: Any) -> WorkerPool:
    """A pool with a worker for each of these functions, which return iterators of ``(batch, note)``."""

    def run(number: int, _: None) -> Work:
        batches: Any = iter(jobs[number]())
        if not hasattr(batches, "close"):
            batches = (each for each in batches)
        return Work(batches, Stopwatch())

    pickled, buffers, _ = dumps_with_modules(run)
    return WorkerPool((pickled, buffers), [None] * len(jobs), **options)


#: ``pool_of`` and ``receive`` for scripts, which find nothing of the tests.
RECEIVE = f"""
from typing import Any
from asyncloader.observe.stopwatch import Stopwatch
from asyncloader.workers.by_value import dumps_with_modules
from asyncloader.workers.pool import WorkerPool, wait_any
from asyncloader.workers.worker import Work

def receive(worker):
    while (got := worker.receive_nowait()) is None:
        wait_any([worker], None)
    return got

{inspect.getsource(pool_of)}
"""


def receive(worker: AnyWorker, timeout_s: float | None = None) -> tuple[Any, Any]:
    """The next batch and its note, blocking this thread until it is there. TimeoutError behind that time."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while (got := worker.receive_nowait()) is None:
        if not wait_any([worker], deadline):
            raise TimeoutError(f"{worker.name}: no batch for {timeout_s} s")
    return got


async def receive_async(worker: AnyWorker) -> tuple[Any, Any]:
    """Like ``receive``, from a coroutine and without a deadline."""
    while (got := worker.receive_nowait()) is None:
        await wait_any_async([worker])
    return got
