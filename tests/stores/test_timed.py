"""Requests that make no progress end in their time, and those that are only slow do not."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from waiting import AT_ONCE_S

from asyncloader import testing
from asyncloader.errors import StoreError
from asyncloader.observe.statistics import NetworkCounts
from asyncloader.stores.http.client import HttpStore
from asyncloader.stores.network import NetworkStore
from asyncloader.stores.pacing import RetryBudget
from asyncloader.stores.store import NetworkPolicy

IMPATIENT = NetworkPolicy(connect_s=0.1, first_byte_s=0.1, stall_s=0.2, stall_bytes=1000, attempts=1)


@pytest.fixture
def timed(http: HttpStore) -> NetworkStore:
    return NetworkStore(http, IMPATIENT, RetryBudget(), NetworkCounts())


async def test_a_server_that_does_not_answer_is_an_error_in_its_time(
    serve: Any, timed: Any, fetch: Any
) -> None:
    server = serve({"x": b"x"}, [testing.Delay(30)])
    began = time.monotonic()
    with pytest.raises(StoreError, match=r"did not answer within 0\.2 s") as caught:
        await fetch(timed, server.url_of("x"))
    assert caught.value.shard == server.url_of("x")
    assert 0.15 < time.monotonic() - began < AT_ONCE_S
    assert await asyncio.to_thread(server.wait_idle, 1)


@pytest.mark.parametrize(
    "fault", [testing.Stall(5000, 30), testing.Drip(bytes_per_s=100)], ids=["stall", "drip"]
)
async def test_a_body_without_progress_is_an_error_at_the_byte_it_stopped(
    serve: Any, timed: Any, fault: testing.Fault
) -> None:
    server, got = serve({"x": bytes(100_000)}, [fault]), 0
    began = time.monotonic()
    with pytest.raises(StoreError, match=r"fewer than 1000 bytes came in 0\.2 s") as caught:
        async with timed.read(server.url_of("x"), 0, 100_000) as body:
            async for chunk in body.chunks:
                got += len(chunk)
    assert caught.value.offset == got
    assert time.monotonic() - began < AT_ONCE_S
    assert await asyncio.to_thread(server.wait_idle, 1)


async def test_a_slow_body_that_goes_on_is_no_fault(serve: Any, timed: Any, fetch: Any) -> None:
    server = serve({"x": bytes(20_000)}, [testing.Drip(bytes_per_s=20_000)])
    _, content = await fetch(timed, server.url_of("x"))
    assert len(content) == 20_000


async def test_a_slow_consumer_is_no_stall(serve: Any, timed: Any) -> None:
    server, got = serve({"x": bytes(8 << 20)}), 0
    async with timed.read(server.url_of("x"), 0, 8 << 20) as body:
        async for chunk in body.chunks:
            if not got:
                await asyncio.sleep(0.5)  # more than the time without progress that a body is given
            got += len(chunk)
    assert got == 8 << 20


async def test_a_cancellation_passes_as_one(serve: Any, timed: Any, fetch: Any) -> None:
    server = serve({"x": bytes(10_000)}, [testing.Stall(5000, 30)])
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(fetch(timed, server.url_of("x")), 0.05)
    assert await asyncio.to_thread(server.wait_idle, 1)


async def test_time_outs_of_the_caller_stay_the_callers(serve: Any, timed: Any) -> None:
    server = serve({"x": b"abc"})
    with pytest.raises(TimeoutError, match="mine"):
        async with timed.read(server.url_of("x"), 0, 3):
            raise TimeoutError("mine")


async def test_a_time_out_of_the_users_callback_is_not_taken_for_the_servers(
    serve: Any, http: HttpStore, fetch: Any
) -> None:
    async def renew(url: str) -> str:
        raise TimeoutError("mine")

    server = serve({"x": b"abc"}, [testing.Status(403)])
    timed = NetworkStore(http, IMPATIENT, RetryBudget(), NetworkCounts(), renew=renew)
    with pytest.raises(TimeoutError, match="mine"):
        await fetch(timed, server.url_of("x"))
