"""The source of recipes over the user's own iterables, plain or asynchronous.

Each lane iterates a copy of its own and must yield only its own part: a function is given the topology,
an object asks ``get_topology()``, and of a list each lane takes its part. One that does neither is refused
before its first sample is handed on, since every lane would yield the same samples. None is told of torch's
workers, which are no other parts than the lanes are; an object that asks for both is refused, since nobody
can know what it makes of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from contextvars import Context, copy_context
from dataclasses import dataclass
from functools import cached_property, partial
from inspect import Signature, signature
from itertools import islice
from time import monotonic
from typing import Any, TypeAlias

from ..blocks import Block, OffsetTrail, Place, Rows, SourceTrail, bytes_of
from ..flow.channel import Channel, EndOfChannel
from ..flow.engine import Engine, Scope
from ..plan.lanes import Deal, UnknownCount
from ..plan.topology import AskedTopology, Topology, enter_topology
from ..types import Position
from .calls import UserCodeErrors, call_user_code
from .lane import Blocks, Lane
from .op import name_of

Make: TypeAlias = Callable[[Topology], Iterable[Any] | AsyncIterable[Any]]

# A block should be worth its hand-over and not hold up the first batch of a slow source.
_BLOCK_SAMPLES = 32

# Nor should it hold more of large samples, whatever the memory may hold.
_BLOCK_BYTES = 8 << 20

# A sample that came within it is not measured, which would take longer than all else that is done for it: a
# large one takes longer to make, and one that was there already takes no more memory.
_QUICK_S = 10e-6

# Nor should a slow one hold up a batch, or a close, for a whole block.
_BLOCK_S = 0.05

# Blocks between the loop and the consumer of an asynchronous source, of small samples: enough to go on while
# a batch is collated.
_BLOCKS_AHEAD = 4

# What to write for a dataset of Hugging Face's, say.
_FUNCTION = "from_iterable(lambda topology: dataset.shard(num_shards=topology.lanes, index=topology.lane))"


@dataclass(frozen=True)
class Iterables:
    """Samples of one iterable a lane.

    Args:
        make: Called with the topology, for each lane and epoch, or with nothing if it takes nothing; or an
            iterable object, which is iterated anew in each.
    """

    make: Make | Callable[[], Iterable[Any] | AsyncIterable[Any]] | Iterable[Any] | AsyncIterable[Any]

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
        check = None
        if self._is_sequence:
            iterable: Any = lane.topology.split(self.make)  # type: ignore[arg-type]  # it is one
        else:
            if not callable(self.make):
                iterable = self.make
            else:
                iterable = context.run(self.make, *([here.told()] if self._takes_topology else ()))
            if lane.topology.lanes > 1:
                check = partial(self._check, iterable, here)
        most_bytes = lane.budget.claim(lane.topology.lane).most_bytes
        if isinstance(iterable, AsyncIterable):
            blocks = _open_async(iterable, skip, here, check, lane.services.engine, most_bytes)
        elif isinstance(iterable, Iterable):
            blocks = _open_sync(iterable, skip, context, check, min(most_bytes, _BLOCK_BYTES))
        else:
            raise TypeError(
                f"from_iterable should get an iterable, or a function that makes one, but "
                f"{name_of(self.make) if callable(self.make) else 'it'} gave {type(iterable).__name__}"
            )
        with closing(blocks):
            for block in blocks:
                trail = SourceTrail(block.trail, None, lane.topology.lane, lane.repetition, lane.component)
                yield block.follow(trail)
                del block  # before the next one is made

    def count_samples(self, deal: Deal) -> list[float]:
        if self._is_sequence:
            count = len(self.make)  # type: ignore[arg-type]  # it is one
            return [len(range(lane, count, deal.lane_count)) for lane in deal.lanes]
        raise UnknownCount(f"{self.describe()['iterable']} does not say how many samples it gives each lane")

    def places_at(self, position: Position, deal: Deal) -> list[Place]:
        return [Place(None, position.get("sample", 0), deal.lanes[0], deal.repetition)]

    def describe(self) -> Mapping[str, Any]:
        kind = name_of(self.make) if callable(self.make) else type(self.make).__qualname__
        return {"source": "iterable", "iterable": kind}

    @cached_property
    def _is_sequence(self) -> bool:
        """Whether it is a plain sequence, which knows nothing of lanes and gives each its part by index."""
        plain = {list.__iter__, tuple.__iter__, range.__iter__, Sequence.__iter__}
        return isinstance(self.make, Sequence) and type(self.make).__iter__ in plain

    @cached_property
    def _takes_topology(self) -> bool:
        """Whether the function is to be given the topology: all are that can take it."""
        assert callable(self.make)
        try:
            parameters = signature(self.make)
        except ValueError:  # of some that are written in C nobody can tell
            return True
        return _binds(parameters, Topology()) or not _binds(parameters)

    def _check(self, iterable: object, here: AskedTopology) -> None:
        if not callable(self.make):
            _check_asked(iterable, here)
        elif not here.asked and not self._takes_topology:
            name = name_of(self.make)
            raise RuntimeError(
                f"{name} takes no topology, so that each of {here.topology.lanes} lanes would yield all of "
                f"its samples. If they are the same in each call, write from_iterable(lambda topology: "
                f"topology.split({name}())), of which each lane keeps its part; or load it in one lane "
                "(lanes=1, on one rank)"
            )
        elif not here.asked:
            raise RuntimeError(
                f"{name_of(self.make)} should give each of {here.topology.lanes} lanes its own part, but it "
                "never looked at the lane of the topology that it is given: every lane would yield the same "
                "samples. Give topology.split(items), or load it in one lane (lanes=1, on one rank)"
            )


def _binds(parameters: Signature, *given: object) -> bool:
    try:
        parameters.bind(*given)
    except TypeError:
        return False
    return True


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
    iterable: Iterable[Any],
    skip: int,
    context: Context,
    check: Callable[[], None] | None,
    block_bytes: int,
) -> Blocks:
    iterator: Any = context.run(iter, iterable)
    index = 0
    failure: Exception | None = None
    try:
        samples, failure = context.run(_take, iterator, 1, block_bytes)
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
            samples = []  # which is held no longer while the next ones are made
            samples, failure = context.run(_take, iterator, _BLOCK_SAMPLES, block_bytes)
        if failure is not None:
            raise failure
    finally:
        if hasattr(iterator, "close"):
            iterator.close()


def _take(iterator: Iterator[Any], most: int, block_bytes: int) -> tuple[list[Any], Exception | None]:
    """The next samples, fewer at the end, where they are large or slow to come, or before a failure."""
    samples: list[Any] = []
    began = came = monotonic()
    room_bytes = block_bytes
    try:
        with UserCodeErrors():
            for sample in islice(iterator, most):
                samples.append(sample)
                now = monotonic()
                if now - came > _QUICK_S:
                    size_bytes = bytes_of(sample)
                    room_bytes -= size_bytes
                    if room_bytes < size_bytes:  # the next one is taken to be as large
                        break
                if now - began > _BLOCK_S:
                    break
                came = now
    except Exception as error:
        return samples, error
    return samples, None


def iterate_async(iterable: AsyncIterable[Any], engine: Engine) -> Generator[Any, None, None]:
    """The samples of an asynchronous iterable, for a plain loop; it runs ahead on the engine's loop."""
    with closing(_open_async(iterable, 0, None, None, engine, _BLOCKS_AHEAD * _BLOCK_BYTES)) as blocks:
        for block in blocks:
            yield from block.rows()


