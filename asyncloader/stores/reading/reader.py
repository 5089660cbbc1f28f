"""Shards read ahead in parts: many requests in flight, their bytes handed on in order.

A reader that falls behind stops the sockets; one that has to wait for late bytes has them asked for twice.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Protocol

from ..._flow.budget import Claim
from ..._flow.channel import Channel, EndOfChannel
from ..._flow.clock import Alarm
from ..._flow.engine import EngineStopped, Scope
from ...types import Buffer
from ..network.hedging import Hedges
from ..store import Body, Store
from .fetching import Fetch
from .lookahead import Lookahead, Part, Shard

__all__ = ["ShardChunks", "StoresByUrl", "read_shards"]

# Between loop and decoder: enough to decode from while the loop receives more, small enough to stay in
# the processor's cache.
_HANDOVER_BYTES = 2 << 20


class StoresByUrl(Protocol):
    """Gives the store of each URL; see ``router.Stores``."""

    async def of(self, url: str) -> Store:
        """The store that serves ``url``."""
        ...

    def hedges_of(self, url: str) -> Hedges | None:
        """What decides on hedges for ``url``; None where there is nothing to race against."""
        ...


class ShardChunks(Channel[Buffer]):
    """The bytes of one shard.

    Args:
        shard: Whose they are.
        capacity: How many of them may wait here.
    """

    def __init__(self, shard: Shard, capacity: int) -> None:
        super().__init__(capacity)
        self._shard = shard

    @property
    def total(self) -> int | None:
        """Length of the whole shard, known by its first chunk; None if the server does not tell it."""
        return self._shard.length

    @property
    def digests(self) -> Mapping[str, bytes]:
        """What the store promises of the whole shard; likewise. See ``Body``."""
        return self._shard.digests


async def read_shards(
    stores: StoresByUrl, shards: Iterable[tuple[str, int]], budget: Claim, out: Channel[ShardChunks]
) -> None:
    """Send one channel of chunks for each shard, in order; each ends as its shard ends.

    Args:
        stores: Where the URLs are opened.
        shards: Pairs of a URL and the byte offset to read it from; asked for one by one, on the loop.
        budget: Bounds what is requested and not yet taken by the receiver.
        out: Receives the shards' channels; closing it, or one of them, stops the reading.

    Raises:
        StoreError: Also ends the channel of the shard it happened in.
    """
    async with Scope() as scope:
        loop = asyncio.get_running_loop()
        reader = _Reader(stores, Lookahead(shards, budget), scope)
        budget.on_room = partial(_call_soon, loop, reader.on_room)
        try:
            await reader.run(out)
        finally:
            budget.close()
            reader.close()


def _call_soon(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:
        if not loop.is_closed():  # else the reader has gone with it
            raise


class _Reader:
    """Requests what the lookahead decides, and hands the answers on in order."""

    def __init__(self, stores: StoresByUrl, lookahead: Lookahead, scope: Scope) -> None:
        self._stores = stores
        self._lookahead = lookahead
        self._scope = scope
        self._fetches: dict[Part, Fetch] = {}
        self._closed = False
        self._has_room = asyncio.Event()
        self._late = Alarm(self._hedge)

    async def run(self, out: Channel[ShardChunks]) -> None:
        self.top_up()
        while self._lookahead.window:
            shard = self._lookahead.window[0]
            chunks = ShardChunks(shard, _HANDOVER_BYTES)
            await out.send_async(chunks)
            try:
                await self._hand_on(shard, chunks)
            except Exception as error:
                chunks.finish(error)
                raise
            except BaseException:
                # Cancelled: somebody may be blocked on these chunks in another thread.
                chunks.finish(EngineStopped())
                raise
            chunks.finish()
            self._lookahead.window.popleft()
            self.top_up()

    def close(self) -> None:
        self._closed = True
        self._late.close()

    def top_up(self) -> None:
        """Start every request that the budget allows."""
        while not self._closed and (request := self._lookahead.next_part()) is not None:
            shard, part = request
            self._scope.start(partial(self._fetch, shard, part), part.chunks)

    async def _hand_on(self, shard: Shard, chunks: ShardChunks) -> None:
        """Send the bytes of ``shard`` part by part, and free their budget as they go."""
        sent: deque[tuple[Part, int]] = deque()
        while shard.parts or shard.wants_part:
            if not shard.parts:  # other lanes hold what there is, and it is not this one's turn
                await self._wait_room()
                continue
            part = shard.parts[0]
            try:
                while True:
                    chunk = await self._next_chunk(part)
                    await chunks.send_async(chunk, len(chunk))
                    sent.append((part, len(chunk)))
                    del chunk
                    # What still waits to be taken counts, lest lanes whose turn is far hold that as well.
                    while len(sent) > len(chunks):
                        self._lookahead.release(*sent.popleft())
                    self.top_up()
            except EndOfChannel:
                waiting = sum(size for of, size in sent if of is part)
                self._lookahead.release(part, max(part.reserved - waiting, 0))
                shard.parts.popleft()
                self.top_up()
        for part, size in sent:
            self._lookahead.release(part, size)

    def on_room(self) -> None:
        """A part that was refused may be had now."""
        self._has_room.set()
        self.top_up()

    async def _wait_room(self) -> None:
        await self._has_room.wait()
        self._has_room.clear()
        self.top_up()

    async def _next_chunk(self, part: Part) -> Buffer:
        """The next bytes of the part; if they are late, they are asked for a second time."""
        if len(part.chunks) == 0 and (fetch := self._fetches.get(part)) and fetch.late_s is not None:
            self._late.begin(fetch.late_s)
        try:
            return await part.chunks.receive_async()
        finally:
            self._late.end()

    def _hedge(self) -> None:
        fetch = self._fetches.get(self._lookahead.window[0].parts[0])
        if fetch is not None:
            fetch.hedge()

    async def _fetch(self, shard: Shard, part: Part) -> None:
        store = await self._stores.of(shard.url)
        hedges = self._stores.hedges_of(shard.url)
        fetch = Fetch(store, hedges, shard, part, partial(self._opened, shard, part))
        self._fetches[part] = fetch
        try:
            await fetch.run()
        finally:
            del self._fetches[part]

    def _opened(self, shard: Shard, part: Part, body: Body) -> None:
        if shard.total is None:
            self._lookahead.opened(shard, part, body)
            self.top_up()
