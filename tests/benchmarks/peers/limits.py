"""What the machine gives without any loader: each yields how many bytes came, and does nothing with them."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import aiohttp
import numpy as np
import obstore.store
import uvloop

from .corpora import BODY_BYTES
from .given import Source

__all__ = ["aiohttp_parts", "curl", "memcpy", "obstore_parts", "page_cache"]

PART_BYTES, AT_ONCE = 8 << 20, 16

#: Gives the bytes of a shard from one position to another.
Fetch = Callable[[str, int, int], Awaitable[int]]


def page_cache(source: Source) -> Iterator[int]:
    """Files that are in memory, read into one buffer again and again."""
    buffer = memoryview(bytearray(PART_BYTES))
    for url in source.urls:
        with open(url, "rb", buffering=0) as file:
            while count := file.readinto(buffer):
                yield count


def memcpy(source: Source) -> Iterator[int]:
    """From one buffer into another."""
    here, there = np.ones(PART_BYTES, np.uint8), np.zeros(PART_BYTES, np.uint8)
    for _ in range(-(-source.samples * BODY_BYTES // PART_BYTES)):
        there[:] = here
        yield PART_BYTES


def curl(source: Source) -> Iterator[int]:
    """One after another over one connection."""
    command = ["curl", "--silent", "--fail", "--write-out", "%{size_download}\n"]
    for url in source.urls:
        command += ["--output", "/dev/null", url]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=300).stdout
    yield from map(int, printed.split())


def aiohttp_parts(source: Source) -> Iterator[int]:
    """Parts of 8 MiB, 16 at once, under uvloop."""

    @asynccontextmanager
    async def client() -> AsyncIterator[Fetch]:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=AT_ONCE)) as session:

            async def fetch(name: str, start: int, stop: int) -> int:
                asked = {"Range": f"bytes={start}-{stop - 1}"}
                async with session.get(f"{source.base}/{name}", headers=asked) as response:
                    return len(await response.read())

            yield fetch

    yield uvloop.run(_fetch_all(_sizes(source), client()))


def obstore_parts(source: Source) -> Iterator[int]:
    """Parts of 8 MiB, 16 at once."""

    @asynccontextmanager
    async def client() -> AsyncIterator[Fetch]:
        store = obstore.store.from_url(source.base, client_options={"allow_http": True})

        async def fetch(name: str, start: int, stop: int) -> int:
            return len(await obstore.get_range_async(store, name, start=start, end=stop))

        yield fetch

    yield uvloop.run(_fetch_all(_sizes(source), client()))


def _sizes(source: Source) -> dict[str, int]:
    return {name: os.path.getsize(f"{source.folder}/{name}") for name in source.names}


async def _fetch_all(sizes: dict[str, int], client: AbstractAsyncContextManager[Fetch]) -> int:
    turns = asyncio.Semaphore(AT_ONCE)

    async def fetch_in_turn(fetch: Fetch, name: str, start: int) -> int:
        async with turns:
            return await fetch(name, start, min(start + PART_BYTES, sizes[name]))

    async with client as fetch, asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(fetch_in_turn(fetch, name, start))
            for name, size in sizes.items()
            for start in range(0, size, PART_BYTES)
        ]
    return sum(task.result() for task in tasks)
