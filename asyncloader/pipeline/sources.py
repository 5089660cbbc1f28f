"""The source of datasets over the user's own iterables, plain or asynchronous.

Each lane iterates its own copy and must yield only its own part. A function is given the topology, an object
calls ``get_topology()``, and of a list each lane takes its part. An iterable that does not use the topology
raises an error before its first sample is passed on, since every lane would yield the same samples. Torch's
worker info shows a single worker here, since lanes already split the data. An object that uses both raises an
error, since it may have split its part twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from functools import cached_property, partial
from inspect import Signature, signature
from itertools import islice
from time import monotonic
from typing import Any, TypeAlias

from ..blocks import Block, OffsetTrail, Place, Rows, bytes_of
from ..flow.channel import Channel
from ..flow.engine import Engine, Scope
from ..plan.lanes import Deal, UnknownCount
from ..plan.topology import AskedTopology, Topology, enter_topology
from ..types import Position
from .calls import UserCodeErrors, call_user_code
from .lane import Blocks, Lane
from .op import name_of

Make: TypeAlias = Callable[[Topology], Iterable[Any] | AsyncIterable[Any]]

# Enough that the cost of a block is small, and few enough that the first batch of a slow source comes soon.
_BLOCK_SAMPLES = 32

# The most bytes of a block of large samples, whatever the memory may hold.
_BLOCK_BYTES = 8 << 20

# A sample that came within this time is not measured, which would take longer than all other work for it. A
# large sample takes longer to make, or was in memory before and takes no additional memory.
_QUICK_S = 10e-6

# A block of slow samples ends after this time, so that it does not delay a batch, or a close.
_BLOCK_S = 0.05

# Blocks of small samples between the loop and the consumer of an asynchronous source: enough to continue
# while a batch is collated.
_BLOCKS_AHEAD = 4

# What to write for a library's dataset, such as one of Hugging Face's.
_FUNCTION = "from_iterable(lambda topology: dataset.shard(num_shards=topology.lanes, index=topology.lane))"


@dataclass(frozen=True)
class Iterables:
    """Samples of one iterable a lane.

    Args:
        make: A function, called for each lane and epoch, with the topology if it has a parameter; or an
            iterable object, which is iterated once for each.
    """

    make: Make | Callable[[], Iterable[Any] | AsyncIterable[Any]] | Iterable[Any] | AsyncIterable[Any]

    most_lanes = None

    @property
    def stage(self) -> str:
        return f"from_iterable({self.describe()['iterable']})"

    def __repr__(self) -> str:
        return f"Iterables({self.describe()['iterable']})"  # without the samples of a list

    def open(self, start: Position, lane: Lane) -> Blocks:
        """The iterable's samples. A position counts them; resuming iterates those before again."""
        skip: int = lane.saved(start).get("sample", 0)
        # Lanes take turns in one thread, and each iterator must see the topology of its own lane.
        context = copy_context()
        here = AskedTopology(lane.topology)
        context.run(enter_topology, here)
        check = None
        if self._is_sequence:
            iterable: Any = lane.topology.split(self.make)  # type: ignore[arg-type]  # it is one
        else:
            iterable = self.make
            if callable(self.make):
                iterable = context.run(self.make, *([here.told()] if self._takes_topology else ()))
            if lane.topology.lanes > 1:
                check = partial(self._check, iterable, here)
        most_bytes = lane.budget.claim().most_bytes
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
                number, repetition = lane.topology.lane, lane.repetition
                block.trail = block.trail.within(None, number, repetition, lane.component)
                yield block
                del block  # before the next one is made

    def count_samples(self, deal: Deal) -> list[float]:
        if self._is_sequence:
            count = len(self.make)  # type: ignore[arg-type]  # it is one
            return [len(range(lane, count, deal.lane_count)) for lane in deal.lanes]
        raise UnknownCount(f"{self.describe()['iterable']} does not say how many samples it gives each lane")

    def places_at(self, entry: Mapping[str, Any], deal: Deal) -> list[Place]:
        return [Place(None, entry.get("sample", 0), deal.lanes[0], deal.repetition)]

    def describe(self) -> Mapping[str, Any]:
        kind = name_of(self.make) if callable(self.make) else type(self.make).__qualname__
        return {"source": "iterable", "iterable": kind}

    @cached_property
    def _is_sequence(self) -> bool:
        """Whether it is a plain sequence; each lane takes its part by index."""
        plain = {list.__iter__, tuple.__iter__, range.__iter__, Sequence.__iter__}
        return isinstance(self.make, Sequence) and type(self.make).__iter__ in plain

    @cached_property
    def _takes_topology(self) -> bool:
        """Whether to call the function with the topology: if it can take it."""
        assert callable(self.make)
        try:
            parameters = signature(self.make)
        except ValueError:  # some functions written in C have no signature
            return True
        return _binds(parameters, Topology()) or not _binds(parameters)

    def _check(self, iterable: object, here: AskedTopology) -> None:
        """Raise an error if the iterable cannot yield only its lane's part, or may have split it twice."""
        lanes = here.topology.lanes
        if not here.asked:
            raise RuntimeError(self._unsplit(type(iterable).__name__, lanes))
        if here.asked_workers and not callable(self.make):
            raise RuntimeError(
                f"{type(iterable).__name__} should find its part of {lanes} lanes in one way, but it called "
                "both asyncloader.get_topology() and torch.utils.data.get_worker_info(): split by both, "
                "samples would be lost or come twice. Call get_topology() alone: its lanes are those of all "
                "ranks and workers. A library's dataset that uses worker info goes into a function: "
                f"{_FUNCTION}"
            )

    def _unsplit(self, name: str, lanes: int) -> str:
        """The message about an iterable that would yield the same samples in every lane."""
        if not callable(self.make):
            return (
                f"{name} should yield only its part of {lanes} lanes, but it never called "
                "asyncloader.get_topology(): every lane would yield the same samples. Call it in __iter__ or "
                "__aiter__ before the first sample (topology.split(items) gives the part), or load the data "
                "in one lane (lanes=1, on one rank). A library's dataset that cannot do this goes into a "
                f"function: {_FUNCTION}"
            )
        if self._takes_topology:
            return (
                f"{name_of(self.make)} should give each of {lanes} lanes its own part, but it "
                "never looked at the lane of the topology that it is given: every lane would yield the same "
                "samples. Return topology.split(items), or load the data in one lane (lanes=1, on one rank)"
            )
        name = name_of(self.make)
        return (
            f"{name} takes no topology, so each of {lanes} lanes would yield all of its samples. If they are "
            f"the same in each call, write from_iterable(lambda topology: topology.split({name}())), and "
            "each lane keeps its part; or load the data in one lane (lanes=1, on one rank)"
        )


