"""One part of a shard on its way: one request, or two that race for the next byte."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from ..._flow.engine import Scope
from ...errors import StoreError
from ...types import Buffer
from ..failures import check_same
from ..file_span import FileSpan, closed_on_error
from ..network.hedging import Hedges
from ..store import NO_END, Body, Store, clip
from ..urls import redact
from .lookahead import Part, Shard

__all__ = ["Fetch"]


class Fetch:
    """Brings the bytes of one part into its channel.

    Args:
        store: Where they come from.
        hedges: Decides whether to ask twice; None never does.
        shard: What the part belongs to.
        part: What to bring.
        opened: Called with each answer, before its first byte, to take what it tells of the shard, and
            whether it brings all that is wanted of it.
    """

    def __init__(
        self,
        store: Store,
        hedges: Hedges | None,
        shard: Shard,
        part: Part,
        opened: Callable[[Body, bool], None],
    ) -> None:
        self._store = store
        self._hedges = hedges
        self._shard = shard
        self._part = part
        self._opened = opened
        self._scope = Scope()
        # How to cancel each that may still bring something: one that was cancelled is not there any more.
        self._requests: dict[int, Callable[[], object]] = {}
        self._started = 0
        self._ahead: int | None = None
        self._clock = asyncio.get_running_loop().time
        self._moved_s = self._clock()

    async def run(self) -> None:
        """Bring all bytes.

        Raises:
            StoreError: They cannot be had.
        """
        async with self._scope:
            self._start()

    @property
    def late_s(self) -> float | None:
        """How much longer the next byte may take before ``hedge`` is worth its request; None: it never is.

        Counted from the request or the byte before, whether or not anybody was waiting by then.
        """
        if self._hedges is None or (late_s := self._hedges.late_s) is None:
            return None
        return max(0.0, self._moved_s + late_s - self._clock())

    def hedge(self) -> bool:
        """Ask a second time for what is missing, if that may be; says whether it does.

        Whichever request brings the next byte goes on alone.
        """
        if not self._part.ranged:
            # It would begin with the first byte, and hold a place at the server for the whole object.
            return False
        total = NO_END if self._shard.total is None else self._shard.total
        if self._part.received_to >= min(self._part.stop, total):
            return False  # all is here but the word that it was all, and a range of no bytes is refused
        if len(self._requests) == 1 and self._hedges is not None and self._hedges.take():
            with suppress(RuntimeError):  # the part is just being let go
                self._start()
                return True
        return False

    def _start(self) -> None:
        request = self._started
        self._started += 1
        self._requests[request] = self._scope.start(partial(self._bring, request))

    async def _bring(self, request: int) -> None:
        try:
            await self._ask(request, self._part.received_to)
        except StoreError:
            if self._requests.keys() == {request}:
                raise
            # The other one goes on, and its error will be the part's.
        finally:
            self._requests.pop(request, None)

    async def _ask(self, request: int, begin: int) -> None:
        shard, part = self._shard, self._part
        # A range that begins at the very end of an object is refused, not empty. One byte earlier there
        # is always something, so that reopening after a shard's last byte needs no rule of its own.
        ask_from = max(begin - 1, 0) if begin == shard.start else begin
        async with self._store.read(shard.url, ask_from, part.stop, etag=shard.etag) as body:
            if (span := _span_of_file(shard, begin, body)) is not None:
                with closed_on_error(span):
                    self._opened(body, True)
                    await self._hand_on(span)
                return
            self._opened(body, False)
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
                    break  # the range was ignored; what follows belongs to other parts
        _check_end(shard, part, body, offset)

    def _leads(self, request: int, begin: int) -> bool:
        """Whether this request has brought the next byte, now or before; then the other one is cancelled."""
        if self._ahead != request and self._part.received_to != begin:
            return False
        self._ahead = request
        for other in self._requests.keys() - {request}:
            # Taken out at once, though it takes a moment to go: should this one fail before, nobody is left.
            cancel = self._requests.pop(other)
            cancel()
        return True

    async def _hand_on(self, chunk: Buffer | FileSpan) -> None:
        # Counted before it is sent: a request that takes over meanwhile must not bring it once more.
        self._part.received_to += len(chunk)
        self._moved_s = self._clock()
        await self._part.chunks.send_async(chunk, len(chunk))


def _span_of_file(shard: Shard, begin: int, body: Body) -> FileSpan | None:
    """All that is wanted of a shard, where its reader can have it from a file at once."""
    if shard.plan is not None or shard.total is not None or body.total is None:
        return None
    stop = min(shard.stop, body.total)
    return body.span_of(begin, stop) if begin < stop else None


def _check_promise(shard: Shard, part: Part, body: Body) -> None:
    """Hold what a body promises against what was asked; a store has already checked where it starts."""
    check_same(body, shard.url, part.start, shard.etag, shard.length)
    if body.stop is not None and body.total is not None and body.stop < min(part.stop, body.total):
        raise StoreError(
            f"asked for the bytes up to {min(part.stop, body.total)}, "
            f"but the server sent only those up to {body.stop}",
            shard=redact(shard.url),
            offset=body.stop,
        )


def _check_end(shard: Shard, part: Part, body: Body, offset: int) -> None:
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
