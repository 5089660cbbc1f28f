"""What torch's loop, as the library runs it, tells of a pass, and asks of it; and what it runs on."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

__all__ = ["Pass", "Transport"]


class Pass(Protocol):
    """Told of how a pass goes, and asked where it begins."""

    @property
    def batches(self) -> int:
        """How many were delivered before it went on."""
        ...

    def seed(self, drawn: int) -> int:
        """The base seed that the workers get, when one was drawn."""
        ...

    def take_turn(self) -> int:
        """The worker that gets the first task; 0 if asked again."""
        ...

    def begin(self) -> None:
        """Another pass begins, with the same workers."""
        ...

    def deliver(self, batch: Any, following: int | None, pending: Collection[int] | None) -> Any:
        """The batch as the consumer gets it.

        Args:
            batch: As it was made.
            following: Of workers: number of the task that is due next.
            pending: Of workers whose batches come in any order: the tasks that are not done.
        """
        ...

    def end(self) -> None: ...

    def defer(self) -> None:
        """What is delivered from now on counts with ``hand_over``."""
        ...

    def hand_over(self) -> None: ...


class Transport(Protocol):
    """The multiprocessing context of one iterator, whose queues, events and ends are its own."""

    def began(self, processes: Sequence[BaseProcess]) -> None:
        """All workers were started."""
        ...

    def wake(self) -> None:
        """Have the queue of results give ``(None, None)`` to whoever waits; from any thread.

        It does so by itself once a worker has ended that was not told to.
        """
        ...

    def let_go(self) -> None:
        """Have the workers end."""
        ...

    def close(self) -> None:
        """The workers have ended. Idempotent."""
        ...
