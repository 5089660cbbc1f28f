"""Several workers at once: waiting for any of them, and ending all."""

from __future__ import annotations

from collections.abc import Sequence

from ._readable import wait_readable, wait_readable_async
from .lifeline import wait_ended
from .protocol import AnyWorker, Source
from .tenure import Reception
from .worker import Worker

__all__ = ["close_workers", "wait_any", "wait_any_async"]

# SIGKILL acts in milliseconds, more where gigabytes have to be unmapped.
_KILL_DEADLINE_S = 5.0


def wait_any(workers: Sequence[AnyWorker], deadline: float | None) -> list[int]:
    """Block this thread until one of them has something to tell; the descriptors, none at the deadline.

    Raises:
        ChannelClosed: One of them was closed.
    """
    reception = Reception()
    try:
        return wait_readable(_received(workers, reception), deadline)
    finally:
        reception.is_on = False
        _let_go(workers)


async def wait_any_async(workers: Sequence[AnyWorker]) -> list[int]:
    """Like ``wait_any``, from a coroutine and without a deadline."""
    reception = Reception()
    try:
        return await wait_readable_async(_received(workers, reception))
    finally:
        reception.is_on = False
        _let_go(workers)


def _received(workers: Sequence[AnyWorker], reception: Reception) -> list[Source]:
    for worker in workers:
        worker.begin_receiving(reception)
    return [source for worker in workers for source in worker.sources()]


def _let_go(workers: Sequence[AnyWorker]) -> None:
    for worker in workers:
        worker.end_receiving()


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
