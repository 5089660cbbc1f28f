"""Servers to read from, and the reading itself, for all tests of stores."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from asyncloader import testing
from asyncloader.flow.budget import claim_alone
from asyncloader.flow.channel import Channel, EndOfChannel
from asyncloader.flow.engine import Engine
from asyncloader.observe.statistics import NetworkCounts
from asyncloader.stores.http.client import HttpStore
from asyncloader.stores.reading import ShardChunks, read_shards
from asyncloader.stores.router import Stores
from asyncloader.stores.store import Access, Body, NetworkPolicy, Store

#: What goes wrong is seen at once, by those who test how it is told.
ONCE = NetworkPolicy(attempts=1, hedge=False)


@pytest.fixture
def serve() -> Iterator[Callable[..., testing.Server]]:
    """``testing.serve``, until the test ends."""
    with ExitStack() as stack:
        yield lambda *args, **kwargs: stack.enter_context(testing.serve(*args, **kwargs))


@pytest.fixture
async def http() -> AsyncIterator[HttpStore]:
    async with HttpStore.open() as store:
        yield store


@pytest.fixture
def fetch() -> Callable[..., Awaitable[tuple[Body, bytes]]]:
    """Read one range to its end."""

    async def fetch(
        store: Store, url: str, start: int = 0, stop: int = 1 << 20, etag: str | None = None
    ) -> tuple[Body, bytes]:
        async with store.read(url, start, stop, etag=etag) as body:
            return body, b"".join([bytes(chunk) async for chunk in body.chunks])

    return fetch


@pytest.fixture
def raw_server() -> Callable[..., Any]:
    """A server that answers requests with these bytes in turn, the last ones ever after, and hangs up.

    Gives its URL and the heads seen. One that stays leaves it to the client to hang up.
    """

    @asynccontextmanager
    async def raw_server(*responses: bytes, stays: bool = False) -> AsyncIterator[tuple[str, list[bytes]]]:
        heads: list[bytes] = []

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(responses[min(len(heads), len(responses)) - 1])
            await writer.drain()
            if stays:
                await reader.read()
            writer.close()
            await writer.wait_closed()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", heads

    return raw_server


class Reading:
    """A running ``read_shards``, received from in the test's thread."""

    def __init__(
        self,
        shards: Sequence[tuple[str, int]],
        budget: int,
        options: Mapping[str, Any],
        network: NetworkPolicy,
    ) -> None:
        self.engine = Engine()
        self.counts = NetworkCounts()
        self.out = Channel[ShardChunks](1)
        self._shards, self._budget = shards, budget
        self._options, self._network = options, network

    def __enter__(self) -> Reading:
        self.engine.start()
        stores = Stores(self.engine.resources, Access(self._options, self._network), self.counts)
        budget = claim_alone(self._budget)
        work = partial(read_shards, stores, self._shards, budget, self.out)
        self.engine.submit(work, self.out)
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.stop()

    def next_shard(self) -> bytes:
        chunks = self.out.receive()
        content = bytearray()
        try:
            while True:
                content += chunks.receive()
        except EndOfChannel:
            return bytes(content)

    def all_shards(self) -> list[bytes]:
        contents = []
        try:
            while True:
                contents.append(self.next_shard())
        except EndOfChannel:
            return contents


@pytest.fixture
def reading() -> Callable[..., Reading]:
    def reading(
        shards: Sequence[str | tuple[str, int]],
        budget: int = 64 << 20,
        options: Mapping[str, Any] | None = None,
        network: NetworkPolicy = ONCE,
    ) -> Reading:
        pairs = [(shard, 0) if isinstance(shard, str) else shard for shard in shards]
        return Reading(pairs, budget, options or {}, network)

    return reading


@pytest.fixture
def shown() -> Callable[[BaseException], str]:
    """All messages that a traceback of the error would show."""

    def shown(error: BaseException) -> str:
        before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        return str(error) if before is None else f"{error}\n{shown(before)}"

    return shown


@pytest.fixture
def no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """None of the variables and files that clouds' clients look for."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-config"))
