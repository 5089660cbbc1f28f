"""One pass over a streaming recipe, from its processes and threads to the consumer's next batch.

Laws:

* Whatever is started for a pass is freed by ``close``, which is called at the end, at an error, and by
  a finalizer when the consumer lets go; threads and workers hold no reference to the consumer's side.
* The cursor moves when a batch is delivered, and never before.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
import warnings
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

import cloudpickle

from ._flow.asking import Asking, Asks
from ._flow.channel import EndOfChannel, Receiver
from ._flow.engine import Engine
from ._flow.producer import Producer
from .memory import keep_freed_pages
from .ops.take import describe_shortfalls
from .plan.checkpoint import Cursor
from .plan.lanes import worker_lanes
from .progress import NetworkCounts, Statistics
from .seeding import seed_worker
from .shards import Shards
from .stream import Collated, Job, MergedLanes, Note, read_lanes
from .torch_kind.worker_info import enter_worker
from .tracebacks import drop_frames, users_level
from .workers import WorkerPool

__all__ = ["BatchIterator", "Run", "WorkerSetting", "stream_in_thread", "stream_in_workers"]

T = TypeVar("T", covariant=True)

# Collated made ahead of the consumer without workers: two to hand over at once, one in the making.
_BATCHES_AHEAD = 3

# For a worker to leave the user's contexts, which may have something to flush or to sign off; as long as an
# engine has for it. Without contexts nothing in a worker needs its clean-up to be whole.
_CONTEXT_GRACE_S = 5.0


@dataclass(frozen=True)
class WorkerSetting:
    """What a worker process is to the user's code.

    Attributes:
        num_workers: As the user said it, also when there are fewer lanes to read.
        base_seed: Worker ``i`` is seeded with ``base_seed + i``.
        init_fn: The user's ``worker_init_fn``.
        prefetch: Collated that each worker makes ahead of the consumer.
    """

    num_workers: int
    base_seed: int
    init_fn: Callable[[int], object] | None
    prefetch: int


def stream_in_thread(
    job: Job, batch_bytes: int, network: NetworkCounts, stack: ExitStack
) -> Receiver[tuple[Any, Note]]:
    """Read the lanes on an engine and a thread of this process.

    Args:
        job: All lanes of the rank.
        batch_bytes: Bound on the batches made and not yet received; one is always let in.
        network: Told what is asked of the network.
        stack: Closes what is started here.
    """
    keep_freed_pages()
    engine = stack.enter_context(Engine())
    asks = None if job.batches_ahead is None else Asks(job.batches_ahead)

    def generate() -> Generator[tuple[tuple[Any, Note], int], None, None]:
        # At most so many batches, at most so many bytes, whichever comes first.
        least = batch_bytes // _BATCHES_AHEAD
        with closing(read_lanes(job, engine)) as items:
            while _is_asked(asks) and (item := next(items, None)) is not None:
                yield item, max(item[1].size_bytes, least)
                del item  # the next batch must not be made while this one is still held

    def stop() -> None:
        if asks is not None:
            asks.finish()
        engine.stop()

    producer = Producer(generate, batch_bytes, on_close=stop, name="asyncloader-batches")
    stack.callback(producer.close)
    producer.start()
    carrier = producer if asks is None else Asking(producer, asks)
    order = [lane for lane, _ in job.turns]
    merged = MergedLanes(order, dict.fromkeys(order, carrier), producer.close, network)
    stack.callback(_warn_of_shortfalls, merged)
    return merged


def _is_asked(asks: Asks | None) -> bool:
    """Whether there is a next item to make; waits until it is asked for, if that counts."""
    if asks is None:
        return True
    try:
        asks.wait()
    except EndOfChannel:
        return False
    return True


def stream_in_workers(
    job: Job, setting: WorkerSetting, batch_bytes: int, network: NetworkCounts, stack: ExitStack
) -> Receiver[tuple[Any, Note]]:
    """Read the lanes in worker processes; see ``stream_in_thread``."""
    keep_freed_pages()  # byte strings come out of the workers' shared memory as copies
    starts = dict(job.turns)
    dealt = worker_lanes(sorted(starts), setting.num_workers)
    jobs, receivers_of = [], {}
    for worker, mine in enumerate(dealt):
        # The order of turns is the rank's, cut down to the worker's own lanes.
        turns = tuple((lane, start) for lane, start in job.turns if lane in mine)
        share = replace(job, turns=turns, read_bytes=job.read_bytes // len(dealt))
        jobs.append(partial(_run_worker, share, worker, setting))
        receivers_of.update(dict.fromkeys(mine, worker))
    pool = WorkerPool(
        jobs,
        prefetch=setting.prefetch if job.ahead is None else _batches_of_a_worker(job, dealt),
        prefetch_bytes=batch_bytes // len(dealt),
        grace_s=_CONTEXT_GRACE_S if job.recipe.has_context else None,
    )
    try:
        stack.enter_context(pool)
    except Exception as error:
        _note_unpicklable(job, setting, error)
        raise
    receivers = {lane: pool.workers[worker] for lane, worker in receivers_of.items()}
    ends = pool.workers if job.recipe.has_context else []
    merged = MergedLanes([lane for lane, _ in job.turns], receivers, pool.close, network, ends)
    stack.callback(_warn_of_shortfalls, merged)
    return merged


def _batches_of_a_worker(job: Job, dealt: list[list[int]]) -> int:
    """How many batches a worker makes unasked, where ``ahead`` counts: the same for all, so the least."""
    assert job.batches_ahead is not None
    return job.batches_ahead // len(job.turns) * min(map(len, dealt))


def _warn_of_shortfalls(merged: MergedLanes) -> None:
    """Say what ``take`` lacked when the pass is closed, which is in the consumer's own thread.

    Where a lane ends nobody's line could be named: that is on a thread or in a worker.
    """
    for sentence in describe_shortfalls(merged.shortfalls):
        warnings.warn(sentence, stacklevel=users_level())


def _note_unpicklable(job: Job, setting: WorkerSetting, error: Exception) -> None:
    """Say at ``error`` which part of the recipe cannot be sent to a worker, if that is what it is about."""
    source = job.recipe.source
    parts: list[tuple[str, object]] = [("the source", source)]
    if isinstance(source, Shards):  # whose URLs and numbers always pickle
        options = source.access.options.items()
        parts = [(f"storage_options[{name!r}]", value) for name, value in options]
        parts.append(("renew", source.access.renew))
    parts += [(f".{op.describe()['op']}({op.describe().get('fn', '...')})", op) for op in job.recipe.ops]
    parts += [("collate_fn", job.collate_fn), ("worker_init_fn", setting.init_fn)]
    for name, part in parts:
        try:
            cloudpickle.dumps(part)
        except Exception:
            error.add_note(
                f"{name} cannot be sent to a worker process: it holds something that does not pickle, such "
                "as a lock, an open file or a client. Make that in the worker, where it is first needed"
            )


def _run_worker(job: Job, worker: int, setting: WorkerSetting) -> Iterator[tuple[Any, Note]]:
    """A worker's job, in its own process."""
    engine = Engine()
    batches = _worker_batches(job, worker, setting, engine)
    return _Interruptible(batches, engine.stop) if job.recipe.has_context else batches


