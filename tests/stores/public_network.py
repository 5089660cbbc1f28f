"""A program for a network namespace of its own: redirects of a server with a public address, as JSON.

Run as ``python public_network.py``. What it prints maps each redirect, ``FROM -> TO``, to ``read`` or to
the message of the error.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack

from asyncloader.errors import StoreError
from asyncloader.stores.http.client import HttpStore

__all__ = ["HOSTS", "PUBLIC"]

PUBLIC = "93.184.216.34"
HOSTS = f"127.0.0.1 localhost inside.test\n{PUBLIC} public.test other.test\n"

_PORT = 8000
_FOUND = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"


async def serve(host: str, port: int, response: bytes) -> asyncio.Server:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(response)
        writer.close()

    return await asyncio.start_server(answer, host, port)


async def outcome(store: HttpStore, url: str) -> str:
    try:
        async with asyncio.timeout(10), store.read(url, 0, 3) as body:
            return "read" if b"".join([bytes(chunk) async for chunk in body.chunks]) == b"abc" else "wrong"
    except StoreError as error:
        return str(error)


async def main() -> None:
    outcomes = {}
    async with AsyncExitStack() as stack:
        for host in ("127.0.0.1", PUBLIC):
            await stack.enter_async_context(await serve(host, _PORT, _FOUND))
        store = await stack.enter_async_context(HttpStore.open())
        targets = ["127.0.0.1", "[::ffff:127.0.0.1]", "inside.test", "other.test", PUBLIC]
        for port, target in enumerate(targets, _PORT + 1):
            location = f"Location: http://{target}:{_PORT}/x?sig=SENTINEL"
            moved = f"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n{location}\r\n\r\n".encode()
            for host in (PUBLIC, "127.0.0.1"):
                await stack.enter_async_context(await serve(host, port, moved))
            for host in (PUBLIC, "public.test", "127.0.0.1", "inside.test"):
                outcomes[f"{host} -> {target}"] = await outcome(store, f"http://{host}:{port}/x")
    print(json.dumps(outcomes))


if __name__ == "__main__":
    asyncio.run(main())
