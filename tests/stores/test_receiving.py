"""Bodies as they come from aiohttp's transport, and that its private names are in one file."""

from __future__ import annotations

import ast
import asyncio
import random
import ssl
import tomllib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import aiohttp
import pytest
import uvloop
from aiohttp.client_proto import ResponseHandler
from certificates import self_signed

import asyncloader
from asyncloader.stores.failures import TransientError
from asyncloader.stores.http.aiohttp_private import HEAD_BYTES, BodyReceiver, has_length
from asyncloader.stores.store import BUFFER_BYTES
from asyncloader.types import Buffer

Run: TypeAlias = Callable[[Coroutine[Any, Any, None]], None]
Answer: TypeAlias = Callable[[asyncio.StreamWriter], Awaitable[object]]

BODY = random.Random(1).randbytes(2 * BUFFER_BYTES + 12_345)

# What the engine runs on, and what it runs on where uvloop is not installed.
both_loops = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


@dataclass
class Served:
    """A server, and what it has seen."""

    url: str = ""
    connections: int = 0
    #: An item for each connection that has ended.
    ends: asyncio.Queue[None] = field(default_factory=asyncio.Queue)


@asynccontextmanager
async def serving(answer: Answer, tls: ssl.SSLContext | None = None) -> AsyncIterator[Served]:
    """A server that gives ``answer`` to each request, on connections that stay open."""
    served = Served()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.connections += 1
        with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while not writer.is_closing():
                await reader.readuntil(b"\r\n\r\n")
                await answer(writer)
            await writer.wait_closed()
        served.ends.put_nowait(None)
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=tls)
    scheme = "http" if tls is None else "https"
    served.url = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}/x"
    try:
        yield served
    finally:
        server.close()


async def send_body(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(BODY))
    writer.write(BODY)
    await writer.drain()


@asynccontextmanager
async def session(tls: ssl.SSLContext | bool = True) -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.TCPConnector(ssl=tls)
    async with aiohttp.ClientSession(
        connector=connector, read_bufsize=HEAD_BYTES, auto_decompress=False
    ) as opened:
        yield opened


@asynccontextmanager
async def body_of(client: aiohttp.ClientSession, url: str) -> AsyncIterator[AsyncIterator[Buffer]]:
    async with client.get(url) as response:
        if has_length(response):
            yield BodyReceiver(response, "x", 0, response.content_length or 0)
        else:
            yield response.content.iter_chunked(1 << 18)


@both_loops
@pytest.mark.parametrize("is_secure", [False, True], ids=["plain", "TLS"])
def test_bodies_come_whole_and_one_after_the_other_on_one_connection(
    run: Run, is_secure: bool, tmp_path: Path
) -> None:
    tls = self_signed(tmp_path) if is_secure else None

    async def main() -> None:
        async with serving(send_body, tls) as served, session(tls=False) as client:
            for _ in range(4):
                async with body_of(client, served.url) as chunks:
                    assert b"".join([bytes(chunk) async for chunk in chunks]) == BODY
            assert served.connections == 1

    run(main())


CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n" + b"%x\r\n%b\r\n" % (len(BODY), BODY) + b"0\r\n\r\n"


