"""A pass without workers: its lanes read on an engine and a thread of this process."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, closing
from itertools import islice
from typing import Any

from .._flow.channel import EndOfChannel
from .._flow.engine import Engine
from .._flow.producer import Producer
from ..audit.records import LeftSamples
from ..memory import keep_freed_pages, share_arenas
from ..statistics import Meter
from ..stopwatch import RESTING
from ..stream import LanesJob, Note, read_lanes
from ..trace.keeping import tell_rest
from .fleet import NoteSink

__all__ = ["LanesInThread", "stream_in_thread"]


def stream_in_thread(
    job: LanesJob, batches_ahead: int, batch_bytes: int, counters: Meter, stack: ExitStack
) -> LanesInThread:
    """Read the lanes on an engine and a thread of this process.

    Args:
        job: All lanes of the rank.
        batches_ahead: At most so many batches are made and not yet received, the one in the making included.
        batch_bytes: And at most so many bytes of them; one is always let in.
        counters: Told what is asked of the network.
        stack: Closes what is started here.
    """
    keep_freed_pages()
    if job.recipe.runs_on_threads:
        share_arenas()
    stopwatch = job.open_stopwatch()
    stack.callback(tell_rest, stopwatch, counters)  # when all has ended
    engine = stack.enter_context(Engine())

    def rest() -> None:
        stopwatch.enter(RESTING)

    def generate() -> Generator[tuple[tuple[Any, Note], int], None, None]:
        least = max(batch_bytes // batches_ahead, 1)
        stopwatch.move_here()
        with closing(read_lanes(job, engine, stopwatch)) as items:
            while made := list(islice(items, 1)):
                size_bytes = max(made[0][1].size_bytes, least)
                yield made.pop(), size_bytes  # nothing here holds it while it waits

    producer = Producer(generate, batch_bytes, on_close=engine.stop, name="asyncloader-batches", on_wait=rest)
    stack.callback(producer.close)
    producer.start()
    intake = NoteSink(job, counters)
    stack.callback(intake.warn_of_shortfalls)
    return LanesInThread(job, producer, intake)


class LanesInThread:
    """A ``Receiver`` of the batches of all lanes, which one thread makes in the order of their turns.

    Args:
        job: Names the lanes.
        producer: The thread.
        intake: Told of every note.
    """

    def __init__(self, job: LanesJob, producer: Producer[tuple[Any, Note]], intake: NoteSink) -> None:
        self._producer = producer
        self._intake = intake
        self._open = {lane for lane, _ in job.turns}

    def receive(self, timeout_s: float | None = None) -> tuple[Any, Note]:
        """The next batch; see ``Receiver``."""
        while self._open:
            batch, note = self._producer.receive(timeout_s)
            if self._take_in(note):
                return batch, note
        raise EndOfChannel

    async def receive_async(self) -> tuple[Any, Note]:
        """Like ``receive``, from a coroutine. If cancelled, no batch is lost."""
        while self._open:
            batch, note = await self._producer.receive_async()
            if self._take_in(note):
                return batch, note
        raise EndOfChannel

    @property
    def left_at_ends(self) -> Mapping[int, Sequence[LeftSamples]]:
        """What operators have left out behind the last batch of each lane that has ended."""
        return self._intake.left_at_ends

    def close(self) -> None:
        """Stop the thread."""
        self._producer.close()

    def describe_wait(self) -> str:
        """Where the thread is that makes the batches."""
        return f"the thread that makes them is at\n{self._producer.describe_stack()}"

    async def describe_wait_async(self) -> str:
        """Like ``describe_wait``."""
        return self.describe_wait()

    def _take_in(self, note: Note) -> bool:
        if note.position is None:
            self._open.remove(note.lane)
        return self._intake.add(note)
