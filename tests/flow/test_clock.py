"""Pauses."""

from __future__ import annotations

import asyncio
import time

import pytest
from waiting import AT_ONCE_S

from asyncloader.flow.engine import pause


async def test_a_pause_lasts_as_long_as_told() -> None:
    began = time.monotonic()
    await pause(0.05)
    assert 0.045 <= time.monotonic() - began < AT_ONCE_S


async def test_a_pause_that_is_cancelled_as_it_ends_is_cancelled_in_silence() -> None:
    loop = asyncio.get_running_loop()
    told: list[object] = []
    loop.set_exception_handler(lambda _, context: told.append(context))
    for lateness in range(20):
        waiting = asyncio.ensure_future(pause(0.001))
        await asyncio.sleep(0)
        time.sleep(0.002)  # noqa: ASYNC251 - the timer is due when the loop looks again
        for _ in range(lateness % 3):
            await asyncio.sleep(0)
        loop.call_soon(waiting.cancel) if lateness % 2 else waiting.cancel()
        await asyncio.wait([waiting])
    assert told == []


async def test_a_cancelled_pause_leaves_no_timer() -> None:
    waiting = asyncio.ensure_future(pause(60))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert all(timer.cancelled() for timer in asyncio.get_running_loop()._scheduled)
