"""Shards read ahead in parts: many requests in flight, their bytes handed on in order.

A reader that falls behind stops the sockets; one that has to wait for late bytes has them asked for twice.
What a plan asks for is brought meanwhile, for the shards that come next.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import closing
from functools import partial
from time import monotonic
from typing import Protocol

from ..._flow.budget import Claim
from ..._flow.channel import Channel, EndOfChannel
from ..._flow.clock import Alarm
from ..._flow.engine import EngineStopped, Scope
from ...errors import StoreError
from ...trace.recording import Flying, Traffic
from ...types import Answer, Buffer, Layout, Planning, Span
from ..buffers import Buffers
from ..file_span import FileSpan, closed_on_error, piece_bytes_of
from ..network.hedging import Hedges
from ..store import Body, Store
from ..urls import origin_of, redact
from .chunks import HANDOVER_BYTES, ShardChunks
from .fetching import Fetch
from .lookahead import PART_BYTES, Lookahead, Part, Shard, Wanted

__all__ = ["StoresByUrl", "read_shards"]


class StoresByUrl(Protocol):
    """Gives the store of each URL; see ``router.Stores``."""

    async def of(self, url: str) -> Store:
        """The store that serves ``url``."""
        ...

    def hedges_of(self, url: str) -> Hedges | None:
        """What decides on hedges for ``url``; None where there is nothing to race against."""
        ...


async def read_shards(
    stores: StoresByUrl,
    shards: Iterable[Wanted],
    budget: Claim,
    out: Channel[ShardChunks],
    traffic: Traffic | None = None,
) -> None:
    """Send one channel of chunks for each shard, in order; each ends as its shard ends.

    Args:
        stores: Where the URLs are opened.
        shards: Pairs of a URL and the byte offset to read it from, the span of bytes, or the plan of what to
            read of it; asked for one by one, on the loop. The plans run on threads.
        budget: Bounds what is requested and not yet taken by the receiver.
        out: Receives the shards' channels; closing it, or one of them, stops the reading.
        traffic: Told of every part.

    Raises:
        StoreError: Also ends the channel of the shard it happened in.
        Exception: Likewise, what a plan raised.
    """
    async with Scope() as scope:
        loop = asyncio.get_running_loop()
        reader = _Reader(stores, Lookahead(shards, budget), budget, scope, traffic or Traffic())
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

    def __init__(
        self, stores: StoresByUrl, lookahead: Lookahead, budget: Claim, scope: Scope, traffic: Traffic
    ) -> None:
        self._stores = stores
        self._lookahead = lookahead
        self._budget = budget
        self._scope = scope
        self._traffic = traffic
        self._fetches: dict[Part, Fetch] = {}
        self._layouts: dict[Shard, Channel[Layout]] = {}
        self._buffers = Buffers(piece_bytes_of(budget.most_bytes))
        self._closed = False
        self._has_more = asyncio.Event()

    async def run(self, out: Channel[ShardChunks]) -> None:
        self.top_up()
        while self._lookahead.window:
            shard = self._lookahead.window[0]
            chunks = ShardChunks(shard, HANDOVER_BYTES, self._buffers, self._budget.waited)
            await out.send_async(chunks)
            try:
                if shard.plan is not None:
                    await self._layouts.pop(shard).receive_async()
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
        for shard in self._lookahead.window:
            for part in shard.parts:
                part.chunks.close()  # drops what is there, and with it the files of spans

    def top_up(self) -> None:
        """Start every request that the budget allows."""
        while not self._closed and (request := self._lookahead.next_part()) is not None:
            shard, part = request
            self._scope.start(partial(self._fetch, shard, part), part.chunks)
            self._has_more.set()
        while self._lookahead.to_plan:
            shard = self._lookahead.to_plan.popleft()
            layout = self._layouts[shard] = Channel[Layout](1)
            self._scope.start(partial(self._plan, shard, layout), layout)

    def on_room(self) -> None:
        """A part that was refused may be had now."""
        self._has_more.set()
        self.top_up()

    # --- what the consumer gets ---

    async def _hand_on(self, shard: Shard, chunks: ShardChunks) -> None:
        """Send the bytes of ``shard`` part by part, and free their budget as they go."""
        sent: deque[tuple[Part, int]] = deque()
        with closing(Alarm(partial(self._hedge, shard))) as late:
            while (part := await self._next_part(shard)) is not None:
                try:
                    while True:
                        chunk = await self._next_chunk(part, late)
                        with closed_on_error(chunk):
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

    async def _next_part(self, shard: Shard) -> Part | None:
        """The first part of what is asked of the shard; None if all of it was had."""
        while not shard.parts:
            if not shard.wants_part:
                return None
            # Other shards or other lanes hold what there is, and it is not this one's turn.
            await self._has_more.wait()
            self._has_more.clear()
            self.top_up()
        return shard.parts[0]

    async def _next_chunk(self, part: Part, late: Alarm) -> Buffer | FileSpan:
        """The next bytes of the part; if they are late, they are asked for a second time."""
        if len(part.chunks) == 0 and (fetch := self._fetches.get(part)) and fetch.late_s is not None:
            late.begin(fetch.late_s)
        try:
            return await part.chunks.receive_async()
        finally:
            late.end()

    # --- what a plan gets ---

    async def _plan(self, shard: Shard, decided: Channel[Layout]) -> None:
        """Run the shard's plan: bring what it asks for until it says what to read."""
        assert shard.plan is not None
        answer: Answer | None = None
        # A footer may be of many megabytes, and the package that reads it one of many modules.
        while not isinstance(asked := await asyncio.to_thread(_step, shard.plan, answer), Layout):
            content = await self._bring(shard, asked)
            if shard.length is None:
                raise StoreError(
                    "the server does not tell how long the shard is, and its format begins to be read at its "
                    "end; serve it with Content-Length",
                    shard=redact(shard.url),
                )
            answer = Answer(content, shard.length, shard.etag)
        self._lookahead.planned(shard, asked)
        decided.send(asked)
        self.top_up()

    async def _bring(self, shard: Shard, span: Span) -> bytes:
        """The bytes of ``span``, as far as the shard goes."""
        self._lookahead.ask(shard, span)
        self.top_up()
        pieces: list[Buffer] = []
        with closing(Alarm(partial(self._hedge, shard))) as late:
            while (part := await self._next_part(shard)) is not None:
                try:
                    while True:
                        chunk = await self._next_chunk(part, late)
                        assert not isinstance(chunk, FileSpan), "what has a plan is read in parts"
                        pieces.append(chunk)
                except EndOfChannel:
                    self._lookahead.release(part, part.reserved)
                    shard.parts.popleft()
                    self.top_up()
        return b"".join(pieces)

    # --- what is requested ---

    def _hedge(self, shard: Shard) -> None:
        fetch = self._fetches.get(shard.parts[0])
        if fetch is not None and fetch.hedge():
            self._traffic.mark("hedge", shard.url, offset=shard.parts[0].received_to)

    async def _fetch(self, shard: Shard, part: Part) -> None:
        store = await self._stores.of(shard.url)
        hedges = self._stores.hedges_of(shard.url)
        flying = self._traffic.began(shard.url, part.start, part.stop - part.start)
        fetch = Fetch(store, hedges, shard, part, partial(self._opened, shard, part, flying))
        self._fetches[part] = fetch
        began_s = monotonic()
        is_whole = False
        try:
            await fetch.run()
            is_whole = True
        finally:
            del self._fetches[part]
            flying.ended(part.received_to - part.start, is_whole=is_whole)
        self._budget.received(origin_of(shard.url), part.received_to - part.start, monotonic() - began_s)

    def _opened(self, shard: Shard, part: Part, flying: Flying, body: Body, is_whole: bool) -> None:
        flying.answered()
        self._budget.answered()
        if shard.total is not None:
            return
        self._lookahead.opened(shard, part, body, is_whole)
        if shard.plan is not None and not part.ranged and (body.stop or 0) > PART_BYTES:
            # Each part would begin with the first byte, and bring all bytes before its own.
            raise StoreError(
                "the server ignores ranges, and the format of the shard is not read from front to back; "
                "serve it from a server that knows Range, or keep it on disk with cache_dir=",
                shard=redact(shard.url),
            )
        self.top_up()


def _step(plan: Planning, answer: Answer | None) -> Span | Layout:
    """What the plan asks for next, or has decided on; in a thread."""
    try:
        return next(plan) if answer is None else plan.send(answer)
    except StopIteration as end:
        layout: Layout = end.value
        return layout