def _worker_batches(job: Job, worker: int, setting: WorkerSetting, engine: Engine) -> Collated:
    seed = seed_worker(worker, setting.base_seed)
    world = job.world
    enter_worker(worker, setting.num_workers, seed, job.recipe, world.rank, world.size)
    if setting.init_fn is not None:
        setting.init_fn(worker)
    with engine, closing(read_lanes(job, engine)) as items:
        yield from items


@dataclass(frozen=True)
class _Interruptible:
    """Collated which the worker need not wait for when the parent lets go: contexts want to be left in time.

    Attributes:
        batches: Made by a worker.
        let_go: Ends a wait for the next one, from another thread.
    """

    batches: Collated
    let_go: Callable[[], None]

    def __iter__(self) -> Iterator[tuple[Any, Note]]:
        return self

    def __next__(self) -> tuple[Any, Note]:
        return next(self.batches)

    def close(self) -> None:
        self.batches.close()


class Run:
    """A running pass: gives batches, moves the cursor, and cleans up after itself.

    Args:
        source: The rank's batches.
        cursor: Moved with each delivery.
        statistics: Counts them.
        stack: Everything to be closed with the pass.
        timeout_s: How long the next batch may take; None for as long as it takes.
    """

    def __init__(
        self,
        source: Receiver[tuple[Any, Note]],
        cursor: Cursor,
        statistics: Statistics,
        stack: ExitStack,
        timeout_s: float | None,
    ) -> None:
        self._source = source
        self._stack = stack
        self._timeout_s = timeout_s
        self.cursor = cursor
        self.statistics = statistics
        self.exhausted = False
        self._closed = False
        self._owner = os.getpid()

    def next_batch(self) -> Any:
        """The next batch, blocking this thread.

        Raises:
            EndOfChannel: The pass is over, and everything it held is freed.
            TimeoutError: The batch did not come in time; a later call may get it, as in torch.
            RuntimeError: The pass was closed before its end.
        """
        self._check_open()
        began = time.perf_counter()
        try:
            batch, note = self._source.receive(self._timeout_s)
        except BaseException as error:
            self.statistics.waited(began)
            self._check_open()
            # A TimeoutError that comes before the time is up is the user's own, or a store's.
            waited_s = time.perf_counter() - began
            if not isinstance(error, TimeoutError) or waited_s < (self._timeout_s or math.inf):
                self._end(error)
            drop_frames(error)
            raise
        return self._deliver(batch, note, began)

    async def next_batch_async(self) -> Any:
        """Like ``next_batch``, from a coroutine. If cancelled, the pass is closed."""
        self._check_open()
        began = time.perf_counter()
        deadline = asyncio.timeout(self._timeout_s)
        try:
            async with deadline:
                batch, note = await self._source.receive_async()
        except BaseException as error:
            self.statistics.waited(began)
            self._check_open()
            if not isinstance(error, TimeoutError) or not deadline.expired():
                self._end(error)
            drop_frames(error)
            raise
        return self._deliver(batch, note, began)

    @property
    def is_over(self) -> bool:
        """Whether there is no batch to be had any more."""
        return self._closed

    def close(self) -> None:
        """Free everything. Idempotent, from any thread."""
        self._closed = True
        self.statistics.end()
        self._stack.close()

    def _check_open(self) -> None:
        """Refuse a pass that is not ours to read; also one closed by somebody else while we waited."""
        if self._owner != os.getpid():
            raise RuntimeError(
                f"this iterator belongs to process {self._owner}, and a process forked from it would take "
                "its batches away; iterate the loader anew"
            )
        if self.exhausted:
            raise EndOfChannel
        if self._closed:
            # Not a quiet end: a loop that goes on after an error must not take this for the epoch's end.
            raise RuntimeError(
                "this iterator was closed before the end of its epoch, by an error, a cancellation, "
                "close(), or an iterator made later that began at the same place; iterate the loader anew, "
                "from its state_dict() if no batch may be missed"
            )

    def _deliver(self, batch: Any, note: Note, began: float) -> Any:
        assert note.position is not None
        self.cursor.delivered(note.lane, note.position)
        self.statistics.count(note.samples, note.tokens, note.size_bytes, began)
        return batch

    def _end(self, error: BaseException) -> None:
        self.exhausted = isinstance(error, EndOfChannel)
        try:
            self.close()
        except Exception as at_close:
            if self.exhausted:
                raise at_close from None
            # The first one is what the user has to know.
            error.add_note(f"then, while the pass was closed: {type(at_close).__name__}: {at_close}")


class BatchIterator(Generic[T]):
    """One pass over a loader, for both kinds of loop. Letting go of it frees what it holds."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._closer = weakref.finalize(self, run.close)

    def __iter__(self) -> BatchIterator[T]:
        return self

    def __next__(self) -> T:
        try:
            batch: T = self._run.next_batch()
        except EndOfChannel:
            raise StopIteration from None
        return batch

    def __aiter__(self) -> BatchIterator[T]:
        return self

    async def __anext__(self) -> T:
        try:
            batch: T = await self._run.next_batch_async()
        except EndOfChannel:
            raise StopAsyncIteration from None
        return batch

    def close(self) -> None:
        """End the pass now and free what it holds."""
        self._closer()

    async def aclose(self) -> None:
        """End the pass now and free what it holds."""
        self._closer()

    def __reduce__(self) -> Any:
        raise NotImplementedError("an iterator cannot be pickled; pickle the loader, and its state_dict()")
