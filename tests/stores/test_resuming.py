"""What goes away when asked again is not seen by anybody above; what does not is told as what it is."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import pytest

from asyncloader import testing
from asyncloader.errors import StoreError
from asyncloader.observe.statistics import NetworkCounts
from asyncloader.stores.failures import TransientError
from asyncloader.stores.http.client import HttpStore
from asyncloader.stores.network import NetworkStore
from asyncloader.stores.pacing import RetryBudget
from asyncloader.stores.store import NetworkPolicy

CONTENT = random.Random(0).randbytes(300_000)
QUICK = NetworkPolicy(connect_s=0.3, first_byte_s=0.3, stall_s=0.3, backoff_s=0.02)

PASSING = {
    "cut": testing.CutAt(1000, times=3),
    "cut before the first byte": testing.CutAt(0, times=3),
    "reset": testing.Reset(1000, times=3),
    "stall": testing.Stall(1000, 60, times=2),
    "drip": testing.Drip(bytes_per_s=100, times=2),
    "no answer": testing.Delay(60, times=2),
    "hang-up": testing.HangUp(times=3),
    "500": testing.Status(500, times=3),
    "502": testing.Status(502, times=3),
    "503": testing.Status(503, times=3),
    "503 with Retry-After": testing.Status(503, retry_after=0.1, times=2),
    "429": testing.Status(429, retry_after="Thu, 01 Jan 1970 00:00:00 GMT", times=2),
    "another range": testing.WrongRange(shift=-5, times=2),
    "other bytes than said": testing.WrongLength(delta=7, times=2),
}


@pytest.fixture
def counts() -> NetworkCounts:
    return NetworkCounts()


@pytest.fixture
def resuming(http: HttpStore, counts: NetworkCounts) -> NetworkStore:
    return NetworkStore(http, QUICK, RetryBudget(), counts)


@pytest.mark.parametrize("span", [(0, 300_000), (0, 1 << 20), (1234, 250_000)], ids=str)
@pytest.mark.parametrize("fault", PASSING.values(), ids=PASSING)
async def test_a_fault_that_passes_is_not_seen(
    serve: Any, resuming: Any, fetch: Any, counts: NetworkCounts, fault: testing.Fault, span: tuple[int, int]
) -> None:
    server = serve({"x": CONTENT}, [fault])
    body, content = await fetch(resuming, server.url_of("x"), *span)
    assert content == CONTENT[slice(*span)]
    assert (body.start, body.total) == (span[0], len(CONTENT))
    hits = sum(bool(request.faults) for request in server.requests)
    # A connection that was kept alive and is found closed is tried once more by the client itself.
    assert (counts.retries > 0) == (hits > 0) and counts.retries <= hits
    assert await asyncio.to_thread(server.wait_idle, 1)


async def test_a_cut_body_is_resumed_at_the_last_good_byte(serve: Any, resuming: Any, fetch: Any) -> None:
    server = serve({"x": CONTENT}, [testing.CutAt(1000, times=2)])
    await fetch(resuming, server.url_of("x"), 0, len(CONTENT))
    assert [request.range for request in server.requests] == [
        "bytes=0-299999",
        "bytes=1000-299999",
        "bytes=2000-299999",
    ]


async def test_a_body_of_unknown_length_is_resumed_too(resuming: Any, fetch: Any, raw_server: Any) -> None:
    response = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nabcdef\r\n"
    async with raw_server(response) as (url, heads):
        with pytest.raises(StoreError, match="gave up after 6 attempts"):
            await fetch(resuming, url)
    assert [b"bytes=0-" in heads[0], *(b"bytes=5-" in head for head in heads[1:])] == [True] * 6


async def test_a_server_that_ignores_the_range_of_a_retry_gives_no_byte_twice(
    serve: Any, resuming: Any, fetch: Any
) -> None:
    server = serve({"x": CONTENT}, [testing.IgnoreRange(after=1), testing.CutAt(150_000, times=2)])
    _, content = await fetch(resuming, server.url_of("x"), 100_000, 290_000)
    assert content == CONTENT[100_000:290_000]


@pytest.mark.parametrize("cut", [700, 50_000, 100_000, 150_000])
async def test_more_than_was_asked_for_is_resumed_to_its_end(
    serve: Any, resuming: Any, fetch: Any, cut: int
) -> None:
    server = serve({"x": CONTENT}, [testing.IgnoreRange(times=1), testing.CutAt(cut, times=1)])
    _, content = await fetch(resuming, server.url_of("x"), 0, 100_000)
    assert content == CONTENT
    assert [request.range for request in server.requests] == ["bytes=0-99999", f"bytes={cut}-299999"]


@pytest.mark.parametrize("ending", ["cut", "stall"])
async def test_a_part_in_chunks_is_whole_when_its_bytes_are_there(
    serve: Any, resuming: Any, fetch: Any, raw_server: Any, counts: NetworkCounts, ending: str
) -> None:
    """The last, empty chunk says that it was all, which the range has said already."""
    head = b"HTTP/1.1 206 Partial Content\r\nTransfer-Encoding: chunked\r\nContent-Range: bytes 0-5/6\r\n\r\n"
    behind = b"HTTP/1.1 416 Range Not Satisfiable\r\nContent-Range: bytes */6\r\nContent-Length: 0\r\n\r\n"
    async with raw_server(head + b"6\r\nabcdef\r\n", behind, stays=ending == "stall") as (url, heads):
        _, content = await fetch(resuming, url, 0, 1 << 20)
    assert (content, len(heads), counts.retries) == (b"abcdef", 1, 0)


async def test_a_body_of_unknown_length_is_resumed_to_its_end_too(
    resuming: Any, fetch: Any, raw_server: Any
) -> None:
    cut = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nabcdef\r\n"
    rest = b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 5-11/12\r\nContent-Length: 7\r\n\r\nfghijkl"
    async with raw_server(cut, rest) as (url, _):
        _, content = await fetch(resuming, url, 0, 8)
    assert content == b"abcdefghijkl"


async def test_a_body_of_unknown_length_is_not_whole_because_the_object_has_shrunk(
    resuming: Any, fetch: Any
) -> None:
    """The server names no version, so that only the length can tell."""
    responses = [
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nabcdef\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc",
    ]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(responses.pop(0))
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(StoreError, match="had at least 6 bytes, now 3"):
            await fetch(resuming, f"http://127.0.0.1:{port}/x")


async def test_an_object_that_changes_before_a_retry_is_told_as_changed(
    serve: Any, resuming: Any, fetch: Any
) -> None:
    faults = [testing.CutAt(1000, times=1), testing.ChangeObject(b"y" * len(CONTENT), after=1)]
    server = serve({"x": CONTENT}, faults)
    with pytest.raises(StoreError, match="was changed while it was being read"):
        await fetch(resuming, server.url_of("x"), 0, len(CONTENT))


@pytest.mark.parametrize("code", [400, 401, 403, 404, 410])
async def test_what_asking_again_cannot_help_is_told_at_once(
    serve: Any, resuming: Any, fetch: Any, code: int
) -> None:
    server = serve({"x": CONTENT}, [testing.Status(code)])
    with pytest.raises(StoreError, match=str(code)):
        await fetch(resuming, server.url_of("x"))
    assert len(server.requests) == 1


async def test_a_fault_that_stays_is_given_up_with_the_number_of_attempts(
    serve: Any, resuming: Any, fetch: Any
) -> None:
    server = serve({"x": CONTENT}, [testing.Status(500)])
    with pytest.raises(StoreError, match=r"answered 500 .*; gave up after 6 attempts in \d") as caught:
        await fetch(resuming, server.url_of("x"), 10)
    assert len(server.requests) == 6
    assert (caught.value.status, caught.value.offset) == (500, 10)
    assert type(caught.value) is StoreError


async def test_a_cut_that_stays_tells_the_first_byte_that_could_not_be_had(
    serve: Any, resuming: Any, fetch: Any
) -> None:
    server = serve({"x": CONTENT}, [testing.CutAt(100)])
    with pytest.raises(StoreError, match="gave up") as caught:
        await fetch(resuming, server.url_of("x"), 0, len(CONTENT))
    assert caught.value.offset == 600


async def test_a_server_that_asks_for_a_long_rest_is_told_at_once(
    serve: Any, resuming: Any, fetch: Any
) -> None:
    server, began = serve({"x": CONTENT}, [testing.Status(503, retry_after=3600)]), time.monotonic()
    with pytest.raises(StoreError, match="the server asks to wait 3600 s"):
        await fetch(resuming, server.url_of("x"))
    assert time.monotonic() - began < 60  # and not 3600


async def test_errors_of_the_caller_pass_as_they_are(serve: Any, resuming: Any) -> None:
    server = serve({"x": CONTENT})
    with pytest.raises(TransientError, match="mine"):
        async with resuming.read(server.url_of("x"), 0, 10):
            raise TransientError("mine")
    assert len(server.requests) == 1
