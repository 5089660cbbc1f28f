"""Shards read ahead in parts: many requests in flight, their bytes passed on in order.

A slow consumer stops the sockets; for late bytes that a consumer waits for, a second request is sent. The
bytes that plans need are read meanwhile, for the following shards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from time import perf_counter
from typing import TYPE_CHECKING

from ..errors import StoreError
from ..flow.budget import Reservation
from ..flow.channel import Channel, ChannelClosed, EndOfChannel, call_in_loop
from ..flow.engine import EngineStopped, Scope
from ..flow.process import keep_freed_pages
from ..observe.stopwatch import STORE, Stopwatch
from ..observe.tracing import Flight, Incident, Recorder
from ..types import Answer, Buffer, Layout, Planning, Span
from .failures import check_same
from .local import FileSpan, piece_bytes_of
from .lookahead import PART_BYTES, Lookahead, ShardPart, ShardRead, Wanted
from .network import NetworkStore
from .pacing import Hedges
from .router import Stores
from .store import NO_END, Body, Store, clip
from .urls import origin_of, redact


class ShardChunks(Channel[Buffer | FileSpan]):
    """The bytes of one shard, from the requests on the loop to the decoder. It reads those in a local file.

    Args:
        shard: Which one. Its length, version, digests and layout are known with the first chunk.
        piece_bytes: How much of a file the receiver reads at a time.
        waited: Called with the time that a thread had to wait for bytes.
        received: Called after each chunk that was received, and when the receiver closes.

    Attributes:
        shard: As given.
        stopwatch: Of the thread that receives them.
        is_cut: Whether the receiver has closed before it had received all of the shard.
    """

    def __init__(
        self,
        shard: ShardRead,
        piece_bytes: int,
        waited: Callable[[float], object],
        received: Callable[[], object],
    ) -> None:
        # The budget bounds what is sent. Bytes beyond it, of a server that ignores ranges, are sent one chunk
        # at a time.
        super().__init__(1)
        self.shard = shard
        self._piece_bytes = piece_bytes
        self._span: FileSpan | None = None
        self._waited = waited
        self._received = received
        self.stopwatch = Stopwatch()
        self.is_cut = False

    def receive(self, timeout_s: float | None = None) -> Buffer:
        """See ``Channel.receive``.

        Raises:
            StoreError: A file cannot be read.
        """
        while not self._span:
            waits = not len(self)
            began_s = perf_counter()
            try:
                received = super().receive(timeout_s)
            finally:
                if waits:
                    self._waited(self.stopwatch.waited(STORE, began_s))
            self._received()
            if not isinstance(received, FileSpan):
                return received
            self._span = received
        return self._span.read(self._piece_bytes)  # copied from the page cache, without waiting

    if TYPE_CHECKING:  # a thread receives no span

        def __iter__(self) -> Iterator[Buffer]: ...

    async def receive_async(self) -> Buffer | FileSpan:
        """See ``Channel.receive_async``."""
        received = await super().receive_async()
        self._received()
        return received

    def close(self) -> None:
        """See ``Channel.close``."""
        span, self._span = self._span, None
        if span is not None:
            span.close()
        self.is_cut = self.is_cut or len(self) > 0 or not self._finished
        super().close()
        self._received()


@dataclass(eq=False, repr=False)
class Fetch:
    """Reads one part, by one request, or by two that race for the next byte.

    Args:
        store: Where the bytes come from.
        hedges: Decides whether to send a second request; None never does.
        shard: To which the part belongs.
        part: What to read.
        opened: Called with each answer before its first byte, and with whether it contains all that is wanted
            of the shard.
        passes_on: Gets the bytes, in order and each once.
    """

    store: Store
    hedges: Hedges | None
    shard: ShardRead
    part: ShardPart
    opened: Callable[[Body, bool], None]
    passes_on: Callable[[Buffer | FileSpan], Awaitable[None]]

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
            if (span := _span_of_file(shard, part, body)) is not None:
                self.opened(body, True)
                part.received_to += len(span)
                await self.passes_on(span)
                return
            self.opened(body, False)
            check_same(body, shard.url, part.start, shard.etag, shard.length)
            if body.stop is not None and body.total is not None:
                assert body.stop >= min(part.stop, body.total), "the store checks it"
            stop = part.stop if body.stop is None else min(part.stop, body.stop)
            offset = body.start
            async for chunk in body.chunks:
                wanted = chunk
                if offset < begin or offset + len(chunk) > stop:
                    wanted = clip(chunk, begin - offset, stop - offset)
                offset += len(chunk)
                if wanted:
                    if not self._leads(request, begin):
                        return
                    # Counted before it is passed on: a request that takes over meanwhile must not read it
                    # again.
                    part.received_to += len(wanted)
                    await self.passes_on(wanted)
                if offset >= stop and body.stop != stop:
                    break  # the range was ignored; the rest belongs to other parts
        _check_end(shard, part, body, offset)

    def _leads(self, request: int, begin: int) -> bool:
        """Whether this request got the next byte first, now or before; then the other one is cancelled."""
        if self._ahead != request and self.part.received_to != begin:
            return False
        self._ahead, self._moved_s = request, self._clock()
        for other in self._requests.keys() - {request}:
            # Removed at once, although it ends a little later: this one must know that it is the last, should
            # it fail before.
            cancel = self._requests.pop(other)
            cancel()
        return True


def _span_of_file(shard: ShardRead, part: ShardPart, body: Body) -> FileSpan | None:
    """A part and all that is wanted after it, if the decoder can read it from a file at once."""
    if body.span_of is None or body.total is None or shard.is_planning or shard.is_answered:
        return None
    spans = [Span(part.start, part.stop), *shard.spans]
    within = [Span(start, min(stop, body.total)) for start, stop in spans if start < min(stop, body.total)]
    return body.span_of(within) if within else None


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


async def read_shards(
    store: Store,
    shards: Iterable[Wanted],
    budget: Reservation,
    out: Channel[ShardChunks],
    recorder: Recorder | None = None,
) -> None:
    """Send one channel of chunks for each shard, in order; each ends as its shard ends.

    Args:
        store: Where the URLs are opened.
        shards: Pairs of a URL and the byte offset to read it from, the span of bytes, or the plan of what to
            read of it; iterated on the loop. The plans run on threads.
        budget: Bounds what is requested and not yet received.
        out: Receives the shards' channels; closing it, or one of them, stops the reading.
        recorder: Records every part; None where the pass is not traced.

    Raises:
        StoreError: Also ends the channel of the shard it happened in.
        Exception: Likewise, what a plan raised.
    """
    keep_freed_pages()
    scope = Scope()
    reader = _ShardReader(store, Lookahead(shards, budget), budget, scope, recorder)
    try:
        async with scope:
            await reader.run(out)
    finally:
        budget.close()
        reader.close()


class _ShardReader:
    """Requests what the lookahead decides, and passes the answers on in order.

    One task decides, whenever something has changed. The requests send their bytes themselves.
    """

    def __init__(
        self,
        store: Store,
        lookahead: Lookahead,
        budget: Reservation,
        scope: Scope,
        recorder: Recorder | None,
    ) -> None:
        self._store = store
        self._lookahead = lookahead
        self._budget = budget
        self._scope = scope
        self._recorder = recorder
        self._fetches: dict[ShardPart, Fetch] = {}
        self._chunks: dict[ShardRead, ShardChunks] = {}
        #: Ends once what the plan of a shard has asked for has come.
        self._asked: dict[ShardRead, Channel[None]] = {}
        self._piece_bytes = piece_bytes_of(budget.most_bytes)
        self._changed = asyncio.Event()
        # From any thread.
        self._notify = budget.on_room = partial(call_in_loop, asyncio.get_running_loop(), self._changed.set)

    async def run(self, out: Channel[ShardChunks]) -> None:
        try:
            while True:
                self._top_up()
                self._announce(out)
                if self._drop_received():
                    continue
                if not self._lookahead.window:
                    return
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._hedge()):
                        await self._changed.wait()
                self._changed.clear()
        except BaseException as error:
            self._fail(error if isinstance(error, Exception) else EngineStopped())
            raise

    def _fail(self, error: Exception) -> None:
        """End every shard: another thread may be waiting for one of them."""
        # Not in ``run``, to whose frame the error refers, and so to the last of these and its file.
        for shard, chunks in self._chunks.items():
            shard.has_ended = True
            chunks.finish(error)

    def close(self) -> None:
        """Let go of the bytes: the frames of an error refer to this reader."""
        for shard, chunks in self._chunks.items():
            if not shard.is_announced:
                chunks.close()
        self._chunks.clear()
        for part in chain.from_iterable(shard.parts for shard in self._lookahead.window):
            part.waiting.clear()
        self._lookahead.window.clear()

    # --- what is requested ---

    def _top_up(self) -> None:
        """Start every request that the budget allows."""
        while (request := self._lookahead.next_part()) is not None:
            self._scope.start(partial(self._fetch, *request))
        while self._lookahead.begun:
            shard = self._lookahead.begun.popleft()
            self._chunks[shard] = ShardChunks(shard, self._piece_bytes, self._budget.waited, self._notify)
            if shard.plan is not None:
                self._scope.start(partial(self._plan, shard, shard.plan))

    async def _fetch(self, shard: ShardRead, part: ShardPart) -> None:
        try:
            store = await self._store.of(shard.url) if isinstance(self._store, Stores) else self._store
            # Reads from disks are not hedged, nor those of a cache.
            hedges = store.hedges if isinstance(store, NetworkStore) else None
            offset, asked_bytes, began_s = part.start, part.stop - part.start, perf_counter()
            opened = partial(self._opened, shard, part, began_s)
            fetch = Fetch(store, hedges, shard, part, opened, partial(self._pass_on, shard, part))
            self._fetches[part] = fetch
            is_whole = False
            try:
                await fetch.run()
                is_whole = True
            finally:
                del self._fetches[part]
                ended_s, size_bytes = perf_counter(), part.received_to - part.start
                if self._recorder is not None:
                    times = began_s, part.answered_s, ended_s
                    flight = Flight(redact(shard.url), offset, asked_bytes, size_bytes, *times, is_whole)
                    self._recorder.record(flight)
            self._budget.received(origin_of(shard.url), size_bytes, ended_s - began_s)
        except ChannelClosed:
            raise
        except Exception as error:  # any error is passed to the consumer, after the bytes before it
            part.error = error
        part.has_ended = True
        self._advance(shard)
        self._changed.set()

    def _opened(self, shard: ShardRead, part: ShardPart, began_s: float, body: Body, is_whole: bool) -> None:
        now_s = perf_counter()
        if part.answered_s is None:  # a hedge may be answered as well
            part.answered_s = now_s
        self._budget.answered(origin_of(shard.url), now_s - began_s)
        if shard.is_answered:
            return
        self._lookahead.opened(shard, part, body, is_whole)
        if shard.plan is not None and not part.ranged and (body.stop or 0) > PART_BYTES:
            # Each part would begin with the first byte, and read all bytes before its own.
            raise StoreError(
                "the server ignores ranges, and the format of the shard is not read from front to back; "
                "serve it from a server that supports Range, or keep it on disk with cache_dir=",
                shard=redact(shard.url),
            )
        self._changed.set()

    def _hedge(self) -> float | None:
        """Send a second request for late bytes that the consumer or a plan waits for.

        Returns:
            In how many seconds others will be late; None if there are none.
        """
        window = self._lookahead.window
        waits_s = []
        for shard in window:
            is_waited_for = shard.is_planning or (shard is window[0] and not shard.sent)
            if not is_waited_for or not shard.parts or (fetch := self._fetches.get(shard.parts[0])) is None:
                continue
            late_s = fetch.late_s
            if late_s:
                waits_s.append(late_s)
            elif late_s is not None and fetch.hedge() and self._recorder is not None:
                about = {"shard": redact(shard.url), "offset": shard.parts[0].received_to}
                self._recorder.record(Incident("hedge", perf_counter(), about))
        return min(waits_s, default=None)

    # --- what the consumer gets ---

    def _announce(self, out: Channel[ShardChunks]) -> None:
        """Send the channels of shards that follow those of which all bytes were sent."""
        for shard in self._lookahead.window:
            if not shard.is_announced:
                out.send_nowait(self._chunks[shard])
                shard.is_announced = True
            if not shard.has_ended or shard.error is not None:
                return

    def _drop_received(self) -> bool:
        """Free the budget of what was received of the first shard; returns whether there was any.

        Bytes that wait to be received count; otherwise later lanes could hoard the budget.
        """
        if not self._lookahead.window:
            return False
        shard = self._lookahead.window[0]
        chunks = self._chunks[shard]
        if chunks.is_cut:
            raise ChannelClosed
        freed = len(shard.sent) - len(chunks)
        for _ in range(freed):
            self._budget.free(shard.sent.popleft())
        if shard.sent or not shard.has_ended:
            return freed > 0
        if shard.error is not None:
            raise shard.error
        del self._chunks[shard]
        self._lookahead.window.popleft()
        return True

    async def _pass_on(self, shard: ShardRead, part: ShardPart, chunk: Buffer | FileSpan) -> None:
        if part.ranged or shard.is_planning:
            part.waiting.append(chunk)
            self._advance(shard)
        else:
            # No memory is reserved for the whole object: its next bytes wait until these are received.
            await self._chunks[shard].send_async(chunk)
            shard.sent.append(part.hand_over(len(chunk)))

    def _advance(self, shard: ShardRead) -> None:
        """Pass on what has come of the parts whose turn it is; end the shard after the last one."""
        while shard.parts and not shard.has_ended:
            part = shard.parts[0]
            for chunk in part.waiting:
                if shard.is_planning:
                    assert not isinstance(chunk, FileSpan), "what has a plan is read in parts"
                    shard.shown.append(chunk)
                else:
                    self._chunks[shard].send_nowait(chunk)
                    shard.sent.append(part.hand_over(len(chunk)))
            part.waiting.clear()
            if not part.has_ended:
                return
            if part.error is not None:
                self._end(shard, part.error)
                return
            self._budget.free(part.hand_over(part.reserved))
            shard.parts.popleft()
        if not shard.wants_part and not shard.has_ended:
            self._end(shard)

    def _end(self, shard: ShardRead, error: Exception | None = None) -> None:
        """All that was asked for has come, or there was an error."""
        if (asked := self._asked.pop(shard, None)) is not None:
            asked.finish(error)
            return
        shard.error, shard.has_ended = error, True
        shard.spans.clear()
        self._chunks[shard].finish(error)

    # --- what a plan gets ---

    async def _plan(self, shard: ShardRead, plan: Planning) -> None:
        """Run the shard's plan: read the spans that it needs until it has decided what to read."""
        answer: Answer | None = None
        try:
            # In a thread: a footer may have many megabytes, and the package that parses it takes long to
            # import.
            while not isinstance(asked := await asyncio.to_thread(_step, plan, answer), Layout):
                content = await self._bring(shard, asked)
                if shard.length is None:
                    raise StoreError(
                        "the server does not state the length of the shard, and its format is read from its "
                        "end; serve it with Content-Length",
                        shard=redact(shard.url),
                    )
                answer = Answer(content, shard.length, shard.etag)
        except Exception as error:  # any error is passed to the consumer
            self._end(shard, error)
        else:
            self._lookahead.planned(shard, asked)
        self._advance(shard)
        self._changed.set()

    async def _bring(self, shard: ShardRead, span: Span) -> bytes:
        """The bytes of ``span``, up to the end of the shard."""
        asked = self._asked[shard] = Channel[None](1)
        self._lookahead.ask(shard, [span])
        self._advance(shard)
        self._changed.set()
        with suppress(EndOfChannel):
            await asked.receive_async()
        shown, shard.shown = shard.shown, []
        return b"".join(shown)


def _step(plan: Planning, answer: Answer | None) -> Span | Layout:
    """The span that the plan needs next, or its decision; in a thread."""
    try:
        return next(plan) if answer is None else plan.send(answer)
    except StopIteration as end:
        layout: Layout = end.value
        return layout
