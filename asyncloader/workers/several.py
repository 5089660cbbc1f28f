"""Several workers at once: waiting for any of them, and ending all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from ._readable import wait_readable, wait_readable_async
from .lifeline import wait_ended
from .protocol import AnyWorker, Source
from .worker import Worker

__all__ = ["close_workers", "wait_any", "wait_any_async"]

# SIGKILL acts in milliseconds, more where gigabytes have to be unmapped.
_KILL_DEADLINE_S = 5.0


def wait_any(workers: Sequence[AnyWorker], deadline: float | None) -> list[int]:
    """Block this thread until one of them has something to tell; the descriptors, none at the deadline.

    Raises:
        ChannelClosed: One of them was closed.
    """
    with _as_receiver_of(workers) as sources:
        return wait_readable(sources, deadline)


async def wait_any_async(workers: Sequence[AnyWorker]) -> list[int]:
    """Like ``wait_any``, from a coroutine and without a deadline."""
    with _as_receiver_of(workers) as sources:
        return await wait_readable_async(sources)


@contextmanager
def _as_receiver_of(workers: Sequence[AnyWorker]) -> Iterator[list[Source]]:
    with ExitStack() as stack:
        for worker in workers:
            worker.begin_receiving()
            stack.callback(worker.end_receiving)
        yield [source for worker in workers for source in worker.sources()]


def close_workers(workers: Sequence[Worker]) -> None:
    """Ask all to end, kill those that do not, and give back what they held. Takes the time of one."""
    if any(worker.is_inherited for worker in workers):
        for worker in workers:
            worker.abandon()
        return
    for worker in workers:
        worker.let_go()
    lifelines = [worker.lifeline for worker in workers]
    wait_ended(lifelines, max((worker.grace_s for worker in workers), default=0.0))
    for lifeline in lifelines:
        lifeline.kill()
    wait_ended(lifelines, _KILL_DEADLINE_S)
    for worker in workers:
        worker.bury()
