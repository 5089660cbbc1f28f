"""Of those who wait, the one that is needed first goes first."""

from __future__ import annotations

import asyncio

import pytest

from asyncloader.cache.fetch import Turns


async def test_the_first_of_each_lane_comes_before_the_second_of_any() -> None:
    turns, order = Turns(1), []

    async def read(lane: int, nth: int) -> None:
        async with turns.take(lane, 1):
            order.append((lane, nth))
            await asyncio.sleep(0)

    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        for lane in range(3):
            for nth in range(3):
                group.create_task(read(lane, nth))
    assert order == [(lane, nth) for nth in range(3) for lane in range(3)]


async def test_no_more_is_shared_out_than_there_is() -> None:
    turns, out, most = Turns(5), 0, 0

    async def read(share: int) -> None:
        nonlocal out, most
        async with turns.take(0, share):
            out += share
            most = max(most, out)
            await asyncio.sleep(0)
            out -= share

    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        for share in (1, 3, 2, 5, 1, 1, 4, 2):
            group.create_task(read(share))
    assert most == 5


async def test_a_large_share_is_not_kept_waiting_by_small_ones() -> None:
    turns, order = Turns(2), []

    async def read(share: int) -> None:
        async with turns.take(0, share):
            order.append(share)
            await asyncio.sleep(0)

    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        for share in (1, 2, 1, 1):
            group.create_task(read(share))
    assert order == [1, 2, 1, 1]


@pytest.mark.parametrize("in_its_turn", [False, True])
async def test_who_is_cancelled_keeps_nobody_waiting(in_its_turn: bool) -> None:
    turns = Turns(1)

    async def read() -> None:
        async with turns.take(0, 1):
            pass

    async with asyncio.timeout(5):
        async with turns.take(0, 1):
            first, second = asyncio.ensure_future(read()), asyncio.ensure_future(read())
            await asyncio.sleep(0)
            if not in_its_turn:
                first.cancel()
        first.cancel()  # its turn has come by now, if it was not cancelled before
        with pytest.raises(asyncio.CancelledError):
            await first
        await second
        await read()
