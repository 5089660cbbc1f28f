"""What a pass needs of its workers, wherever they run: local processes and Ray actors keep it alike.

Laws:

* A worker makes no more batches ahead than it was asked for: what it may hold is bounded in number and bytes.
* After its last batch comes its job's end, what the job raised, or its death, each time anew that one asks.
* Whoever waits for workers waits on descriptors: a thread and a coroutine alike, for any number of any kind.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Protocol, TypeAlias

from .tenure import Reception

__all__ = ["AnyPool", "AnyWorker", "Job", "Source"]

Job: TypeAlias = Callable[..., Iterator[tuple[Any, Any]]]
"""What a worker does: called in its process, it returns an iterator of ``(batch, note)``."""


class Source(Protocol):
    """Something that ``poll`` can wait for."""

    def fileno(self) -> int: ...


class AnyWorker(Protocol):
    """One job that runs elsewhere, as its consumer sees it."""

    @property
    def number(self) -> int:
        """Its place in the pool, from 0."""
        ...

    @property
    def name(self) -> str:
        """What messages call it, such as ``"worker 1 (pid 4711)"``."""
        ...

    @property
    def has_died(self) -> bool:
        """Whether what comes after the last batch is the worker's own death, and not what its job raised."""
        ...

    def receive_nowait(self, ready: Collection[int]) -> tuple[Any, Any] | None:
        """The next ``(batch, note)``, None if one has to wait for it.

        Args:
            ready: What ``wait_any`` gave since this was None; empty before.

        Raises:
            EndOfChannel: The job has ended, and every batch was received.
            Exception: What the job raised, with its own type where that can be had here and as a RuntimeError
                otherwise, with what it came from, and with its frames as a note.
            WorkerDiedError: The worker ended without finishing the job.
            ChannelClosed: It was closed.
        """
        ...

    def begin_receiving(self, reception: Reception) -> None:
        """Keep the sources open while that is on: somebody waits on them. ChannelClosed if they are not."""
        ...

    def end_receiving(self) -> None:
        """It is not on any more: they may be closed."""
        ...

    def sources(self) -> Sequence[Source]:
        """What is readable when there is something to receive."""
        ...

    def observe(self) -> str:
        """What it is at: half a sentence, and its Python stack if that can be had. Takes seconds at most."""
        ...

    async def observe_async(self) -> str:
        """Like ``observe``, from a coroutine."""
        ...


class AnyPool(Protocol):
    """The workers of one pass, which are started and closed together."""

    @property
    def workers(self) -> Sequence[AnyWorker]:
        """Those that work now, by their number."""
        ...

    def replace(self, number: int, job: Job) -> object:
        """Start another worker in the place of worker ``number``, which has died."""
        ...

    def close(self) -> None:
        """End all workers, and return once they have ended. Idempotent, from any thread."""
        ...
