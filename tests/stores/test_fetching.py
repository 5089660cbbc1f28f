"""Two requests that race for one part, step by step: what either of them does, no byte is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from asyncloader.errors import StoreError
from asyncloader.flow.budget import claim_alone
from asyncloader.flow.channel import Channel, EndOfChannel
from asyncloader.flow.engine import Scope
from asyncloader.observe.statistics import NetworkCounts
from asyncloader.stores.http.client import HttpStore
from asyncloader.stores.lookahead import Lookahead
from asyncloader.stores.pacing import Hedges
from asyncloader.stores.reading import Fetch

MiB = 1 << 20


@asynccontextmanager
async def held_server() -> AsyncIterator[tuple[str, asyncio.Queue[Callable[[bytes], None]]]]:
    """A server that hands over how to answer each request; it answers nothing by itself."""
    held: asyncio.Queue[Callable[[bytes], None]] = asyncio.Queue()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            held.put_nowait(writer.write)
            await reader.read()  # until the client leaves
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/x", held


@asynccontextmanager
async def fetching(
    http: HttpStore, counts: NetworkCounts
) -> AsyncIterator[tuple[Fetch, Channel[Any], asyncio.Queue[Callable[[bytes], None]]]]:
    """The first part of a shard on its way from such a server, and its bytes; it may be asked for twice."""
    hedges = Hedges(counts, True)
    for _ in range(20):
        hedges.answered(0.1)
    async with held_server() as (url, held), asyncio.timeout(10):
        lookahead = Lookahead([(url, 0)], claim_alone(8 * MiB))
        request = lookahead.next_part()
        assert request is not None
        shard, part = request
        chunks = Channel[Any](1)
        opened = partial(lookahead.opened, shard, part)
        fetch = Fetch(http, hedges, shard, part, opened, chunks.send_async)
        async with Scope() as scope:
            scope.start(fetch.run, chunks)
            yield fetch, chunks, held


async def test_the_error_of_a_request_that_leads_is_heard_though_the_other_has_not_gone_yet(
    http: HttpStore,
) -> None:
    async with fetching(http, NetworkCounts()) as (fetch, chunks, held):
        first = await held.get()
        fetch.hedge()
        await held.get()  # the second one, which is never answered
        # Three bytes of ten in one piece, and the end of the body: all of it is there to be read at once.
        first(
            b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-9/10\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
        )
        assert await chunks.receive_async() == b"abc"
        with pytest.raises(StoreError, match="ended at byte 3"):
            await chunks.receive_async()


async def test_a_server_that_ignores_ranges_is_not_asked_for_all_of_it_a_second_time(http: HttpStore) -> None:
    counts = NetworkCounts(requests=100)
    async with fetching(http, counts) as (fetch, chunks, held):
        first = await held.get()
        first(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\nabc" % (2 * MiB))
        received = len(await chunks.receive_async())
        fetch.hedge()
        assert counts.hedges == 0
        first(bytes(2 * MiB - 3))
        while received < 2 * MiB:
            received += len(await chunks.receive_async())


async def test_a_part_that_is_all_here_is_not_asked_for_a_second_time(http: HttpStore) -> None:
    async with fetching(http, NetworkCounts(requests=100)) as (fetch, chunks, held):
        first = await held.get()
        first(
            b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-2/3\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"
        )
        assert await chunks.receive_async() == b"abc"
        fetch.hedge()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await held.get()
        first(b"0\r\n\r\n")
        with pytest.raises(EndOfChannel):
            await chunks.receive_async()
