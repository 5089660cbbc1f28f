"""The source of recipes over the user's own iterables, plain or asynchronous.

Each lane iterates a copy of its own and must yield only its own part: a function is given the topology,
an object asks ``get_topology()``. One that does neither is refused before its first sample is handed
on, since every lane would yield the same samples. None is told of torch's workers, which are no other
parts than the lanes are; an object that asks for both is refused, since nobody can know what it makes of
them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from contextvars import Context, copy_context
from dataclasses import dataclass
from functools import partial
from itertools import islice
from time import monotonic
from typing import Any, TypeAlias

from .._flow.channel import Channel, EndOfChannel
from .._flow.engine import Engine, Scope
from ..blocks import Block, OffsetTrail, Place, Rows, SourceTrail
from ..ops.heard import Heard, call_heard
from ..ops.op import Blocks, Lane, name_of
from ..plan.counts import Deal, UnknownCount
from ..plan.topology import AskedTopology, Topology, enter_topology
from ..types import Position

__all__ = ["Iterables", "Make", "iterate_async"]

Make: TypeAlias = Callable[[Topology], Iterable[Any] | AsyncIterable[Any]]

# A block should be worth its hand-over and not hold up the first batch of a slow source.
_BLOCK_SAMPLES = 32

# Nor should a slow one hold up a batch, or a close, for a whole block.
_BLOCK_S = 0.05

# Blocks between the loop and the consumer of an asynchronous source; its samples have no known size, so
# they are bounded by count: enough to go on while a batch is collated.
_BLOCKS_AHEAD = 4

# What to write for a dataset of Hugging Face's, say.
_FUNCTION = "from_iterable(lambda topology: dataset.shard(num_shards=topology.lanes, index=topology.lane))"


@dataclass(frozen=True)
class Iterables:
    """Samples of one iterable a lane.

    Args:
        make: Called with the topology, for each lane and epoch; or an iterable object, which is
            iterated anew in each.
    """

    make: Make | Iterable[Any] | AsyncIterable[Any]

    most_lanes = None

    @property
    def stage(self) -> str:
        return f"from_iterable({self.describe()['iterable']})"

    def __repr__(self) -> str:
        return f"Iterables({self.describe()['iterable']})"  # not the samples, which may be in there

    def open(self, start: Position, lane: Lane) -> Blocks:
        """The iterable's samples; a position counts them, and resuming runs through those before."""
        skip: int = start.get("sample", 0)
        # Lanes take turns in one thread; the topology that an iterator sees must be its own lane's.
        context = copy_context()
        here = AskedTopology(lane.topology)
        context.run(enter_topology, here)
        iterable = context.run(self.make, here.told()) if callable(self.make) else self.make
        check = None if lane.topology.lanes == 1 else partial(self._check, iterable, here)
        if isinstance(iterable, AsyncIterable):
            blocks = _open_async(iterable, skip, here, check, lane.engine)
        elif isinstance(iterable, Iterable):
            blocks = _open_sync(iterable, skip, context, check)
        else:
            raise TypeError(
                f"from_iterable should get an iterable, or a function that makes one, but "
                f"{name_of(self.make) if callable(self.make) else 'it'} gave {type(iterable).__name__}"
            )
        with closing(blocks):
            for block in blocks:
                trail = SourceTrail(block.trail, None, lane.topology.lane, lane.repetition, lane.component)
                yield block.follow(trail)

    def count_samples(self, deal: Deal) -> list[float]:
        raise UnknownCount(f"{self.describe()['iterable']} does not say how many samples it gives each lane")

    def places_at(self, position: Position, deal: Deal) -> list[Place]:
        return [Place(None, position.get("sample", 0), deal.lanes[0], deal.repetition)]

    def describe(self) -> Mapping[str, Any]:
        kind = name_of(self.make) if callable(self.make) else type(self.make).__qualname__
        return {"source": "iterable", "iterable": kind}

    def _check(self, iterable: object, here: AskedTopology) -> None:
        if not callable(self.make):
            _check_asked(iterable, here)
        elif not here.asked:
            raise RuntimeError(
                f"{name_of(self.make)} should give each of {here.topology.lanes} lanes its own part, but it "
                "never looked at the lane of the topology that it is given: every lane would yield the same "
                "samples. Give topology.split(items), or load it in one lane (lanes=1, on one rank)"
            )


