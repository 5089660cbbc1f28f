"""A pass as its consumer sees it: batch by batch, for both kinds of loop, and its end."""

from __future__ import annotations

import asyncio
import os
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from time import perf_counter
from typing import Any, Generic, TypeVar

from ..errors import add_note, drop_frames, end_daemon_at_exit, users_level
from ..flow.channel import EndOfChannel, Producer, Receiver, ReceiveTimeout
from ..flow.engine import Engine, run_in_thread
from ..flow.process import keep_freed_pages, share_arenas
from ..observe.audit import LeftSamples, Recording
from ..observe.statistics import Meter
from ..observe.stopwatch import IDLE
from ..pipeline.lane import Shortfall, describe_shortfalls
from ..pipeline.stream import Collated, LanesJob, Note, read_lanes
from ..plan.lanes import Cursor, Row
from ..plan.topology import BATCHES_AHEAD, share_memory
from .fleet import NoteSink
from .kind import StreamOptions

T = TypeVar("T", covariant=True)

# How long ``async for`` goes on with batches that are ready before other tasks of the loop get a turn. A turn
# takes some ten microseconds: one per cent of this, and as much as the cheapest sample.
_TURN_S = 0.001


class Delivery:
    """One batch on its way to the consumer, without the batch.

    Args:
        note: What came with it.

    Attributes:
        is_given: Set last before the consumer has it, with no call behind: signal handlers run only at calls,
            and what one raises before that leaves the batch undelivered.
        is_recorded: Whether it is in the audit.
    """

    # Class attributes: without batching there is an instance for each sample.
    is_given = False
    is_recorded = False

    def __init__(self, note: Note) -> None:
        self.note = note


