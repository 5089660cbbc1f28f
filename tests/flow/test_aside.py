"""Blocking work beside an event loop."""

from __future__ import annotations

import asyncio
import threading

import pytest

from asyncloader import testing
from asyncloader.flow.engine import run_in_thread


def test_the_loop_goes_on_and_the_thread_is_gone_when_it_returns() -> None:
    names, goes_on = [], threading.Event()

    def work() -> None:
        names.append(threading.current_thread().name)
        assert goes_on.wait(10), "the loop is held up"

    async def main() -> None:
        asyncio.get_running_loop().call_soon(goes_on.set)
        await run_in_thread(work, "asyncloader-work")
        assert "asyncloader-work" not in {thread.name for thread in threading.enumerate()}

    with testing.check_leaks():
        asyncio.run(main())
    assert names == ["asyncloader-work"]


def test_what_it_raises_is_raised() -> None:
    def work() -> None:
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        asyncio.run(run_in_thread(work, "asyncloader-work"))


@pytest.mark.parametrize("fails", [False, True])
def test_a_cancellation_waits_for_its_end_however_often_it_is_cancelled(fails: bool) -> None:
    began, end, ended = threading.Event(), threading.Event(), []

    def work() -> None:
        began.set()
        end.wait(10)
        ended.append(True)
        if fails:
            raise OSError("no room")

    async def main() -> None:
        task = asyncio.ensure_future(run_in_thread(work, "asyncloader-work"))
        await asyncio.to_thread(began.wait, 10)
        for _ in range(2):
            task.cancel()
            await asyncio.sleep(0.01)
        assert not task.done()
        end.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended

    with testing.check_leaks():
        asyncio.run(main())
