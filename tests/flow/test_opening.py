"""What a thread opens has an owner at every moment."""

from __future__ import annotations

import asyncio
import threading

import pytest

from asyncloader.flow.engine import opened


async def begin(may_open: threading.Event, outcome: object) -> tuple[asyncio.Task[object], list[object]]:
    """A task that waits for what a thread opens as soon as it may, and what was closed."""

    def work() -> object:
        may_open.wait(10)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    closed: list[object] = []
    opening = asyncio.get_running_loop().run_in_executor(None, work)
    task = asyncio.ensure_future(opened(opening, closed.append))
    await asyncio.sleep(0)
    return task, closed


async def test_what_is_waited_for_is_given_and_left_open() -> None:
    may_open = threading.Event()
    task, closed = await begin(may_open, "file")
    may_open.set()
    assert (await task, closed) == ("file", [])


@pytest.mark.parametrize(("outcome", "expected"), [("file", ["file"]), (OSError("none"), [])])
async def test_what_opens_after_the_cancellation_is_closed(outcome: object, expected: list[object]) -> None:
    may_open = threading.Event()
    task, closed = await begin(may_open, outcome)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    may_open.set()
    await asyncio.get_running_loop().shutdown_default_executor()
    await asyncio.sleep(0)
    assert closed == expected