class Run:
    """A running pass: gives batches, moves the cursor, and cleans up after itself.

    Args:
        source: The rank's batches; closed with the pass.
        cursor: Moved with each delivery.
        counters: Of the pass.
        stack: Everything else to be closed with the pass, behind the source.
        timeout_s: How long the next batch may take; None for as long as it takes.
        describe_wait: Says what the producers of batches do when it takes longer; takes seconds at most.
        left_at_ends: What operators have left out behind the last batch of each lane that has ended.
        shortfalls: Of operators; warned of at the end of the epoch, since a lane ends on another thread or in
            a worker, where no line of the user's could be named.
        if_empty: What to warn of if the epoch ends without a batch, as when no row meets its filters.
        recording: Of what is delivered, if that is audited; closed with the pass.

    Attributes:
        batches_before: How many batches of the epoch were delivered before this pass.
        exhausted: Whether all its batches were delivered.
        is_over: Whether the pass has ended, for whatever reason.
        holds: If set, the cursor moves over a batch when the next one is requested. Called when a state is
            saved: whether the consumer has received that batch and not used it.
    """

    def __init__(
        self,
        source: Receiver[tuple[Any, Note]],
        cursor: Cursor,
        counters: Meter,
        stack: ExitStack,
        *,
        timeout_s: float | None,
        describe_wait: Callable[[], str],
        left_at_ends: Mapping[int, Sequence[LeftSamples]],
        shortfalls: Sequence[Shortfall],
        if_empty: str | None,
        recording: Recording | None,
    ) -> None:
        self._source, self._stack = source, stack
        self._timeout_s, self._describe_wait = timeout_s, describe_wait
        self._shortfalls, self._if_empty = shortfalls, if_empty
        self._left_at_ends, self._recording = left_at_ends, recording
        self._cursor = cursor
        self.batches_before = cursor.batches
        self.counters = counters
        self.exhausted = self.is_over = False
        self.holds: Callable[[], bool] | None = None
        # What the cursor has not passed, in the order of the batches: one, unless several threads iterate.
        self._deliveries: deque[Delivery] = deque()
        # Held while the cursor moves, which saving a state does too. Re-entrant: a garbage collection
        # meanwhile may run the finalizer that ends this pass.
        self._moving = threading.RLock()
        self._owner = os.getpid()
        # One batch after the other, though several threads or tasks may iterate: each gets its own batches.
        self._thread_turn = threading.Lock()
        self._task_turn = asyncio.Lock()
        # When the consumer last let the event loop turn, and after how many batches.
        self._yielded_s, self._yielded_after = 0.0, -1

    def next_batch(self) -> tuple[Any, Delivery]:
        """The next batch, blocking this thread; it counts as delivered once it is marked as given.

        Raises:
            EndOfChannel: The pass is over, and everything it held is freed.
            TimeoutError: The batch did not come in time; a later call may get it, as in torch.
            RuntimeError: The pass was closed before its end.
        """
        self._check_owner()  # in a forked process the lock may be held for ever
        came: tuple[Any, Note] | None = None
        try:
            with self._thread_turn:
                self._check_open()
                self._begin_wait()
                try:
                    came = self._source.receive(self._timeout_s)
                except BaseException as error:
                    self.counters.waited()
                    self._check_open()
                    if isinstance(error, ReceiveTimeout):
                        raise self._timed_out(self._describe_wait()) from None
                    self._end(error)
                    drop_frames(error)
                    raise
                delivery = self._count(came[1])
        except BaseException as error:
            if came is not None:  # it has left the source: only a resume from a state gives it again
                del came
                self._end(error)
            raise
        return came[0], delivery

    async def next_batch_async(self) -> Any:
        """Like ``next_batch``, from a coroutine. If cancelled, the next caller gets the batch."""
        self._check_owner()
        async with self._task_turn:
            delivered = self.counters.batches
            # Once after each batch: a caller with asyncio.timeout(0) would otherwise never get any.
            if delivered != self._yielded_after and perf_counter() - self._yielded_s >= _TURN_S:
                self._yielded_after = delivered
                await asyncio.sleep(0)
                self._yielded_s = perf_counter()
            self._check_open()
            self._begin_wait()
            deadline = asyncio.timeout(self._timeout_s)
            try:
                async with deadline:
                    batch, note = await self._source.receive_async()
            except (asyncio.CancelledError, GeneratorExit):
                self.counters.waited()
                raise  # one caller gives up; others may go on with this iterator
            except BaseException as error:
                self.counters.waited()
                self._check_open()
                if isinstance(error, TimeoutError) and deadline.expired():
                    doing = await run_in_thread(self._describe_wait, "asyncloader-observe")
                    raise self._timed_out(doing) from None
                await self._end_async(error)
                drop_frames(error)
                raise
            return self._deliver(batch, note)

    @property
    def cursor(self) -> Cursor:
        """Where the consumer stands."""
        if self._deliveries and (self.holds is None or not self.holds()):
            self._hand_over()
        return self._cursor

    @property
    def is_own(self) -> bool:
        """Whether it is a pass of this process, and not of one that this was forked from."""
        return self._owner == os.getpid()

    @property
    def was_stopped(self) -> bool:
        """Whether all ranks ended together while some still had batches."""
        return self.exhausted and self.counters.cut_short

    def close(self) -> None:
        """Free everything. Idempotent, from any thread."""
        try:
            self._free()
        finally:
            self.counters.close()

    async def aclose(self) -> None:
        """Like ``close``, without blocking the event loop for long."""
        try:
            self._free()
        finally:
            if self.counters.closes_slowly:
                await run_in_thread(self.counters.close, "asyncloader-counters")
            else:
                self.counters.close()

    def _free(self) -> None:
        self.is_over = True
        self.counters.end()
        try:
            try:
                # Not by the stack, which drops what is interrupted: each call of this closes it whole.
                self._source.close()
            finally:
                self._stack.close()
        finally:
            if self._recording is not None:
                self.cursor  # noqa: B018  # moves over what was given
                # What was left out behind an undelivered batch comes again.
                for lane, left_out in self._left_at_ends.items() if self.exhausted else ():
                    self._recording.left_at_end(lane, left_out)
                self._recording.close(self.exhausted, self.counters.stopped)

    def _hand_over(self) -> None:
        """Move the cursor over what the consumer was given; can be repeated if interrupted anywhere."""
        with self._moving:
            while self._deliveries and (first := self._deliveries[0]).is_given:
                note = first.note
                assert note.position is not None
                if self._recording is not None and note.origins is not None and not first.is_recorded:
                    first.is_recorded = True
                    self._recording.delivered(note.lane, note.origins, note.left_out)
                row = Row(note.position, self._cursor.rows.get(note.lane, Row()).batches + 1)
                # No call from here on, so that these go together.
                self._cursor.rows[note.lane] = row
                del self._deliveries[0]

    def save(self) -> None:
        """Write what was delivered so far to the audit, if there is one: a state is about to be saved.

        Raises:
            OSError: The audit cannot be written.
        """
        if self._recording is not None:
            self.cursor  # noqa: B018  # moves over what was given
            self._recording.flush()

    def _begin_wait(self) -> None:
        """What has to happen before a batch is taken: an error then loses none."""
        if self._deliveries:
            self._hand_over()
        now_s = self.counters.wait()
        if self._recording is not None:
            self._recording.flush_if_due(now_s)

    def _check_owner(self) -> None:
        """Refuse a pass of another process."""
        if not self.is_own:
            raise RuntimeError(
                f"this iterator belongs to process {self._owner}, and cannot be used in a process forked "
                "from it; iterate the loader again"
            )

    def _check_open(self) -> None:
        """Refuse one that is over, also one that was closed from elsewhere while we waited."""
        if self.exhausted:
            raise EndOfChannel
        if self.is_over:
            end_daemon_at_exit()
            # Not StopIteration: a loop that goes on after an error must not take this for the epoch's end.
            raise RuntimeError(
                "this iterator was closed before the end of its epoch, by an error, close(), or an "
                "iterator made later that began at the same place; iterate the loader again, from its "
                "state_dict() if no batch may be missed"
            )

    def _count(self, note: Note) -> Delivery:
        self.counters.count(note.samples, note.tokens, note.size_bytes, note.components)
        delivery = Delivery(note)
        if note.position is not None:  # an empty batch is of no lane
            self._deliveries.append(delivery)
        return delivery

    def _deliver(self, batch: Any, note: Note) -> Any:
        """Count a batch that a coroutine gives, and mark it as given."""
        self._count(note).is_given = True
        if self.holds is None:
            self._hand_over()
        return batch

    def _timed_out(self, doing: str) -> TimeoutError:
        return TimeoutError(
            f"no batch came within timeout={self._timeout_s:g} seconds; raise it, or see what takes so long: "
            f"{doing}"
        )

    def _end(self, error: BaseException) -> None:
        self.exhausted = isinstance(error, EndOfChannel)
        with closing_after(None if self.exhausted else error):
            self.close()
        self._warn()

    async def _end_async(self, error: BaseException) -> None:
        self.exhausted = isinstance(error, EndOfChannel)
        with closing_after(None if self.exhausted else error):
            await self.aclose()
        self._warn()

    def _warn(self) -> None:
        lacks = describe_shortfalls(self._shortfalls) if self.exhausted else []
        if self.exhausted and self._if_empty and not (self.cursor.batches or self.counters.stopped):
            lacks.append(self._if_empty)
        for sentence in lacks:
            warnings.warn(sentence, stacklevel=users_level())


