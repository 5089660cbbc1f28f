"""Reads through the cache, cancelled wherever they wait."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from asyncloader import testing
from asyncloader.cache.fetch import Cache
from asyncloader.cache.store import CachedStore
from asyncloader.flow.budget import Budget
from asyncloader.flow.engine import Engine, EngineStopped, Scope
from asyncloader.observe.statistics import NetworkCounts
from asyncloader.stores.http.client import HttpStore
from asyncloader.stores.store import Access

CONTENT = os.urandom(3_000_000)
Serve = Callable[..., testing.Server]


class _End(Exception):
    """Leaves a scope, which cancels what was started in it."""


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def read_all(store: CachedStore, url: str) -> bytes:
    content = bytearray()
    async with store.read(url, 0, 1 << 20) as body:
        async for chunk in body.chunks:
            content += chunk
    async with store.read(url, 1 << 20, 1 << 30, etag=body.etag) as rest:
        async for chunk in rest.chunks:
            content += chunk
    return bytes(content)


async def test_reading_can_be_cancelled_at_every_await(
    serve: Serve, new_run: Any, kept: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, setting = serve({"x": CONTENT}), new_run()
    url, budget = server.url_of("x"), Budget(128 << 20, [0])
    await asyncio.to_thread(int)  # the loop's first thread
    steps = finished = 0
    async with HttpStore.open() as http:
        async with testing.check_leaks(allow=lambda left: "asyncio_" in left or "socket" in left):
            before = descriptors()
            while finished < 2:
                with suppress(_End, EngineStopped):
                    scope = Scope()  # left before the cache, as an engine's is
                    engine = Engine()  # only what it runs and closes is used: the loop is the test's
                    monkeypatch.setattr(engine, "submit", scope.start)
                    async with engine.resources, scope:
                        cache = Cache(Access(cache=setting), engine, NetworkCounts(), budget)
                        reading = asyncio.create_task(read_all(CachedStore(http, cache, 0), url))
                        for _ in range(steps):
                            await asyncio.sleep(0.0002)
                        finished = finished + 1 if reading.done() else 0
                        reading.cancel()
                        await asyncio.wait([reading])
                        if not reading.cancelled():
                            assert reading.result() == CONTENT
                        raise _End
                for path in kept("shards"):
                    path.unlink()
                steps += 1
                assert steps < 2000
            assert server.wait_idle(5)
        assert descriptors() < before + 20  # sockets of the session
    assert not kept("filling") and not kept("quarantine")
