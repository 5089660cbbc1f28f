"""Shards read ahead in parts: many requests in flight, their bytes handed on in order.

The first request for a shard asks for a small part, whose answer also tells the shard's length; the rest
is asked for in large parts, and the first parts of the shards behind it go out meanwhile. What is
requested and not yet handed on is bounded in bytes; a reader that falls behind stops the sockets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from .._flow.channel import Channel, EndOfChannel
from .._flow.engine import EngineStopped, Scope
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

# Offset of no byte.
_NO_END = 1 << 62


class ShardChunks(Channel[Buffer]):
    """The bytes of one shard, in order.

    Attributes:
        total: Length of the whole shard; None if unknown. Set before the first chunk, as is ``digests``.
        digests: Of the whole shard, as the store promises them; see ``Body``.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.total: int | None = None
        self.digests: Mapping[str, bytes] = {}


@dataclass(slots=True)
class _Part:
    """Bytes ``start`` to ``stop`` of a shard; the shard may end before."""

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
    digests: Mapping[str, bytes] = field(default_factory=dict)
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

    def opened(self, shard: _Shard, part: _Part, body: Body) -> None:
        """The first answer for ``shard``, to ``part``, told its length and version."""
        shard.etag, shard.digests = body.etag, body.digests
        if body.stop is None or body.stop > part.stop:
            # The range was ignored: this answer holds everything, and ends where it ends.
            part.stop = _NO_END if body.stop is None else body.stop
        shard.total = part.stop if body.total is None else body.total
        shard.requested_to = min(part.stop, shard.total)

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
            except Exception as error:
                chunks.finish(error)
                raise
            except BaseException:
                # Cancelled: somebody may be blocked on these chunks in another thread.
                chunks.finish(EngineStopped())
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
                    chunks.total, chunks.digests = shard.total, shard.digests
                    await chunks.send_async(chunk, len(chunk))
                    self._lookahead.release(part, len(chunk))
                    self._top_up()
            except EndOfChannel:
                chunks.total, chunks.digests = shard.total, shard.digests
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
                self._lookahead.opened(shard, part, body)
            _check_promise(shard, part, body)
            self._top_up()
            stop = part.stop if body.stop is None else min(part.stop, body.stop)
            offset = body.start
            async for chunk in body.chunks:
                wanted = _cut(chunk, part.start - offset, stop - offset)
                offset += len(chunk)
                if wanted:
                    await part.chunks.send_async(wanted, len(wanted))
                if offset >= stop and body.stop != stop:
                    break  # the range was ignored; what follows belongs to other parts
        _check_end(shard, part, body, offset)


def _cut(chunk: Buffer, start: int, stop: int) -> Buffer:
    """The bytes of ``chunk`` from ``start`` to ``stop``, both counted from its first and maybe outside."""
    if start <= 0 and stop >= len(chunk):
        return chunk
    return memoryview(chunk)[max(start, 0) : max(stop, 0)]


def _check_promise(shard: _Shard, part: _Part, body: Body) -> None:
    """Hold what a body promises against what was asked; a store has already checked where it starts."""
    if body.total is not None and body.total != shard.total:
        raise StoreError(
            f"the object was changed while it was being read: it had {shard.total} bytes, now {body.total}",
            shard=redact(shard.url),
            offset=part.start,
        )
    if body.stop is not None and body.total is not None and body.stop < min(part.stop, body.total):
        raise StoreError(
            f"asked for the bytes up to {min(part.stop, body.total)}, "
            f"but the server sent only those up to {body.stop}",
            shard=redact(shard.url),
            offset=body.stop,
        )


def _check_end(shard: _Shard, part: _Part, body: Body, offset: int) -> None:
    """Hold the bytes that came against what was promised; ``offset`` is behind the last of them."""
    promised = offset if body.stop is None else body.stop
    if offset < min(promised, part.stop):
        what = f"the body ended at byte {offset}, before byte {promised} that the server promised"
    elif offset > promised:
        what = f"the body went on to byte {offset}, behind byte {promised} that the server promised"
    elif offset < part.start:
        what = f"the object ends at byte {offset}, before byte {part.start} to read it from; was it changed?"
    else:
        return
    raise StoreError(what, shard=redact(shard.url), offset=min(offset, promised))
