"""``.map`` with a coroutine function: many at a time on the engine's loop, results in order.

The loop goes on while the consumer computes. Samples travel to it and back in small blocks, and as many
runners as the concurrency allows take them one by one; there is no task and no queue hop for a sample.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import Any

from .._flow.channel import Channel, EndOfChannel
from .._flow.engine import Scope
from ..blocks import Block, PickedTrail, Rows
from ..types import Position
from .context import given
from .draws import SampleCalls
from .heard import call_heard
from .map import OneByOne
from .op import PIECE_SAMPLES, Blocks, Lane, Opener, name_of, note_sample, shown
from .pieces import Pieces, cut
from .skips import Applied

__all__ = ["AsyncMap"]

AsyncFn = Callable[..., Coroutine[Any, Any, Any]]


class AsyncMap(OneByOne):
    """``await fn(sample)`` in the place of each sample; ``fn`` is a coroutine function."""

    def open(self, upstream: Opener, start: Position, lane: Lane) -> Blocks:
        # Both ways unbounded but for the count kept below: the loop never waits to hand back a result.
        most = 2 * self.concurrency + PIECE_SAMPLES
        inbox, outbox = Channel[Block](most), Channel[Applied](most)
        attempts, during = lane.attempts(start), shown(self)
        fn = given(self.fn, self.context, lane)
        lane.engine.submit(partial(_map_blocks, fn, self.concurrency, lane, inbox, outbox), outbox)
        outstanding = 0
        pieces = Pieces(min(self.concurrency, PIECE_SAMPLES), lane.made_bytes)

        try:
            with closing(upstream(start, lane.for_columns(False))) as blocks:
                for block in blocks:
                    for piece in cut(block, pieces.size):
                        inbox.send(piece)
                        outstanding += len(piece)
                        # Twice as many as run, so that none idles while this thread is elsewhere; but of
                        # large samples no more than run.
                        while (
                            len(outbox)
                            or outstanding > (0 if lane.singly else 2 * self.concurrency)
                            or (outstanding > self.concurrency and not pieces.may_hold(outstanding))
                        ):
                            done = outbox.receive()
                            outstanding -= len(done.given)
                            pieces.measure(done.made.rows())
                            yield from done.hand_on(attempts, during)
                            del done
            inbox.finish()
            try:
                while True:
                    yield from outbox.receive().hand_on(attempts, during)
            except EndOfChannel:
                return
        finally:
            inbox.finish()
            outbox.close()


@dataclass(slots=True)
class _Pending:
    """A block under way."""

    block: Block
    samples: list[Any]
    results: list[Any]
    left: int
    # Index of the first sample that failed, and its error.
    failed: tuple[int, Exception] | None = None
    # All of those, where errors are skipped.
    skipped: list[tuple[int, Exception]] = field(default_factory=list)

    def applied(self) -> Applied:
        """What became of it, when all of its samples are through."""
        block = self.block
        if not self.skipped:
            return Applied(block, len(block), Rows(self.results, block.trail))
        self.skipped.sort(key=itemgetter(0))
        bad = {index for index, _ in self.skipped}
        good = [index for index in range(len(block)) if index not in bad]
        made = Rows([self.results[index] for index in good], PickedTrail(block.trail, good))
        return Applied(block, len(block), made, None, self.skipped)


@dataclass(slots=True)
class _Cursor:
    """Hands out samples one by one, across blocks, to whichever runner asks."""

    inbox: Channel[Block]
    order: deque[_Pending] = field(default_factory=deque)
    open: _Pending | None = None
    next_index: int = 0
    # A failure was raised: no sample behind it may be handed on, and no second one raised beside it.
    failed: bool = False
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def take(self) -> tuple[_Pending, int]:
        while self.open is None or self.next_index == len(self.open.block):
            async with self.turn:
                if self.open is None or self.next_index == len(self.open.block):
                    block = await self.inbox.receive_async()
                    self.open = _Pending(block, block.rows(), [None] * len(block), len(block))
                    self.order.append(self.open)
                    self.next_index = 0
        index = self.next_index
        self.next_index += 1
        return self.open, index


async def _map_blocks(
    fn: AsyncFn, concurrency: int, lane: Lane, inbox: Channel[Block], outbox: Channel[Applied]
) -> None:
    cursor = _Cursor(inbox)
    async with Scope() as scope:
        for _ in range(concurrency):
            scope.start(partial(_run, fn, lane, cursor, outbox))


async def _run(fn: AsyncFn, lane: Lane, cursor: _Cursor, outbox: Channel[Applied]) -> None:
    """One runner: take a sample, map it, hand on the blocks that are done."""
    while not cursor.failed:
        try:
            pending, index = await cursor.take()
        except EndOfChannel:
            return
        sample = pending.samples[index]
        try:
            with SampleCalls(lane, pending.block.trail, range(index)):
                pending.results[index] = await call_heard(fn, sample)
        except Exception as error:
            if lane.skips is not None and not isinstance(error, MemoryError):
                pending.skipped.append((index, error))
            elif pending.failed is None or index < pending.failed[0]:
                note_sample(error, f"map({name_of(fn)})", pending.block, index)
                pending.failed = (index, error)
        pending.left -= 1
        while cursor.order and cursor.order[0].left == 0 and not cursor.failed:
            done = cursor.order.popleft()
            if done.failed is None:
                outbox.send(done.applied())
                continue
            count, failure = done.failed
            if count:  # what came before the failure is good, and may complete a batch
                outbox.send(Applied(done.block, count, Rows(done.results[:count], done.block.trail)))
            cursor.failed = True
            raise failure
