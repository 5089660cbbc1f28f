"""Shards read ahead in parts: many requests in flight, their bytes passed on in order.

A slow consumer stops the sockets; for late bytes that a consumer waits for, a second request is sent. The
bytes that plans need are read meanwhile, for the following shards.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from time import monotonic, perf_counter
from typing import Protocol

from ..errors import StoreError
from ..flow.budget import Reservation
from ..flow.channel import Channel, EndOfChannel, call_in_loop
from ..flow.engine import Alarm, EngineStopped, Scope
from ..observe.stopwatch import STORE, Stopwatch
from ..observe.tracing import Flying, Traffic
from ..types import Answer, Buffer, Layout, Planning, Span
from .failures import check_same
from .lookahead import PART_BYTES, Lookahead, ShardPart, ShardRead, Wanted
from .pacing import Hedges
from .store import BUFFER_BYTES, NO_END, Body, Buffers, FileSpan, Store, clip, closed_on_error, piece_bytes_of
from .urls import origin_of, redact

#: Between loop and decoder: a buffer to decode, and one that the loop sends meanwhile. With room for only
#: one, the two would wake each other for each buffer.
HANDOVER_BYTES = 2 * BUFFER_BYTES


class ShardChunks(Channel[Buffer | FileSpan]):
    """The bytes of one shard on their way to the decoder. It reads those itself that are in a local file.

    Args:
        shard: Which one. Its length, version, digests and layout are known with the first chunk.
        capacity: How many bytes may wait here.
        buffers: Lends memory to the receiver, for all shards that it reads.
        waited: Called with the time that a thread had to wait for bytes.

    Attributes:
        shard: As given.
        stopwatch: Of the thread that receives them.
    """

    def __init__(
        self, shard: ShardRead, capacity: int, buffers: Buffers, waited: Callable[[float], object]
    ) -> None:
        super().__init__(capacity)
        self.shard = shard
        self._buffers = buffers
        self._span: FileSpan | None = None
        self._waited = waited
        self.stopwatch = Stopwatch()

    def receive(self, timeout_s: float | None = None) -> Buffer:
        """See ``Channel.receive``.

        Raises:
            StoreError: A file cannot be read.
        """
        while not self._span:
            received = self._receive(timeout_s)
            if not isinstance(received, FileSpan):
                return received
            self._span = received
        return self._span.read(self._buffers)  # copied from the page cache, without waiting

    def close(self) -> None:
        """See ``Channel.close``."""
        span, self._span = self._span, None
        if span is not None:
            span.close()
        super().close()

    def _receive(self, timeout_s: float | None) -> Buffer | FileSpan:
        if len(self):
            return super().receive(timeout_s)
        began_s = perf_counter()
        try:
            return super().receive(timeout_s)
        finally:
            self._waited(self.stopwatch.waited(STORE, began_s))


@dataclass(eq=False, repr=False)
class Fetch:
    """Reads one part into its channel, by one request, or by two that race for the next byte.

    Args:
        store: Where the bytes come from.
        hedges: Decides whether to send a second request; None never does.
        shard: To which the part belongs.
        part: What to read.
        opened: Called with each answer before its first byte, and with whether it contains all that is wanted
            of the shard.
    """

    store: Store
    hedges: Hedges | None
    shard: ShardRead
    part: ShardPart
    opened: Callable[[Body, bool], None]

    def __post_init__(self) -> None:
        self._scope = Scope()
        # How to cancel each request that may still bring something; without those that were cancelled.
        self._requests: dict[int, Callable[[], object]] = {}
        self._started = 0
        self._ahead: int | None = None
        self._clock = asyncio.get_running_loop().time
        self._moved_s = self._clock()

    async def run(self) -> None:
        """Read all bytes.

        Raises:
            StoreError: They are unavailable.
        """
        async with self._scope:
            self._start()

    @property
    def late_s(self) -> float | None:
        """How much longer the next byte may take before ``hedge`` is worth its request; None if it never is.

        Counted from the request or the byte before, also if no consumer was waiting then.
        """
        if self.hedges is None or (late_s := self.hedges.late_s) is None:
            return None
        return max(0.0, self._moved_s + late_s - self._clock())

    def hedge(self) -> bool:
        """Send a second request for what is missing, if that is allowed; returns whether it does.

        The request that gets the next byte first goes on alone.
        """
        if not self.part.ranged:
            # It would begin with the first byte, and occupy the server for the whole object.
            return False
        total = NO_END if self.shard.total is None else self.shard.total
        if self.part.received_to >= min(self.part.stop, total):
            return False  # only the end mark is missing, and a range of no bytes is refused
        if len(self._requests) == 1 and self.hedges is not None and self.hedges.take():
            with suppress(RuntimeError):  # the part is just being closed
                self._start()
                return True
        return False

    def _start(self) -> None:
        request = self._started
        self._started += 1
        self._requests[request] = self._scope.start(partial(self._bring, request))

    async def _bring(self, request: int) -> None:
        try:
            await self._ask(request, self.part.received_to)
        except StoreError:
            if self._requests.keys() == {request}:
                raise
            # The other one goes on, and its error will be that of the part.
        finally:
            self._requests.pop(request, None)

    async def _ask(self, request: int, begin: int) -> None:
        shard, part = self.shard, self.part
        # A range that begins at the end of an object is refused, not empty. One byte earlier there always is
        # something, so reopening after a shard's last byte needs no rule of its own.
        ask_from = max(begin - 1, 0) if begin == shard.start else begin
        async with self.store.read(shard.url, ask_from, part.stop, etag=shard.etag) as body:
            if (span := _span_of_file(shard, begin, body)) is not None:
                with closed_on_error(span):
                    self.opened(body, True)
                    await self._hand_on(span)
                return
            self.opened(body, False)
            _check_promise(shard, part, body)
            stop = part.stop if body.stop is None else min(part.stop, body.stop)
            offset = body.start
            async for chunk in body.chunks:
                wanted = clip(chunk, begin - offset, stop - offset)
                offset += len(chunk)
                if wanted:
                    if not self._leads(request, begin):
                        return
                    await self._hand_on(wanted)
                if offset >= stop and body.stop != stop:
                    break  # the range was ignored; the rest belongs to other parts
        _check_end(shard, part, body, offset)

    def _leads(self, request: int, begin: int) -> bool:
        """Whether this request got the next byte first, now or before; then the other one is cancelled."""
        if self._ahead != request and self.part.received_to != begin:
            return False
        self._ahead = request
        for other in self._requests.keys() - {request}:
            # Removed at once, although it ends a little later: this one must know that it is the last, should
            # it fail before.
            cancel = self._requests.pop(other)
            cancel()
        return True

    async def _hand_on(self, chunk: Buffer | FileSpan) -> None:
        # Counted before it is sent: a request that takes over meanwhile must not read it again.
        self.part.received_to += len(chunk)
        self._moved_s = self._clock()
        await self.part.chunks.send_async(chunk, len(chunk))


def _span_of_file(shard: ShardRead, begin: int, body: Body) -> FileSpan | None:
    """All that is wanted of a shard as one span, if the decoder can read it from a file at once."""
    if shard.plan is not None or shard.total is not None or body.total is None:
        return None
    stop = min(shard.stop, body.total)
    return body.span_of(begin, stop) if begin < stop else None


def _check_promise(shard: ShardRead, part: ShardPart, body: Body) -> None:
    """Check what a body promises against the request; the store has already checked where it starts."""
    check_same(body, shard.url, part.start, shard.etag, shard.length)
    if body.stop is not None and body.total is not None and body.stop < min(part.stop, body.total):
        raise StoreError(
            f"asked for the bytes up to {min(part.stop, body.total)}, "
            f"but the server sent only those up to {body.stop}",
            shard=redact(shard.url),
            offset=body.stop,
        )


def _check_end(shard: ShardRead, part: ShardPart, body: Body, offset: int) -> None:
    """Check the bytes received against the promise; ``offset`` is behind the last of them."""
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


class StoresByUrl(Protocol):
    """Returns the store of each URL; see ``router.Stores``."""

    async def of(self, url: str) -> Store:
        """The store that serves ``url``."""
        ...

    def hedges_of(self, url: str) -> Hedges | None:
        """What decides on hedges for ``url``; None where there are none."""
        ...


async def read_shards(
    stores: StoresByUrl,
    shards: Iterable[Wanted],
    budget: Reservation,
    out: Channel[ShardChunks],
    traffic: Traffic | None = None,
) -> None:
    """Send one channel of chunks for each shard, in order; each ends as its shard ends.

    Args:
        stores: Where the URLs are opened.
        shards: Pairs of a URL and the byte offset to read it from, the span of bytes, or the plan of what to
            read of it; iterated on the loop. The plans run on threads.
        budget: Bounds what is requested and not yet received.
        out: Receives the shards' channels; closing it, or one of them, stops the reading.
        traffic: Records every part.

    Raises:
        StoreError: Also ends the channel of the shard it happened in.
        Exception: Likewise, what a plan raised.
    """
    async with Scope() as scope:
        loop = asyncio.get_running_loop()
        reader = _ShardReader(stores, Lookahead(shards, budget), budget, scope, traffic or Traffic())
        budget.on_room = partial(call_in_loop, loop, reader.on_room)
        try:
            await reader.run(out)
        finally:
            budget.close()
            reader.close()


class _ShardReader:
    """Requests what the lookahead decides, and passes the answers on in order."""

    def __init__(
        self, stores: StoresByUrl, lookahead: Lookahead, budget: Reservation, scope: Scope, traffic: Traffic
    ) -> None:
        self._stores = stores
        self._lookahead = lookahead
        self._budget = budget
        self._scope = scope
        self._traffic = traffic
        self._fetches: dict[ShardPart, Fetch] = {}
        self._layouts: dict[ShardRead, Channel[Layout]] = {}
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
                # Cancelled: another thread may be blocked on these chunks.
                chunks.finish(EngineStopped())
                raise
            chunks.finish()
            self._lookahead.window.popleft()
            self.top_up()

    def close(self) -> None:
        self._closed = True
        for shard in self._lookahead.window:
            for part in shard.parts:
                part.chunks.close()  # drops its bytes, and so closes the files of spans

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
        """There may be room now for a part that was refused."""
        self._has_more.set()
        self.top_up()

    # --- what the consumer gets ---

    async def _hand_on(self, shard: ShardRead, chunks: ShardChunks) -> None:
        """Send the bytes of ``shard`` part by part, and free their budget as they are received."""
        sent: deque[tuple[ShardPart, int]] = deque()
        with closing(Alarm(partial(self._hedge, shard))) as late:
            while (part := await self._next_part(shard)) is not None:
                try:
                    while True:
                        chunk = await self._next_chunk(part, late)
                        with closed_on_error(chunk):
                            await chunks.send_async(chunk, len(chunk))
                        sent.append((part, len(chunk)))
                        del chunk
                        # Bytes that wait to be received count; otherwise later lanes could hoard the budget.
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

    async def _next_part(self, shard: ShardRead) -> ShardPart | None:
        """The first part of the shard's open spans; None if all of them were read."""
        while not shard.parts:
            if not shard.wants_part:
                return None
            # Other shards or other lanes hold the budget, and it is not this lane's turn.
            await self._has_more.wait()
            self._has_more.clear()
            self.top_up()
        return shard.parts[0]

    async def _next_chunk(self, part: ShardPart, late: Alarm) -> Buffer | FileSpan:
        """The next bytes of the part; if they are late, a second request is sent."""
        if len(part.chunks) == 0 and (fetch := self._fetches.get(part)) and fetch.late_s is not None:
            late.begin(fetch.late_s)
        try:
            return await part.chunks.receive_async()
        finally:
            late.end()

    # --- what a plan gets ---

    async def _plan(self, shard: ShardRead, decided: Channel[Layout]) -> None:
        """Run the shard's plan: read the spans that it needs until it has decided what to read."""
        assert shard.plan is not None
        answer: Answer | None = None
        # In a thread: a footer may have many megabytes, and the package that parses it takes long to import.
        while not isinstance(asked := await asyncio.to_thread(_step, shard.plan, answer), Layout):
            content = await self._bring(shard, asked)
            if shard.length is None:
                raise StoreError(
                    "the server does not state the length of the shard, and its format is read from its end; "
                    "serve it with Content-Length",
                    shard=redact(shard.url),
                )
            answer = Answer(content, shard.length, shard.etag)
        self._lookahead.planned(shard, asked)
        decided.send(asked)
        self.top_up()

    async def _bring(self, shard: ShardRead, span: Span) -> bytes:
        """The bytes of ``span``, up to the end of the shard."""
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

    def _hedge(self, shard: ShardRead) -> None:
        fetch = self._fetches.get(shard.parts[0])
        if fetch is not None and fetch.hedge():
            self._traffic.mark("hedge", shard.url, offset=shard.parts[0].received_to)

    async def _fetch(self, shard: ShardRead, part: ShardPart) -> None:
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

    def _opened(self, shard: ShardRead, part: ShardPart, flying: Flying, body: Body, is_whole: bool) -> None:
        flying.answered()
        self._budget.answered()
        if shard.total is not None:
            return
        self._lookahead.opened(shard, part, body, is_whole)
        if shard.plan is not None and not part.ranged and (body.stop or 0) > PART_BYTES:
            # Each part would begin with the first byte, and read all bytes before its own.
            raise StoreError(
                "the server ignores ranges, and the format of the shard is not read from front to back; "
                "serve it from a server that supports Range, or keep it on disk with cache_dir=",
                shard=redact(shard.url),
            )
        self.top_up()


def _step(plan: Planning, answer: Answer | None) -> Span | Layout:
    """The span that the plan needs next, or its decision; in a thread."""
    try:
        return next(plan) if answer is None else plan.send(answer)
    except StopIteration as end:
        layout: Layout = end.value
        return layout
