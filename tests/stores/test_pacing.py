"""How many requests are sent at a time: against a simulated store, and against one on a socket."""

from __future__ import annotations

import asyncio
import heapq
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncloader import testing
from asyncloader.observe.statistics import NetworkCounts
from asyncloader.stores.failures import ThrottledError
from asyncloader.stores.http.client import HttpStore
from asyncloader.stores.network import ResumingStore
from asyncloader.stores.pacing import ConcurrencyLimit, Hedges, Pace, PacedStore, RetryBudget
from asyncloader.stores.store import NetworkPolicy


def simulate(capacity: int, rounds: int, seed: int) -> tuple[float, float]:
    """Requests of random length at a store of hidden capacity: its utilisation, and the share refused."""
    draw, limit = random.Random(seed), ConcurrencyLimit()
    running: list[tuple[float, int]] = []
    now = busy = 0.0
    refused = halvings = answered = 0
    while answered < rounds:
        while len(running) < int(limit.limit):
            if len(running) >= capacity:
                refused += 1
                limit.throttled(len(running) + 1)
                halvings += 1
                break
            heapq.heappush(running, (now + draw.uniform(0.5, 1.5), halvings))
        ends, _ = heapq.heappop(running)
        busy += (len(running) + 1) * (ends - now)
        now = ends
        limit.answered(len(running) + 1)
        answered += 1
    return busy / now / capacity, refused / (refused + answered)


@given(st.integers(4, 200), st.integers())
@settings(deadline=None)
def test_the_window_settles_near_a_hidden_capacity_with_few_refusals(capacity: int, seed: int) -> None:
    used, refused = simulate(capacity, 300 * capacity, seed)
    assert used >= 0.8
    assert refused < 0.05


def test_the_window_halves_at_a_refusal_and_does_not_close() -> None:
    limit = ConcurrencyLimit()
    for _ in range(20):
        before = limit.limit
        limit.throttled(int(before))
        assert limit.limit == max(1.0, before / 2)
    assert limit.limit == 1


def test_the_window_does_not_grow_while_it_is_not_used() -> None:
    limit = ConcurrencyLimit()
    for _ in range(1000):
        limit.answered(3)
    assert limit.limit == ConcurrencyLimit.start


async def test_a_burst_of_refusals_halves_the_limit_once() -> None:
    pace = Pace()
    permits = [await pace.acquire() for _ in range(8)]
    for permit in permits:
        pace.throttled(permit, None)
    assert pace._limit.limit == 4


async def test_requests_are_let_in_in_their_order_and_a_cancelled_one_keeps_no_place() -> None:
    pace = Pace()
    permits = [await pace.acquire() for _ in range(8)]
    order: list[int] = []

    async def ask(number: int) -> None:
        permit = await pace.acquire()
        order.append(number)
        permit.release()

    waiting = [asyncio.ensure_future(ask(number)) for number in range(5)]
    await asyncio.sleep(0)
    waiting[1].cancel()
    permits[0].release()
    await asyncio.wait(waiting, timeout=5)
    assert order == [0, 2, 3, 4]
    for permit in permits:
        permit.release()
    assert pace._in_use == 0


async def test_a_request_that_is_cancelled_in_its_turn_gives_it_back() -> None:
    pace = Pace()
    permits = [await pace.acquire() for _ in range(8)]
    waiting = asyncio.ensure_future(pace.acquire())
    await asyncio.sleep(0)
    permits[0].release()  # its turn comes, and in the same moment it is cancelled
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert pace._in_use == 7


async def test_nobody_is_let_in_while_the_origin_asks_for_rest() -> None:
    pace, loop = Pace(), asyncio.get_running_loop()
    permit = await pace.acquire()
    began = loop.time()
    pace.throttled(permit, 0.1)
    permit.release()
    (await asyncio.wait_for(pace.acquire(), 5)).release()
    assert loop.time() - began >= 0.09


async def test_a_rest_that_nobody_will_wait_for_stops_nobody() -> None:
    pace = Pace(longest_rest_s=60)
    permit = await pace.acquire()
    pace.throttled(permit, 61)
    permit.release()
    waiting = asyncio.ensure_future(pace.acquire())
    await asyncio.sleep(0)
    assert waiting.done(), "the next request waits, though its answer would come too late"
    waiting.result().release()


@pytest.mark.parametrize("times", [None, 1], ids=["always", "the first time"])
async def test_a_body_that_ignores_the_range_holds_no_place(
    serve: Callable[..., testing.Server], http: HttpStore, times: int | None
) -> None:
    faults = [testing.IgnoreRange(times=times), testing.CutAt(1 << 20, times=1)]
    server = serve({"x": bytes(2 << 20)}, faults)
    counts, pace = NetworkCounts(), Pace()
    paced = PacedStore(http, pace, Hedges(counts, False), counts)
    store = ResumingStore(paced, NetworkPolicy(backoff_s=0.01), RetryBudget(), counts)
    got = 0
    async with store.read(server.url_of("x"), 0, 100) as body:
        assert body.stop == 2 << 20
        async for chunk in body.chunks:
            got += len(chunk)
            assert pace._in_use == 0
    assert (got, counts) == (2 << 20, NetworkCounts(requests=2, retries=1))


async def test_refusals_are_counted_and_free_their_place(serve: Any, http: HttpStore) -> None:
    server = serve({"x": b"x"}, [testing.Status(503, retry_after=0.05, times=1)])
    counts, pace = NetworkCounts(), Pace()
    store = PacedStore(http, pace, Hedges(counts, False), counts)
    with pytest.raises(ThrottledError):
        async with store.read(server.url_of("x"), 0, 1):
            pass
    assert (counts.throttled, pace._in_use) == (1, 0)
    async with store.read(server.url_of("x"), 0, 1) as body:
        assert body.total == 1
