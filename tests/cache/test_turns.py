"""Of those who wait, the one that is needed first goes first."""

from __future__ import annotations

import asyncio

import pytest

from asyncloader.cache.turns import Turns


async def test_the_first_of_each_lane_comes_before_the_second_of_any() -> None:
    turns, order = Turns(1), []

    async def read(lane: int, nth: int) -> None:
        async with turns.take(lane):
            order.append((lane, nth))
            await asyncio.sleep(0)

    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        for lane in range(3):
            for nth in range(3):
                group.create_task(read(lane, nth))
    assert order == [(lane, nth) for nth in range(3) for lane in range(3)]


async def test_no_more_are_in_than_may_be() -> None:
    turns, inside, most = Turns(2), 0, 0

    async def read() -> None:
        nonlocal inside, most
        async with turns.take(0):
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1

    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        for _ in range(9):
            group.create_task(read())
    assert most == 2


@pytest.mark.parametrize("in_its_turn", [False, True])
async def test_who_is_cancelled_keeps_nobody_waiting(in_its_turn: bool) -> None:
    turns = Turns(1)

    async def read() -> None:
        async with turns.take(0):
            pass

    async with asyncio.timeout(5):
        async with turns.take(0):
            first, second = asyncio.ensure_future(read()), asyncio.ensure_future(read())
            await asyncio.sleep(0)
            if not in_its_turn:
                first.cancel()
        first.cancel()  # its turn has come by now, if it was not cancelled before
        with pytest.raises(asyncio.CancelledError):
            await first
        await second
        await read()