@contextmanager
def closing_after(error: BaseException | None) -> Iterator[None]:
    """Make what fails in closing a note on ``error``, which the user has to know first; raise it if None."""
    try:
        yield
    except Exception as at_close:
        if error is None:
            raise at_close from None
        add_note(error, f"then, while the pass was closed: {type(at_close).__name__}: {at_close}")


class BatchIterator(Generic[T]):
    """One pass over a loader, for both kinds of loop. Its garbage collection frees what it holds."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._closer = weakref.finalize(self, run.close)

    def __iter__(self) -> BatchIterator[T]:
        return self

    def __next__(self) -> T:
        try:
            given: tuple[T, Delivery] = self._run.next_batch()
        except EndOfChannel:
            raise StopIteration from None
        given[1].is_given = True
        return given[0]

    def __aiter__(self) -> BatchIterator[T]:
        return self

    async def __anext__(self) -> T:
        try:
            batch: T = await self._run.next_batch_async()
        except EndOfChannel:
            raise StopAsyncIteration from None
        except BaseException:
            del self  # an error's traceback holds this frame, which must not hold the iterator and its pass
            raise
        return batch

    def close(self) -> None:
        """End the pass now and free what it holds."""
        if self._closer.alive:
            self._run.close()
            self._closer.detach()

    async def aclose(self) -> None:
        """End the pass now and free what it holds."""
        if self._closer.detach() is not None:
            await self._run.aclose()

    def __reduce__(self) -> Any:
        raise NotImplementedError("an iterator cannot be pickled; pickle the loader, and its state_dict()")


# A pass without workers: its lanes read on an engine and a thread of this process.


def stream_in_thread(
    job: LanesJob, options: StreamOptions, notes: NoteSink, counters: Meter, stack: ExitStack
) -> Producer[tuple[Any, Note]]:
    """Read the lanes on an engine and a thread of this process.

    Args:
        job: All lanes of the rank.
        options: Bound the batches that are made and not yet received, the one in the making included: their
            number, and their bytes, where one is always accepted.
        notes: Takes in every note, in that thread.
        counters: Count all requests to the network.
        stack: Closes what is started here.
    """
    keep_freed_pages()
    if job.stages.runs_on_threads:
        share_arenas()
    batch_bytes = share_memory(options.memory_bytes, pins=False).batch_bytes
    least = max(batch_bytes // (options.prefetch_factor or BATCHES_AHEAD), 1)
    stopwatch = job.open_stopwatch()
    stack.callback(counters.spend_rest, stopwatch)  # when all has ended
    engine = stack.enter_context(Engine())

    def generate() -> Collated:
        stopwatch.move_here()
        with closing(read_lanes(job, engine, stopwatch)) as items:
            # Not by a loop: its variable would keep a delivered batch until there is room for the next one.
            yield from filter(lambda made: notes.add(made[1]), items)

    producer = Producer(
        generate,
        batch_bytes,
        on_close=engine.stop,
        name="asyncloader-batches",
        cost_of=lambda made: max(made[1].size_bytes, least),
        on_wait=partial(stopwatch.enter, IDLE),
    )
    stack.callback(producer.close)
    producer.start()
    return producer
