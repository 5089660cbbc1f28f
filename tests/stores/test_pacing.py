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
from asyncloader.errors import StoreError
from asyncloader.observe.statistics import NetworkCounts
from asyncloader.stores.http.client import HttpStore
from asyncloader.stores.network import NetworkStore, RequestQueue
from asyncloader.stores.pacing import Pace, RetryBudget
from asyncloader.stores.store import NetworkPolicy


def simulate(capacity: int, rounds: int, seed: int) -> tuple[float, float]:
    """Requests of random length at a store of hidden capacity: its utilisation, and the share refused."""
    draw, pace = random.Random(seed), Pace()
    running: list[tuple[float, int]] = []
    now = busy = 0.0
    refused = answered = 0
    while answered < rounds:
        while pace.has_room:
            pace.in_use += 1
            if len(running) >= capacity:
                refused += 1
                pace.throttled(pace.halvings)
                pace.in_use -= 1
                break
            heapq.heappush(running, (now + draw.uniform(0.5, 1.5), pace.halvings))
        ends, _ = heapq.heappop(running)
        busy += (len(running) + 1) * (ends - now)
        now = ends
        pace.answered()
        pace.in_use -= 1
        answered += 1
    return busy / now / capacity, refused / (refused + answered)


@given(st.integers(4, 200), st.integers())
@settings(deadline=None)
def test_the_window_settles_near_a_hidden_capacity_with_few_refusals(capacity: int, seed: int) -> None:
    used, refused = simulate(capacity, 300 * capacity, seed)
    assert used >= 0.8
    assert refused < 0.05


def entered(in_use: int, limit: float = Pace.start, longest_rest_s: float = 60.0) -> Pace:
    """A pace with so many requests under way."""
    pace = Pace(longest_rest_s)
    pace.in_use, pace.limit = in_use, limit
    return pace


@pytest.mark.parametrize(
    ("in_use", "limit", "answers", "after"),
    [
        (8, 8.0, 1, 9.0),  # all of the limit was used: one more for each answer
        (7, 8.0, 1, 8.0),  # it was not reached
        (3, 8.0, 1000, 8.0),
        (9, 9.9, 1, 10.9),  # its whole part counts
        (256, 256.0, 5, 256.0),  # there is a most
    ],
)
def test_answers_raise_the_limit_that_is_reached(
    in_use: int, limit: float, answers: int, after: float
) -> None:
    pace = entered(in_use, limit)
    for _ in range(answers):
        pace.answered()
    assert pace.limit == after


@pytest.mark.parametrize(
    ("in_use", "limit", "after"),
    [
        (8, 8.0, 4.0),
        (20, 8.0, 4.0),  # requests from before the limit was halved do not count
        (3, 8.0, 1.5),  # so few were too many
        (1, 1.0, 1.0),  # it never closes
    ],
)
def test_a_refusal_halves_what_was_too_much(in_use: int, limit: float, after: float) -> None:
    pace = entered(in_use, limit)
    pace.throttled(0)
    assert (pace.limit, pace.halvings) == (after, 1)


def test_after_a_refusal_the_limit_grows_fast_to_nearly_what_was_too_much_and_then_slowly() -> None:
    pace = entered(100, 100.0)
    pace.throttled(0)
    limits = []
    for _ in range(45):
        pace.in_use = int(pace.limit)
        pace.answered()
        limits.append(pace.limit)
    assert limits[:3] == [51.0, 52.0, 53.0]
    assert limits[39] == 90.0
    assert limits[40] == pytest.approx(90 + 1 / 900)


@pytest.mark.parametrize(
    ("sent_after", "limits"),
    [([0] * 8, [4.0] * 8), ([0, 1, 0, 1], [4.0, 2.0, 2.0, 2.0])],
    ids=["a burst", "one of them sent after the first halving"],
)
def test_requests_that_were_sent_before_a_halving_do_not_halve_again(
    sent_after: list[int], limits: list[float]
) -> None:
    pace, seen = entered(8), []
    for halvings in sent_after:
        pace.throttled(halvings)
        seen.append(pace.limit)
    assert seen == limits


