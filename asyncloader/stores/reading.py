"""Shards read ahead in parts: many requests in flight, their bytes handed on in order.

The first request for a shard asks for a small part, whose answer also tells the shard's length; the rest
is asked for in large parts, and the first parts of the shards behind it go out meanwhile. What is
requested and not yet handed on is bounded in bytes; a reader that falls behind stops the sockets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from .._flow.channel import Channel, EndOfChannel
from .._flow.engine import Scope
from ..errors import StoreError
from ..types import Buffer
from .router import Stores
from .store import Body
from .urls import redact

__all__ = ["ShardChunks", "read_shards"]

# Small, for a fast first batch; large, since each request costs a round trip: at 50 ms and 40 MB/s a
# connection an 8 MiB part spends four fifths of its time transferring.
FIRST_PART_BYTES = 1 << 20
PART_BYTES = 8 << 20

# Requests for shards whose turn is far off only take connections from those that are needed next.
_MOST_SHARDS_AHEAD = 16

# Between loop and decoder: enough to decode from while the loop receives more, small enough to stay in
# the processor's cache.
_HANDOVER_BYTES = 2 << 20

ShardChunks: TypeAlias = Channel[Buffer]


@dataclass(slots=True)
class _Part:
    """Bytes ``start`` to ``stop`` of a shard, as asked for; the shard may end before."""

    start: int
    stop: int
    reserved: int
    chunks: Channel[Buffer]


@dataclass(slots=True)
class _Shard:
    url: str
    start: int
    requested_to: int
    total: int | None = None
    etag: str | None = None
    parts: deque[_Part] = field(default_factory=deque)

    @property
    def wants_part(self) -> bool:
        if self.total is None:
            return self.requested_to == self.start  # one request first: its answer tells the rest
        return self.requested_to < self.total


class _Lookahead:
    """Decides which part to request next; pure, so that the rule can be read and tested alone."""

    def __init__(self, shards: Sequence[tuple[str, int]], budget_bytes: int) -> None:
        self._waiting = deque(_Shard(url, start, start) for url, start in shards)
        self._budget = budget_bytes
        self._reserved = 0
        self.window: deque[_Shard] = deque()

    def next_part(self) -> tuple[_Shard, _Part] | None:
        """The part to request now, if the budget has room for one.

        Parts of the first shard come before those of later ones; the very next part that the reader
        needs is let in whatever the budget says, since nothing could be freed without it.
        """
        shard = self._next_shard()
        if shard is None:
            return None
        size = self._part_bytes(shard)
        needed_now = shard is self.window[0] and not shard.parts
        if self._reserved + size > self._budget and not needed_now:
            return None
        part = _Part(shard.requested_to, shard.requested_to + size, size, Channel(size))
        shard.requested_to = part.stop
        shard.parts.append(part)
        self._reserved += size
        return shard, part

    def opened(self, shard: _Shard, body: Body) -> None:
        """The first answer for ``shard`` told its length and version."""
        shard.etag = body.etag
        if body.total is None:
            shard.total = shard.requested_to  # a body that tells no length is all there is
        else:
            shard.total = body.total
            if body.stop == body.total:
                shard.requested_to = body.total  # the range was ignored, or reaches the end

    def release(self, part: _Part, size: int) -> None:
        """``size`` bytes of ``part`` were handed on."""
        size = min(size, part.reserved)
        part.reserved -= size
        self._reserved -= size

    def _next_shard(self) -> _Shard | None:
        for shard in self.window:
            if shard.wants_part:
                return shard
        if not self._waiting or len(self.window) >= _MOST_SHARDS_AHEAD:
            return None
        self.window.append(self._waiting.popleft())
        return self.window[-1]

    def _part_bytes(self, shard: _Shard) -> int:
        if shard.total is None:
            return FIRST_PART_BYTES
        # Halves of a small budget still leave one part in transfer while another is decoded.
        largest = max(min(PART_BYTES, self._budget // 4), FIRST_PART_BYTES)
        return min(largest, shard.total - shard.requested_to)


async def read_shards(
    stores: Stores, shards: Sequence[tuple[str, int]], budget_bytes: int, out: Channel[ShardChunks]
) -> None:
    """Send one channel of chunks for each shard, in order; each ends as its shard ends.

    Args:
        stores: Where the URLs are opened.
        shards: Pairs of a URL and the byte offset to read it from.
        budget_bytes: Bound on what is requested and not yet handed on. One part is always let in.
        out: Receives the shards' channels; closing it, or one of them, stops the reading.

    Raises:
        StoreError: Also ends the channel of the shard it happened in.
    """
    async with Scope() as scope:
        await _Reader(stores, _Lookahead(shards, budget_bytes), scope).run(out)


class _Reader:
    """Requests what the lookahead decides, and hands the answers on in order."""

    def __init__(self, stores: Stores, lookahead: _Lookahead, scope: Scope) -> None:
        self._stores = stores
        self._lookahead = lookahead
        self._scope = scope

    async def run(self, out: Channel[ShardChunks]) -> None:
        self._top_up()
        while self._lookahead.window:
            shard = self._lookahead.window[0]
            chunks = ShardChunks(_HANDOVER_BYTES)
            await out.send_async(chunks)
            try:
                await self._hand_on(shard, chunks)
            except StoreError as error:
                chunks.finish(error)
                raise
            chunks.finish()
            self._lookahead.window.popleft()
            self._top_up()

    def _top_up(self) -> None:
        """Start every request that the budget allows."""
        while (request := self._lookahead.next_part()) is not None:
            shard, part = request
            self._scope.start(partial(self._fetch, shard, part), part.chunks)

    async def _hand_on(self, shard: _Shard, chunks: ShardChunks) -> None:
        """Send the bytes of ``shard`` part by part, and free their budget as they go."""
        while shard.parts:
            part = shard.parts[0]
            try:
                while True:
                    chunk = await part.chunks.receive_async()
                    await chunks.send_async(chunk, len(chunk))
                    self._lookahead.release(part, len(chunk))
                    self._top_up()
            except EndOfChannel:
                self._lookahead.release(part, part.reserved)
                shard.parts.popleft()
                self._top_up()

    async def _fetch(self, shard: _Shard, part: _Part) -> None:
        """Request one part and send its bytes to the part's channel."""
        store = await self._stores.of(shard.url)
        # A range that begins at the very end of an object is refused, not empty. One byte earlier there
        # is always something, so that reopening after a shard's last byte needs no rule of its own.
        ask_from = max(part.start - 1, 0) if part.start == shard.start else part.start
        async with store.read(shard.url, ask_from, part.stop, etag=shard.etag) as body:
            if shard.total is None:
                self._lookahead.opened(shard, body)
                self._top_up()
            offset = body.start
            async for chunk in body.chunks:
                end = offset + len(chunk)
                if end > part.start:
                    wanted = chunk if offset >= part.start else memoryview(chunk)[part.start - offset :]
                    await part.chunks.send_async(wanted, len(wanted))
                offset = end
        if body.stop is not None and offset < body.stop:
            raise StoreError(
                f"the body ended at byte {offset}, before byte {body.stop} that the server promised",
                shard=redact(shard.url),
                offset=offset,
            )