def _check_asked(iterable: object, here: AskedTopology) -> None:
    """Refuse an object that cannot know its part, or may have taken a part of it."""
    name, lanes = type(iterable).__name__, here.topology.lanes
    if not here.asked:
        raise RuntimeError(
            f"{name} should yield only its part of {lanes} lanes, but it never "
            "asked for them: every lane would yield the same samples. Call asyncloader.get_topology() in "
            "its __iter__ or __aiter__ before the first sample (topology.split(items) gives the part), or "
            "load it in one lane (lanes=1, on one rank). A library's dataset that cannot ask goes into a "
            f"function: {_FUNCTION}"
        )
    if here.asked_workers:
        raise RuntimeError(
            f"{name} should find its part of {lanes} lanes in one way, but it asked both "
            "asyncloader.get_topology() and torch.utils.data.get_worker_info(): split by both, samples would "
            "be lost or come twice. Ask get_topology() alone: its lanes are those of all ranks and workers. "
            f"A library's dataset that asks for workers goes into a function: {_FUNCTION}"
        )


def _open_sync(
    iterable: Iterable[Any], skip: int, context: Context, check: Callable[[], None] | None
) -> Blocks:
    iterator: Any = context.run(iter, iterable)
    index = 0
    failure: Exception | None = None
    try:
        samples, failure = context.run(_take, iterator, 1)
        while True:
            if check is not None and failure is None:
                check()
            if not samples:
                break
            if index + len(samples) > skip:
                fresh = max(skip - index, 0)
                yield Rows(samples[fresh:], OffsetTrail(index + fresh, None))
            if failure is not None:
                break
            index += len(samples)
            samples, failure = context.run(_take, iterator, _BLOCK_SAMPLES)
        if failure is not None:
            raise failure
    finally:
        if hasattr(iterator, "close"):
            iterator.close()


def _take(iterator: Iterator[Any], most: int) -> tuple[list[Any], Exception | None]:
    """The next samples, fewer at the end, where they are slow to come, or before a failure."""
    samples: list[Any] = []
    began = monotonic()
    try:
        with Heard():
            for sample in islice(iterator, most):
                samples.append(sample)
                if monotonic() - began > _BLOCK_S:
                    break
    except Exception as error:
        return samples, error
    return samples, None


def iterate_async(iterable: AsyncIterable[Any], engine: Engine) -> Generator[Any, None, None]:
    """The samples of an asynchronous iterable, for a plain loop; it runs ahead on the engine's loop."""
    with closing(_open_async(iterable, 0, None, None, engine)) as blocks:
        for block in blocks:
            yield from block.rows()


def _open_async(
    iterable: AsyncIterable[Any],
    skip: int,
    here: AskedTopology | None,
    check: Callable[[], None] | None,
    engine: Engine,
) -> Blocks:
    out = Channel[Block](_BLOCKS_AHEAD)
    pump = _Pump(iterable, skip, here, check, out)
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

    One task gathers, another sends what was gathered. The second gets its turn when the iterator waits
    for something, or when a block is full; so a fast source makes full blocks, and a slow one holds
    nothing back.
    """

    def __init__(
        self,
        iterable: AsyncIterable[Any],
        skip: int,
        here: AskedTopology | None,
        check: Callable[[], None] | None,
        out: Channel[Block],
    ) -> None:
        self._iterable = iterable
        self._skip = skip
        self._here = here
        self._check = check
        self._out = out
        self._gathered: list[Any] = []
        self._index = 0
        self._ended = False
        self._failure: Exception | None = None
        self._gathered_some = asyncio.Event()
        self._has_room = asyncio.Event()

    async def run(self) -> None:
        async with Scope() as scope:
            scope.start(self._send)
            try:
                await call_heard(self._gather)
            except Exception as error:
                self._failure = error  # raised once what came before it was sent
            self._ended = True
            self._gathered_some.set()
        if self._failure is not None:
            raise self._failure

    async def _gather(self) -> None:
        # None for a dataset of the torch kind, whose parts torch's workers are.
        if self._here is not None:
            enter_topology(self._here)
        iterator: Any = aiter(self._iterable)
        try:
            async for sample in iterator:
                if self._check is not None:
                    self._check()
                self._index += 1
                if self._index <= self._skip:
                    continue
                self._gathered.append(sample)
                self._gathered_some.set()
                if len(self._gathered) >= _BLOCK_SAMPLES:
                    self._has_room.clear()
                    await self._has_room.wait()
        finally:
            if hasattr(iterator, "aclose"):
                await iterator.aclose()

    async def _send(self) -> None:
        while not (self._ended and not self._gathered):
            await self._gathered_some.wait()
            self._gathered_some.clear()
            if self._gathered:
                samples, self._gathered = self._gathered, []
                block = Rows(samples, OffsetTrail(self._index - len(samples), None))
                self._has_room.set()
                await self._out.send_async(block)
                if self._ended:
                    self._gathered_some.set()