def _binds(parameters: Signature, *given: object) -> bool:
    try:
        parameters.bind(*given)
    except TypeError:
        return False
    return True


def _open_sync(
    iterable: Iterable[Any],
    skip: int,
    context: Context,
    check: Callable[[], None] | None,
    block_bytes: int,
) -> Blocks:
    iterator: Any = context.run(iter, iterable)
    index, most = 0, 1
    try:
        while True:
            samples, failure = context.run(_take, iterator, most, block_bytes)
            if check is not None and failure is None:
                check()
            if samples and index + len(samples) > skip:
                fresh = max(skip - index, 0)
                yield Rows(samples[fresh:], OffsetTrail(index + fresh, None))
            if failure is not None:
                raise failure
            if not samples:
                return
            index, most = index + len(samples), _BLOCK_SAMPLES
            samples = []  # not held while the next ones are made
    finally:
        if hasattr(iterator, "close"):
            iterator.close()


def _take(iterator: Iterator[Any], most: int, block_bytes: int) -> tuple[list[Any], Exception | None]:
    """The next samples: fewer than ``most`` at the end, if they are large or slow, or before a failure."""
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
                    # Assuming that the next one is as large.
                    if room_bytes < size_bytes or now - began > _BLOCK_S:
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
    with closing(out):
        yield from out


@dataclass(eq=False)
class _Pump:
    """Runs the user's iterator on the loop and sends its samples in blocks.

    One task gathers samples, another sends what was gathered. The second gets its turn when the iterator
    waits for something, or when a block is full. So a fast source makes full blocks, and samples of a slow
    source are sent at once.

    Args:
        iterable: The user's.
        skip: How many samples to leave out at the beginning.
        here: The topology that the iterator sees; None for a map-style or iterable dataset of torch's, whose
            parts are torch's workers.
        check: Called after each sample; see ``Iterables``.
        out: Gets the blocks.
        block_bytes: The most bytes of a block of large samples.
    """

    iterable: AsyncIterable[Any]
    skip: int
    here: AskedTopology | None
    check: Callable[[], None] | None
    out: Channel[Block]
    block_bytes: int
    _gathered: list[Any] = field(default_factory=list)
    _gathered_bytes: int = 0
    _came: float = field(default_factory=monotonic)
    _is_full: bool = False
    _index: int = 0
    _ended: bool = False
    _gathered_some: asyncio.Event = field(default_factory=asyncio.Event)
    _has_room: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        failure: Exception | None = None
        async with Scope() as scope:
            scope.start(self._send)
            try:
                await call_user_code(self._gather)
            except Exception as error:
                failure = error  # raised after the samples before it are sent
            self._ended = True
            self._gathered_some.set()
        if failure is not None:
            raise failure

    async def _gather(self) -> None:
        if self.here is not None:
            enter_topology(self.here)
        iterator: Any = aiter(self.iterable)
        try:
            async for sample in iterator:
                if self.check is not None:
                    self.check()
                self._index += 1
                if self._index <= self.skip:
                    continue
                self._gathered.append(sample)
                self._measure(sample)
                del sample  # not held while the next one is made
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
            self._gathered_bytes += size_bytes
            self._is_full = self._gathered_bytes + size_bytes > self.block_bytes
        self._came = now

    async def _send(self) -> None:
        while not (self._ended and not self._gathered):
            await self._gathered_some.wait()
            self._gathered_some.clear()
            if self._gathered:
                samples, self._gathered = self._gathered, []
                size_bytes, self._gathered_bytes, self._is_full = self._gathered_bytes, 0, False
                block = [Rows(samples, OffsetTrail(self._index - len(samples), None))]
                del samples
                self._has_room.set()
                # At least an equal part of the channel, since some samples have no known size.
                await self.out.send_async(block.pop(), max(size_bytes, self.block_bytes, 1))
                if self._ended:
                    self._gathered_some.set()