@pytest.mark.parametrize(
    ("asked", "until_s"),
    [
        ([(100.0, None)], None),
        ([(100.0, 0.0)], None),
        ([(100.0, 7.0)], 107.0),
        ([(100.0, 61.0)], None),  # nobody would wait so long
        ([(100.0, 7.0), (101.0, 3.0)], 107.0),  # the later end counts
        ([(100.0, 7.0), (101.0, 9.0)], 110.0),
    ],
)
def test_the_pause_that_an_origin_asks_for_lets_nobody_in(
    asked: list[tuple[float, float | None]], until_s: float | None
) -> None:
    pace = Pace(longest_rest_s=60.0)
    for now_s, retry_after_s in asked:
        pace.throttled(0, retry_after_s, now_s)
    assert pace.rests_until_s == until_s
    assert pace.has_room is (until_s is None)
    pace.rested(100.5)  # of a timer for a pause that was prolonged
    assert pace.has_room is (until_s is None)
    if until_s is not None:
        pace.rested(until_s)
    assert pace.has_room


async def test_requests_are_let_in_in_their_order_and_a_cancelled_one_keeps_no_place() -> None:
    pace = Pace()
    queue = RequestQueue(pace)
    for _ in range(8):
        await queue.enter()
    order: list[int] = []

    async def ask(number: int) -> None:
        await queue.enter()
        order.append(number)
        queue.leave()

    waiting = [asyncio.ensure_future(ask(number)) for number in range(5)]
    await asyncio.sleep(0)
    waiting[1].cancel()
    queue.leave()
    await asyncio.wait(waiting, timeout=5)
    assert order == [0, 2, 3, 4]
    for _ in range(7):
        queue.leave()
    assert pace.in_use == 0


async def test_a_request_that_is_cancelled_in_its_turn_gives_it_back() -> None:
    pace = Pace()
    queue = RequestQueue(pace)
    for _ in range(8):
        await queue.enter()
    waiting = asyncio.ensure_future(queue.enter())
    await asyncio.sleep(0)
    queue.leave()  # its turn comes, and in the same moment it is cancelled
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert pace.in_use == 7


async def test_nobody_is_let_in_while_the_origin_asks_for_rest() -> None:
    queue, loop = RequestQueue(Pace()), asyncio.get_running_loop()
    halvings = await queue.enter()
    began = loop.time()
    queue.throttled(halvings, 0.1)
    queue.leave()
    await asyncio.wait_for(queue.enter(), 5)
    assert loop.time() - began >= 0.09


async def test_a_rest_that_nobody_will_wait_for_stops_nobody() -> None:
    queue = RequestQueue(Pace(longest_rest_s=60))
    queue.throttled(await queue.enter(), 61)
    queue.leave()
    waiting = asyncio.ensure_future(queue.enter())
    await asyncio.sleep(0)
    assert waiting.done(), "the next request waits, though its answer would come too late"
    await waiting


@pytest.mark.parametrize("times", [None, 1], ids=["always", "the first time"])
async def test_a_body_that_ignores_the_range_holds_no_place(
    serve: Callable[..., testing.Server], http: HttpStore, times: int | None
) -> None:
    faults = [testing.IgnoreRange(times=times), testing.CutAt(1 << 20, times=1)]
    server, counts = serve({"x": bytes(2 << 20)}, faults), NetworkCounts()
    store = NetworkStore(http, NetworkPolicy(backoff_s=0.01), RetryBudget(), counts)
    got = 0
    async with store.read(server.url_of("x"), 0, 100) as body:
        assert body.stop == 2 << 20
        async for chunk in body.chunks:
            got += len(chunk)
            assert store.pace.in_use == 0
    assert (got, counts) == (2 << 20, NetworkCounts(requests=2, retries=1))


async def test_refusals_are_counted_and_free_their_place(serve: Any, http: HttpStore) -> None:
    server, counts = serve({"x": b"x"}, [testing.Status(503, retry_after=0.05, times=1)]), NetworkCounts()
    store = NetworkStore(http, NetworkPolicy(attempts=1), RetryBudget(), counts)
    with pytest.raises(StoreError, match="503"):
        async with store.read(server.url_of("x"), 0, 1):
            pass
    assert (counts.throttled, store.pace.in_use) == (1, 0)
    async with store.read(server.url_of("x"), 0, 1) as body:
        assert body.total == 1