def _open_async(
    iterable: AsyncIterable[Any],
    skip: int,
    here: AskedTopology | None,
    check: Callable[[], None] | None,
    engine: Engine,
    most_bytes: int,
) -> Blocks:
    # What is gathered, what is about to be sent, and what was sent.
    block_bytes = min(most_bytes // (_BLOCKS_AHEAD + 2), _BLOCK_BYTES)
    out = Channel[Block](max(_BLOCKS_AHEAD * block_bytes, _BLOCKS_AHEAD))
    pump = _Pump(iterable, skip, here, check, out, block_bytes)
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
        block_bytes: int,
    ) -> None:
        self._iterable = iterable
        self._skip = skip
        self._here = here
        self._check = check
        self._out = out
        self._block_bytes = block_bytes
        self._gathered: list[Any] = []
        #: What may still be gathered, and when the latest sample came.
        self._room_bytes = block_bytes
        self._came = monotonic()
        self._is_full = False
        self._index = 0
        self._ended = False
        self._failure: Exception | None = None
        self._gathered_some = asyncio.Event()
        self._has_room = asyncio.Event()

    async def run(self) -> None:
        async with Scope() as scope:
            scope.start(self._send)
            try:
                await call_user_code(self._gather)
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
                self._measure(sample)
                del sample  # so that it is not held while the next one is made
                self._gathered_some.set()
                if self._is_full or len(self._gathered) >= _BLOCK_SAMPLES:
                    self._has_room.clear()
                    await self._has_room.wait()
        finally:
            if hasattr(iterator, "aclose"):
                await iterator.aclose()

    def _measure(self, sample: Any) -> None:
        now = monotonic()
        if now - self._came > _QUICK_S:
            size_bytes = bytes_of(sample)
            self._room_bytes -= size_bytes
            self._is_full = self._room_bytes < size_bytes
        self._came = now

    async def _send(self) -> None:
        while not (self._ended and not self._gathered):
            await self._gathered_some.wait()
            self._gathered_some.clear()
            if self._gathered:
                samples, self._gathered = self._gathered, []
                size_bytes = self._block_bytes - self._room_bytes
                self._room_bytes, self._is_full = self._block_bytes, False
                block = [Rows(samples, OffsetTrail(self._index - len(samples), None))]
                del samples
                self._has_room.set()
                # At least an equal part of the room: some samples show no size.
                await self._out.send_async(block.pop(), max(size_bytes, self._block_bytes, 1))
                if self._ended:
                    self._gathered_some.set()