@both_loops
@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\n" + CHUNKED,
        b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + BODY,
        b"HTTP/1.0 200 OK\r\n\r\n" + BODY,
        b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY,
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY,
    ],
    ids=["chunked", "up to the end", "HTTP/1.0 up to the end", "HTTP/1.0", "encoded"],
)
def test_bodies_of_any_framing_come_as_they_are(run: Run, answer: bytes) -> None:
    async def send(writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        await writer.drain()
        writer.close()

    async def main() -> None:
        async with (
            serving(send) as served,
            session() as client,
            body_of(client, served.url) as chunks,
        ):
            assert b"".join([bytes(chunk) async for chunk in chunks]) == BODY

    run(main())


@both_loops
def test_what_is_held_never_changes(run: Run) -> None:
    async def main() -> None:
        held = []
        async with serving(send_body) as served, session() as client:
            for turn in range(12):
                offset = 0
                async with body_of(client, served.url) as chunks:
                    async for chunk in chunks:
                        if turn % 4 == 0:
                            held.append((chunk, offset))
                        offset += len(chunk)
                        del chunk
                assert offset == len(BODY)
        assert all(chunk == BODY[offset : offset + len(chunk)] for chunk, offset in held)

    run(main())


@both_loops
@pytest.mark.parametrize("is_reset", [False, True])
def test_a_cut_body_raises_behind_its_last_byte(run: Run, is_reset: bool) -> None:
    sent = BUFFER_BYTES + 1000

    async def send(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY[:sent])
        await writer.drain()
        if is_reset:
            await asyncio.sleep(0.1)
            writer.transport.abort()
        else:
            writer.close()

    async def main() -> None:
        got = b""
        async with serving(send) as served, session() as client:
            with pytest.raises(TransientError) as caught:
                async with body_of(client, served.url) as chunks:
                    async for chunk in chunks:
                        got += chunk
        assert BODY.startswith(got)
        assert (caught.value.shard, caught.value.offset) == ("x", len(got))
        if not is_reset:
            assert len(got) == sent

    run(main())


@both_loops
def test_a_body_that_is_cancelled_leaves_nothing(run: Run) -> None:
    async def send(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY[:-1])
        await writer.drain()

    async def main() -> None:
        got = asyncio.Event()

        async def read() -> None:
            size = 0
            async with body_of(client, served.url) as chunks:
                async for chunk in chunks:
                    size += len(chunk)
                    if size == len(BODY) - 1:
                        got.set()

        async with serving(send) as served, session() as client:
            reading = asyncio.create_task(read())
            await got.wait()
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            async with asyncio.timeout(5):
                await served.ends.get()

    run(main())


@both_loops
def test_a_body_that_nobody_takes_stops_its_server(run: Run) -> None:
    pieces = 256
    sent = 0

    async def send(writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (pieces << 20))
        for _ in range(pieces):
            writer.write(bytes(1 << 20))
            await writer.drain()
            sent += 1

    async def main() -> None:
        async with (
            serving(send) as served,
            session() as client,
            body_of(client, served.url) as chunks,
        ):
            size = len(await anext(chunks))
            while size < 1 << 20:
                size += len(await anext(chunks))
            before = -1
            while before != sent:  # until nothing moves any more
                before = sent
                await asyncio.sleep(0.2)
            assert sent < pieces // 2
            async for chunk in chunks:
                size += len(chunk)
            assert size == pieces << 20

    run(main())


@both_loops
def test_a_connection_that_brings_more_than_was_promised_is_not_used_again(run: Run) -> None:
    async def send(writer: asyncio.StreamWriter) -> None:
        await send_body(writer)
        writer.write(b"and more")
        await writer.drain()

    async def main() -> None:
        async with serving(send) as served, session() as client:
            for _ in range(3):
                async with body_of(client, served.url) as chunks:
                    assert b"".join([bytes(chunk) async for chunk in chunks]) == BODY
                async with asyncio.timeout(5):
                    await served.ends.get()
            assert served.connections == 3

    run(main())


#: The modules that aiohttp documents, or whose names it has at its top.
DOCUMENTED = {"aiohttp", "aiohttp.abc", "aiohttp.web", "aiohttp.hdrs"}


def test_what_aiohttp_does_not_document_is_in_one_file_and_there() -> None:
    package = Path(asyncloader.__file__).parent
    found: dict[str, set[str]] = {}
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = {node.module or ""} if isinstance(node, ast.ImportFrom) and not node.level else set()
            names |= {alias.name for alias in node.names} if isinstance(node, ast.Import) else set()
            odd = {name for name in names if name.split(".")[0] == "aiohttp"} - DOCUMENTED
            if odd:
                found.setdefault(path.name, set()).update(odd)
    assert found == {"aiohttp_private.py": {"aiohttp.client_proto", "aiohttp.http_exceptions"}}
    assert callable(ResponseHandler.set_response_params)
    assert callable(aiohttp.StreamReader.feed_eof)
    assert isinstance(aiohttp.ClientResponse.connection, property)


def test_a_release_of_aiohttp_that_may_lack_them_is_not_installed() -> None:
    project = tomllib.loads((Path(asyncloader.__file__).parents[1] / "pyproject.toml").read_text())
    (bound,) = [each for each in project["project"]["dependencies"] if each.startswith("aiohttp")]
    assert bound == "aiohttp>=3.11,<4"
