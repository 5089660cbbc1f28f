"""The source of recipes over the user's own iterables, plain or asynchronous.

Each lane iterates a copy of its own and must yield only its own part: a function is given the topology,
an object asks ``get_topology()``. One that does neither is refused before its first sample is handed
on, since every lane would yield the same samples.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Generator, Iterable, Mapping
from contextlib import closing
from contextvars import copy_context
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias

from ._flow.channel import Channel, ChannelClosed, EndOfChannel
from ._flow.engine import Engine
from .ops.op import Blocks, Lane, name_of
from .plan.topology import Topology, enter_topology
from .types import Block, OffsetTrail, Position

__all__ = ["Iterables", "Make", "iterate_async"]

Make: TypeAlias = Callable[[Topology], Iterable[Any] | AsyncIterable[Any]]

# A block should be worth its hand-over and not hold up the first batch of a slow source.
_BLOCK_SAMPLES = 32

# Blocks between the loop and the consumer of an asynchronous source; its samples have no known size, so
# they are bounded by count: enough to go on while a batch is collated.
_BLOCKS_AHEAD = 4


@dataclass(frozen=True)
class Iterables:
    """Samples of one iterable a lane.

    Args:
        make: Called with the topology, for each lane and epoch; or an iterable object, which is
            iterated anew in each.
    """

    make: Make | Iterable[Any] | AsyncIterable[Any]

    def open(self, start: Position, lane: Lane) -> Blocks:
        """The iterable's samples; a position counts them, and resuming runs through those before."""
        skip: int = start.get("sample", 0)
        iterable = self.make(lane.topology) if callable(self.make) else self.make
        must_ask = lane.topology.lanes > 1 and not callable(self.make)
        if isinstance(iterable, AsyncIterable):
            yield from _open_async(iterable, skip, must_ask, lane.topology, lane.engine)
        elif isinstance(iterable, Iterable):
            yield from _open_sync(iterable, skip, must_ask, lane)
        else:
            raise TypeError(
                f"from_iterable should get an iterable, or a function that makes one, but "
                f"{name_of(self.make) if callable(self.make) else 'it'} gave {type(iterable).__name__}"
            )

    def describe(self) -> Mapping[str, Any]:
        kind = name_of(self.make) if callable(self.make) else type(self.make).__qualname__
        return {"source": "iterable", "iterable": kind}


def _not_asked(iterable: object, topology: Topology) -> RuntimeError:
    return RuntimeError(
        f"{type(iterable).__name__} should yield only its part of {topology.lanes} lanes, but it never "
        "asked for them: every lane would yield the same samples. Call asyncloader.get_topology() in "
        "its __iter__ or __aiter__ before the first sample (topology.split(items) gives the part), or "
        "load it in one lane (lanes=1, on one rank)"
    )


def _open_sync(iterable: Iterable[Any], skip: int, must_ask: bool, lane: Lane) -> Blocks:
    # Lanes take turns in one thread; the topology that an iterator sees must be its own lane's.
    context = copy_context()
    here = context.run(enter_topology, lane.topology)
    iterator: Any = context.run(iter, iterable)
    try:
        samples = context.run(list, islice(iterator, 1))
        if must_ask and not here.asked:
            raise _not_asked(iterable, lane.topology)
        index = 0
        while samples:
            if index + len(samples) > skip:
                fresh = max(skip - index, 0)
                yield Block(samples[fresh:], OffsetTrail(index + fresh, None))
            index += len(samples)
            samples = context.run(list, islice(iterator, _BLOCK_SAMPLES))
    finally:
        if hasattr(iterator, "close"):
            iterator.close()


def iterate_async(iterable: AsyncIterable[Any], engine: Engine) -> Generator[Any, None, None]:
    """The samples of an asynchronous iterable, for a plain loop; it runs ahead on the engine's loop."""
    with closing(_open_async(iterable, 0, False, Topology(), engine)) as blocks:
        for block in blocks:
            yield from block.samples


def _open_async(
    iterable: AsyncIterable[Any], skip: int, must_ask: bool, topology: Topology, engine: Engine
) -> Blocks:
    out = Channel[Block](_BLOCKS_AHEAD)
    pump = _Pump(iterable, skip, must_ask, topology, out)
    engine.submit(pump.run, out)
    try:
        while True:
            yield out.receive()
    except EndOfChannel:
        return
    finally:
        out.close()


class _Pump:
    """Runs the user's iterator on the loop and sends its samples in blocks.

    A block is sent when it is full, or when the iterator waits for something: a callback scheduled at
    a block's first sample runs only once the iterator has given the loop its turn.
    """

    def __init__(
        self,
        iterable: AsyncIterable[Any],
        skip: int,
        must_ask: bool,
        topology: Topology,
        out: Channel[Block],
    ) -> None:
        self._iterable = iterable
        self._skip = skip
        self._must_ask = must_ask
        self._topology = topology
        self._out = out
        self._gathered: list[Any] = []
        self._index = 0

    async def run(self) -> None:
        here = enter_topology(self._topology)
        iterator: Any = aiter(self._iterable)
        loop = asyncio.get_running_loop()
        try:
            async for sample in iterator:
                if self._index == 0 and self._must_ask and not here.asked:
                    raise _not_asked(self._iterable, self._topology)
                self._index += 1
                if self._index <= self._skip:
                    continue
                self._gathered.append(sample)
                if len(self._gathered) == 1:
                    loop.call_soon(self._flush)
                elif len(self._gathered) >= _BLOCK_SAMPLES:
                    await self._out.send_async(self._cut_block())
            if self._gathered:
                await self._out.send_async(self._cut_block())
        finally:
            if hasattr(iterator, "aclose"):
                await iterator.aclose()

    def _flush(self) -> None:
        if self._gathered and len(self._out) < _BLOCKS_AHEAD:
            try:
                self._out.send(self._cut_block())
            except ChannelClosed:  # the consumer has gone, and the engine is about to cancel this task
                return

    def _cut_block(self) -> Block:
        samples, self._gathered = self._gathered, []
        return Block(samples, OffsetTrail(self._index - len(samples), None))
