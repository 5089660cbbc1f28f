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

__all__ = ["aiohttp_parts", "aiohttp_tar", "curl", "memcpy", "obstore_parts", "obstore_tar", "page_cache"]

PART_BYTES, AT_ONCE = 8 << 20, 16
#: Of whole shards, which together are as much as all parts are.
SHARDS_AT_ONCE = 4

#: Gives the bytes of a shard from one position to another.
Fetch = Callable[[str, int, int], Awaitable[memoryview]]
Client = Callable[[Source], AbstractAsyncContextManager[Fetch]]


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
    yield uvloop.run(_fetch_parts(source, _aiohttp_client))


def obstore_parts(source: Source) -> Iterator[int]:
    """Parts of 8 MiB, 16 at once."""
    yield uvloop.run(_fetch_parts(source, _obstore_client))


def aiohttp_tar(source: Source) -> Iterator[int]:
    """Shards of which a thread copies the members as they come, 4 at once, under uvloop."""
    yield uvloop.run(_fetch_members(source, _aiohttp_client))


def obstore_tar(source: Source) -> Iterator[int]:
    """Shards of which a thread copies the members as they come, 4 at once."""
    yield uvloop.run(_fetch_members(source, _obstore_client))


@asynccontextmanager
async def _aiohttp_client(source: Source) -> AsyncIterator[Fetch]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=AT_ONCE)) as session:

        async def fetch(name: str, start: int, stop: int) -> memoryview:
            asked = {"Range": f"bytes={start}-{stop - 1}"}
            async with session.get(f"{source.base}/{name}", headers=asked) as response:
                return memoryview(await response.read())

        yield fetch


@asynccontextmanager
async def _obstore_client(source: Source) -> AsyncIterator[Fetch]:
    store = obstore.store.from_url(source.base, client_options={"allow_http": True})

    async def fetch(name: str, start: int, stop: int) -> memoryview:
        return memoryview(await obstore.get_range_async(store, name, start=start, end=stop))

    yield fetch


async def _fetch_parts(source: Source, client: Client) -> int:
    async def fetch_part(fetch: Fetch, name: str, start: int, stop: int) -> int:
        async with turns:
            return len(await fetch(name, start, stop))

    turns = asyncio.Semaphore(AT_ONCE)
    async with client(source) as fetch, asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(fetch_part(fetch, name, start, min(start + PART_BYTES, size)))
            for name, size in _sizes(source).items()
            for start in range(0, size, PART_BYTES)
        ]
    return sum(task.result() for task in tasks)


async def _fetch_members(source: Source, client: Client) -> int:
    async def fetch_shard(fetch: Fetch, name: str, size: int) -> int:
        async with turns:
            return await asyncio.to_thread(_cut, await fetch(name, 0, size))

    turns = asyncio.Semaphore(SHARDS_AT_ONCE)
    async with client(source) as fetch, asyncio.TaskGroup() as group:
        tasks = [group.create_task(fetch_shard(fetch, *shard)) for shard in _sizes(source).items()]
    return sum(task.result() for task in tasks)


def _cut(tar: memoryview) -> int:
    """Copy the members of a tar that has plain headers alone; how long they are together."""
    at = total = 0
    while tar[at]:
        size = int(bytes(tar[at + 124 : at + 135]), 8)
        at += 512
        total += len(bytes(tar[at : at + size]))
        at += -(-size // 512) * 512
    return total


def _sizes(source: Source) -> dict[str, int]:
    return {name: os.path.getsize(f"{source.folder}/{name}") for name in source.names}
