"""Blocking work on a thread of its own, for a coroutine that waits for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future

__all__ = ["run_aside"]


async def run_aside(work: Callable[[], None], name: str) -> None:
    """Run ``work`` while the event loop goes on; returns when it has ended, and so has its thread.

    A thread cannot be stopped: if cancelled, this waits for the end of ``work`` first, which has to be near.
    The loop's own pool is not used, since that keeps its thread when the work is done.

    Args:
        work: What to do, in some seconds at most.
        name: Of the thread.

    Raises:
        Exception: What ``work`` raised.
    """
    done = Future[None]()
    done.set_running_or_notify_cancel()
    # No daemon: at the interpreter's end what was begun is finished.
    thread = threading.Thread(target=_run, args=(work, done), name=name)
    thread.start()
    waiting, cancelled = asyncio.wrap_future(done), None
    while not waiting.done():
        try:
            await asyncio.wait([waiting])
        except asyncio.CancelledError as error:
            cancelled = error
    thread.join()  # it has nothing left to do
    if cancelled is not None:
        waiting.exception()  # seen: the cancellation is what is told
        raise cancelled
    waiting.result()


def _run(work: Callable[[], None], done: Future[None]) -> None:
    try:
        work()
    except BaseException as error:
        done.set_exception(error)
        del done  # the error's traceback holds this frame
    else:
        done.set_result(None)
