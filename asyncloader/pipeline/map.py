"""``.map`` and ``.map_batches``: the user's function for each sample, or for chunks of samples as columns.

Plain functions run in place or on threads, coroutine functions on the engine's loop. Results come in the
order of the samples; ``in_order`` decides how many calls are in progress.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, ClassVar, Protocol, TypeVar

from ..blocks import Block, Column, Columns, Ragged, array_of, column_of, columns_of
from ..flow.channel import Channel, EndOfChannel
from ..flow.engine import MakeContext, Scope
from ..flow.threads import Threads
from ..quantity import as_counts
from ..types import Position
from .calls import (
    PIECE_SAMPLES,
    AdaptiveSize,
    UserCalls,
    call_each,
    call_user_code,
    cut,
    is_raised,
    with_context,
)
from .lane import Blocks, Lane, Opener
from .op import Op, check_map, check_plain, is_async, name_of, note_batch, note_sample, shown
from .shuffle import Pool, cut_pools
from .skips import Applied

# A thread hop costs some 30 us, which is little for functions that take milliseconds.
_THREAD_PIECE_SAMPLES = 4

# Twice as many as run, so that no thread is idle while the one that takes the results does something else.
_WINDOW = 2

P = TypeVar("P", contravariant=True)
R = TypeVar("R", covariant=True)


def on_threads(call: Callable[[P], R], concurrency: int, what: str, lane: Lane) -> Threads[P, R]:
    """Calls on threads, which help with functions that release the GIL."""
    return Threads(partial(lane.stopwatch.call, what, call), concurrency, what, lane.services.engine)


class _InProgress(Protocol[P, R]):
    """Calls for pieces of a stream that are in progress; results are taken in the order of the pieces."""

    def submit(self, piece: P) -> None: ...

    def is_first_done(self) -> bool: ...

    def take(self) -> R: ...

    def close(self) -> None: ...


def in_order(
    pieces: Iterable[P],
    calls: _InProgress[P, R],
    size: AdaptiveSize,
    concurrency: int,
    window: int,
    count: Callable[[Any], int] = len,
) -> Iterator[R]:
    """The results for the pieces, in their order, while calls for the next pieces are in progress.

    A result is not held here after it is passed on.

    Args:
        pieces: What calls are made for.
        calls: Makes them.
        size: Bounds what is made and not yet passed on; of large samples only as many are in progress as run.
        concurrency: How many samples run at a time.
        window: How many samples may be in progress or done, and not yet passed on.
        count: How many samples a piece counts.
    """
    running: deque[int] = deque()
    outstanding = 0
    for piece in pieces:
        calls.submit(piece)
        running.append(count(piece))
        outstanding += running[-1]
        del piece
        while running and (
            calls.is_first_done()
            or outstanding > window
            or (outstanding > concurrency and not size.may_hold(outstanding))
        ):
            outstanding -= running.popleft()
            yield calls.take()
    for _ in running:
        yield calls.take()


# --- one sample at a time ---


@dataclass(frozen=True)
class Map(Op):
    """Replace each sample by ``fn(sample)``, in order, or by ``await fn(sample)``.

    Coroutines run on the loop, also while the consumer computes. Plain functions run on threads if the
    concurrency is above 1, which helps if they release the GIL (decoding images, NumPy, I/O).

    Args:
        fn: A function of one sample.
        concurrency: How many samples at a time, in each lane.
        context: Makes the function's second argument.

    Attributes:
        is_async: Whether the function is a coroutine function. A mark that makes it one is lost on the way to
            a worker, so this is asked once.
    """

    fn: Callable[..., Any]
    concurrency: int = 1
    context: MakeContext | None = None
    is_async: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_map(self.fn, self.context)
        as_counts(self, "concurrency")
        object.__setattr__(self, "is_async", is_async(self.fn))

    def describe(self) -> Mapping[str, Any]:
        return {"op": "map", "fn": name_of(self.fn)}

    def open(self, upstream: Opener, start: Position, lane: Lane) -> Blocks:
        attempts, during = lane.attempts(start), shown(self)
        most = PIECE_SAMPLES if self.concurrency == 1 else _THREAD_PIECE_SAMPLES
        if self.is_async:
            most = min(self.concurrency, PIECE_SAMPLES)
        size = AdaptiveSize(most, lane.services.made_bytes)
        blocks = upstream(start, lane.for_columns(False))
        pieces = chain.from_iterable(cut(block, size.samples) for block in blocks)
        in_turn = not self.is_async and (self.concurrency == 1 or lane.singly)
        fn = with_context(self.fn, self.context, lane)
        with ExitStack() as stack:
            if in_turn:
                results: Iterator[Applied] = map(partial(call_each, fn, lane, during), pieces)
            else:
                calls, window = self._begin_calls(fn, most, lane)
                stack.enter_context(closing(calls))
                results = in_order(pieces, calls, size, self.concurrency, window)
            stack.enter_context(closing(blocks))
            for applied in results:
                size.measure(applied.made.rows(), applied.took_s if in_turn else None)
                if attempts is not None:
                    attempts.account(applied, during)
                if len(applied.made):
                    yield applied.made
                if applied.failure is not None:
                    raise applied.failure
                del applied  # before the next one is made

    def _begin_calls(
        self, fn: Callable[[Any], Any], most: int, lane: Lane
    ) -> tuple[_InProgress[Block, Applied], int]:
        """What makes calls side by side for pieces of at most ``most`` samples, and the window for it."""
        if self.is_async:
            window = 0 if lane.singly else _WINDOW * self.concurrency
            return _OnLoop(fn, self.concurrency, window + most, lane, shown(self)), window
        engine = lane.services.engine

        def call(sample: Any) -> Any:
            engine.check()  # so that closing the pass waits for one call, not for a piece
            return fn(sample)

        threads = on_threads(partial(call_each, call, lane, shown(self)), self.concurrency, shown(self), lane)
        return threads, _WINDOW * self.concurrency * _THREAD_PIECE_SAMPLES


class _OnLoop:
    """Awaits the calls on the engine's loop.

    Samples travel to it and back in pieces. As many runners as the concurrency allows take them one by one,
    so there is no task and no queue hop for a sample.

    Args:
        fn: A coroutine function of one sample.
        concurrency: How many samples at a time.
        most: How many pieces there are at a time, at most.
        lane: As the operator was given it.
        what: The operator, for messages.
    """

    def __init__(
        self, fn: Callable[..., Coroutine[Any, Any, Any]], concurrency: int, most: int, lane: Lane, what: str
    ) -> None:
        self._fn = fn
        self._concurrency = concurrency
        self._lane = lane
        self._what = what
        # ``in_order`` bounds both channels: the loop never waits to return a result.
        self._inbox, self._outbox = Channel[Block](most), Channel[Applied](most)
        self._order: deque[_Pending] = deque()
        self._open: _Pending | None = None
        self._next_index = 0
        #: A sample failed: none after it may be passed on.
        self._failed = False
        self.submit = self._inbox.send
        self.take = self._outbox.receive
        lane.services.engine.submit(self._run_all, self._outbox)

    def is_first_done(self) -> bool:
        return len(self._outbox) > 0

    def close(self) -> None:
        self._inbox.finish()
        self._outbox.close()

    async def _run_all(self) -> None:
        turn = asyncio.Lock()
        async with Scope() as scope:
            for _ in range(self._concurrency):
                scope.start(partial(self._run, turn))

    async def _run(self, turn: asyncio.Lock) -> None:
        """One runner: take a sample, map it, send the pieces that are done."""
        while not self._failed:
            try:
                pending, index = await self._take_sample(turn)
            except EndOfChannel:
                return
            block = pending.block
            try:
                with UserCalls(self._lane, block.trail, range(index)):
                    pending.results[index] = await call_user_code(self._fn, pending.samples[index])
            except Exception as error:
                if is_raised(error, self._lane):
                    note_sample(error, self._what, block, index)
                pending.failed[index] = error
            pending.left -= 1
            while self._order and self._order[0].left == 0 and not self._failed:
                applied = self._order.popleft().applied(self._lane)
                self._failed = applied.failure is not None
                self._outbox.send(applied)

    async def _take_sample(self, turn: asyncio.Lock) -> tuple[_Pending, int]:
        """The next sample: of the current piece, or of the next one."""
        while self._open is None or self._next_index == len(self._open.samples):
            async with turn:
                if self._open is None or self._next_index == len(self._open.samples):
                    block = await self._inbox.receive_async()
                    self._open = _Pending(block, block.rows(), [None] * len(block), len(block))
                    self._order.append(self._open)
                    self._next_index = 0
        self._next_index += 1
        return self._open, self._next_index - 1


@dataclass(slots=True)
class _Pending:
    """A piece in progress.

    Attributes:
        left: How many samples are not done.
        failed: The errors of those that failed, by index.
    """

    block: Block
    samples: list[Any]
    results: list[Any]
    left: int
    failed: dict[int, Exception] = field(default_factory=dict)

    def applied(self, lane: Lane) -> Applied:
        """The result, when all of its samples are done."""
        raised = [index for index, error in self.failed.items() if is_raised(error, lane)]
        # The samples before a failure are good, and may complete a batch.
        tried = min(raised, default=len(self.block))
        skipped = {index: error for index, error in self.failed.items() if index < tried}
        return Applied(self.block, self.results[:tried], skipped, self.failed.get(tried))


# --- chunks of samples at a time: pools for a function of many samples ---
#
# A function may look at all samples of its chunk, so the bounds of a chunk matter. A position inside one says
# where the chunk began and how many of its samples were passed on. A stream that is opened there calls the
# function for the same chunk again.


@dataclass(frozen=True)
class OnChunks(Op):
    """Call ``fn(columns)`` for chunks of ``batch_size`` samples, in order.

    Args:
        fn: Any callable of a dict of columns. It must return the same for the same chunk.
        batch_size: Samples of a chunk; the last one of a lane may have fewer.
    """

    fn: Callable[[dict[str, Any]], Any]
    batch_size: int

    name: ClassVar[str]
    hint: ClassVar[str] = ""
    """What to do with a coroutine function instead."""

    def __post_init__(self) -> None:
        check_plain(self.name, self.fn, "columns", self.hint)
        as_counts(self, "batch_size")

    def open(self, upstream: Opener, start: Position, lane: Lane) -> Blocks:
        # A chunk counts as one sample.
        size = AdaptiveSize(1, lane.services.made_bytes)
        chunks = cut_pools(upstream, start, lane.for_columns(True), self.batch_size)
        apply = partial(self._apply, lane)
        concurrency: int = getattr(self, "concurrency", 1)  # a filter has none
        with ExitStack() as stack:
            if concurrency == 1 or lane.singly:
                results: Iterator[tuple[Pool, Block]] = map(apply, chunks)
            else:
                calls = stack.enter_context(closing(on_threads(apply, concurrency, shown(self), lane)))
                results = in_order(chunks, calls, size, concurrency, _WINDOW * concurrency, lambda _: 1)
            stack.enter_context(closing(chunks))
            for chunk, made in results:
                if isinstance(made, Columns):
                    size.measure([dict(made.fields)])
                if chunk.emitted < len(made):
                    trail = made.trail.follow(chunk.span.positions(0, len(made)))
                    yield made.follow(trail).part(chunk.emitted, len(made))
                del chunk, made

    def describe(self) -> Mapping[str, Any]:
        return {"op": self.name, "fn": name_of(self.fn), "batch_size": self.batch_size}

    def made_of(self, block: Block, lane: Lane) -> Block:
        """What is made of a chunk, on trails of its samples."""
        raise NotImplementedError

    def _apply(self, lane: Lane, chunk: Pool) -> tuple[Pool, Block]:
        lane.services.engine.check()  # a closed pass does not make the next call
        try:
            return chunk, self.made_of(chunk.samples, lane)
        except Exception as error:
            note_batch(error, shown(self), chunk.samples.trail, len(chunk.samples))
            raise


@dataclass(frozen=True)
class MapBatches(OnChunks):
    """Replace chunks by ``fn(columns)``.

    Args:
        concurrency: How many chunks at a time, on threads if above 1.
    """

    concurrency: int = 1

    name = "map_batches"
    hint = "; use .map"

    def __post_init__(self) -> None:
        super().__post_init__()
        as_counts(self, "concurrency")

    def made_of(self, block: Block, lane: Lane) -> Block:
        given = columns_of(block)
        with UserCalls(lane, block.trail):
            made = self.fn(dict(given))
        return Columns(_checked(made, given, len(block)), block.trail)


def _checked(made: Any, given: Mapping[str, Column], count: int) -> dict[str, Column]:
    """What the function returned, as columns of ``count`` samples."""
    if not isinstance(made, Mapping):
        raise TypeError(
            f"expected the function to return a mapping of columns, such as the dict that it was given, "
            f"found {type(made).__qualname__}"
        )
    if not made:
        raise ValueError("expected the function to return at least one column, found none")
    unchanged = {id(column) for column in given.values()}
    columns: dict[str, Column] = {}
    for name, value in made.items():
        column = value if id(value) in unchanged else _as_column(name, value)
        if len(column) != count:
            raise ValueError(
                f"expected the function to return columns of the {count} samples that it was given, found "
                f"{len(column)} in {name!r}; .filter_batches drops samples"
            )
        columns[name] = column
    return columns


def _as_column(name: str, value: Any) -> Column:
    if isinstance(value, Ragged):
        return value
    if (array := array_of(value)) is not None and array.ndim:
        return array
    if isinstance(value, list | tuple):
        return column_of(value)
    if getattr(value, "ndim", 0) and hasattr(value, "requires_grad"):
        # NumPy cannot see it, and its list would be of float64.
        raise TypeError(
            f"expected CPU tensors without gradients and of a dtype that NumPy has, found one of "
            f"{value.dtype} on {value.device} as {name!r}, requires_grad={value.requires_grad}; use "
            ".detach(), .cpu(), or convert it, as .float() does"
        )
    if getattr(value, "ndim", 0) and hasattr(value, "tolist"):
        return column_of(value.tolist())  # an array of strings or objects
    shape = f" of shape {tuple(value.shape)}" if hasattr(value, "shape") else ""
    raise TypeError(
        f"expected the function to return an array, an al.Ragged, a list or a CPU tensor for each field, "
        f"found {type(value).__qualname__}{shape} as {name!r}"
    )
