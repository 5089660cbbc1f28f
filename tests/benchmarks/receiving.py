"""What a byte costs from a socket to whoever takes it: the store beside aiohttp, obstore and a socket.

    python tests/benchmarks/receiving.py [--rounds 5]

1 GB from nginx on loopback in ranges, four at a time, nothing kept of it; each side in a fresh process, in
turn. Processor time is of the whole process; the socket reads whole files into one buffer, one by one.
"""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

from _corpus import SHARDS, write_shards
from _measure import machine, parser_of, run_fresh

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

PART_BYTES = 4 << 20
AT_A_TIME = 4


async def read_parts(read: Callable[[str, int, int], Awaitable[int]], size: int) -> int:
    """All shards in parts; gives how many bytes came."""
    turns = asyncio.Semaphore(AT_A_TIME)

    async def one(name: str, start: int) -> int:
        async with turns:
            return await read(name, start, min(start + PART_BYTES, size))

    parts = [(f"train-{shard:03d}.tar", at) for shard in range(SHARDS) for at in range(0, size, PART_BYTES)]
    return sum(await asyncio.gather(*(one(*part) for part in parts)))


async def asyncloader_store(base: str, size: int) -> int:
    """This library's store for HTTP."""
    from asyncloader.stores.http.client import HttpStore

    async with HttpStore.open() as store:

        async def read(name: str, start: int, stop: int) -> int:
            async with store.read(f"{base}/{name}", start, stop) as body:
                return sum([len(chunk) async for chunk in body.chunks])

        return await read_parts(read, size)


async def bare_aiohttp(base: str, size: int) -> int:
    """aiohttp's session, and what its reader has."""
    import aiohttp

    async with aiohttp.ClientSession(auto_decompress=False) as session:

        async def read(name: str, start: int, stop: int) -> int:
            headers = {"Range": f"bytes={start}-{stop - 1}"}
            async with session.get(f"{base}/{name}", headers=headers) as response:
                return sum([len(chunk) async for chunk in response.content.iter_any()])

        return await read_parts(read, size)


async def bare_obstore(base: str, size: int) -> int:
    """obstore, a range in one piece."""
    import obstore
    from obstore.store import HTTPStore

    store = HTTPStore.from_url(base, client_options={"allow_http": True})

    async def read(name: str, start: int, stop: int) -> int:
        return len(await obstore.get_range_async(store, name, start=start, end=stop))

    return await read_parts(read, size)


async def bare_socket(base: str, size: int) -> int:
    """Nothing but the system's calls."""
    place = urlsplit(base)
    buffer = memoryview(bytearray(1 << 20))
    total = 0
    with socket.create_connection((place.hostname, place.port)) as connection:
        for shard in range(SHARDS):
            connection.sendall(b"GET /train-%03d.tar HTTP/1.1\r\nHost: h\r\n\r\n" % shard)
            count = connection.recv_into(buffer)
            got = count - bytes(buffer[:count]).index(b"\r\n\r\n") - 4
            while got < size:
                got += connection.recv_into(buffer)
            total += got
    return total


SIDES: dict[str, Callable[[str, int], Awaitable[int]]] = {
    each.__name__: each for each in (asyncloader_store, bare_aiohttp, bare_obstore, bare_socket)
}


def measure(side: str, base: str, size: int) -> None:
    """One pass, in this process; prints a line of JSON."""
    import aiohttp  # noqa: F401 - to import them is no part of it
    import obstore  # noqa: F401
    import uvloop

    import asyncloader.stores.http.client  # noqa: F401

    before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    total = uvloop.run(SIDES[side](base, size))
    took_s, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    assert total == size * SHARDS, f"{total} bytes"
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(
        json.dumps(
            {
                "mb_s": total / 1e6 / took_s,
                "cpu_us": cpu_s * 1e12 / total,
                "faults": (after.ru_minflt - before.ru_minflt) * 1e6 / total,
            }
        )
    )


def rows(base: str, size: int, rounds: int) -> Iterator[str]:
    """The table's."""
    runs = [{side: run_fresh(__file__, side, base, str(size)) for side in SIDES} for _ in range(rounds)]
    for side in SIDES:
        middle = {key: statistics.median(run[side][key] for run in runs) for key in runs[0][side]}
        name = side.replace("_", " ")
        yield f"| {name} | {middle['mb_s']:,.0f} | {middle['cpu_us']:,.0f} | {middle['faults']:,.0f} |"


def main() -> None:
    options = parser_of(__doc__, rounds=5, measured=("SIDE", "BASE", "SIZE")).parse_args()
    if options.measure:
        measure(options.measure[0], options.measure[1], int(options.measure[2]))
        return
    from servers import run_nginx

    print(f"{machine()}\n\n| | MB/s | processor time, us a MB | page faults a MB |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as directory:
        write_shards(Path(directory))
        with run_nginx(Path(directory)) as base:
            for row in rows(base, Path(directory, "train-000.tar").stat().st_size, options.rounds):
                print(row, flush=True)


if __name__ == "__main__":
    main()
