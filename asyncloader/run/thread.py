"""A pass without workers: its lanes read on an engine and a thread of this process."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack, closing
from itertools import islice
from typing import Any

from .._flow.asking import Asking, Asks
from .._flow.channel import EndOfChannel, Receiver
from .._flow.engine import Engine
from .._flow.producer import Producer
from ..memory import keep_freed_pages, share_arenas
from ..progress import NetworkCounts
from ..stream import Job, MergedLanes, Note, read_lanes
from .shortfalls import warn_of_shortfalls

__all__ = ["stream_in_thread"]

# Collated made ahead of the consumer without workers: two to hand over at once, one in the making.
_BATCHES_AHEAD = 3


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
    if job.recipe.runs_on_threads:
        share_arenas()
    engine = stack.enter_context(Engine())
    asks = None if job.batches_ahead is None else Asks(job.batches_ahead)

    def generate() -> Generator[tuple[tuple[Any, Note], int], None, None]:
        # At most so many batches, at most so many bytes, whichever comes first.
        least = batch_bytes // _BATCHES_AHEAD
        with closing(read_lanes(job, engine)) as items:
            while _is_asked(asks) and (made := list(islice(items, 1))):
                size_bytes = max(made[0][1].size_bytes, least)
                yield made.pop(), size_bytes  # nothing here holds it while it waits

    def stop() -> None:
        if asks is not None:
            asks.finish()
        engine.stop()

    producer = Producer(generate, batch_bytes, on_close=stop, name="asyncloader-batches")
    stack.callback(producer.close)
    producer.start()
    carrier = producer if asks is None else Asking(producer, asks)
    receivers = dict.fromkeys((lane for lane, _ in job.turns), carrier)
    merged = MergedLanes(job.rotation(), receivers, producer.close, network)
    stack.callback(warn_of_shortfalls, merged)
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
