"""Pauses and alarms, on both kinds of loop."""

from __future__ import annotations

import asyncio
import time

import pytest
from waiting import AT_ONCE_S

from asyncloader.flow.engine import Alarm, pause


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


def test_an_alarm_bears_waits_too_short_for_a_timer_on_uvloop_too() -> None:
    import uvloop

    async def play() -> int:
        rung: list[None] = []
        alarm = Alarm(lambda: rung.append(None))
        alarm.begin(0.0001)
        alarm.end()
        alarm.begin(0.00001)
        await asyncio.sleep(0.02)
        alarm.close()
        return len(rung)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(play()) == 1


async def test_an_alarm_rings_once_for_a_wait_that_lasts() -> None:
    rung: list[float] = []
    alarm = Alarm(lambda: rung.append(time.monotonic()))
    alarm.begin(0.02)
    await asyncio.sleep(0.08)
    assert len(rung) == 1
    alarm.close()


async def test_an_alarm_is_silent_about_waits_that_end_in_time() -> None:
    rung: list[None] = []
    alarm = Alarm(lambda: rung.append(None))
    for _ in range(20):  # 0.1 s in all, twice the bound of each
        alarm.begin(0.05)
        await asyncio.sleep(0.005)
        alarm.end()
    await asyncio.sleep(0.1)
    assert rung == []
    alarm.close()


async def test_an_alarm_looks_in_time_at_a_wait_that_is_shorter_than_the_one_before() -> None:
    rung: list[None] = []
    alarm = Alarm(lambda: rung.append(None))
    alarm.begin(60)
    alarm.end()
    alarm.begin(0.01)
    await asyncio.sleep(0.05)
    assert rung == [None]
    alarm.close()


async def test_a_closed_alarm_never_rings() -> None:
    rung: list[None] = []
    alarm = Alarm(lambda: rung.append(None))
    alarm.begin(0.01)
    alarm.close()
    await asyncio.sleep(0.03)
    assert rung == []
