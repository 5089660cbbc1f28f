"""What torch's loop, as the library runs it, tells of a pass, and asks of it; and what it runs on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from time import monotonic
from typing import Any, Protocol

from .tracebacks import end_daemon_at_exit

__all__ = ["Pass", "Told", "Transport", "wait_ended"]


class Pass(Protocol):
    """Told of how a pass goes, and asked where it begins."""

    #: Set as the last thing before the consumer has a batch, with no call behind: a handler of a signal runs
    #: at calls alone, and what it raises before leaves the batch undelivered.
    is_given: bool

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
        """The batch as the consumer gets it, if it does; else it is told of the same batch again.

        Args:
            batch: As it was made.
            following: Of workers: number of the task that is due next.
            pending: Of workers whose batches come in any order: the tasks that are not done.
        """
        ...

    def end(self) -> None: ...

    def cut(self) -> None:
        """A ``StopIteration`` of the dataset's ends the loop before there are no more."""
        ...

    def wait(self) -> None:
        """The consumer waits for a batch."""
        ...

    def waited(self) -> None:
        """It waits no more: a batch has come, or an error, or the end."""
        ...

    def draw(self) -> None:
        """The sampler is asked."""
        ...

    def drew(self) -> None:
        """It has answered."""
        ...

    def defer(self, holds: Callable[[], bool] | None = None) -> None:
        """What is delivered from now on counts with ``hand_over``.

        Args:
            holds: Of a consumer that does not call it: what it got counts when it asks for the next one, and
                for a state that is saved, unless this says that it has that in hand.
        """
        ...

    def hand_over(self) -> None: ...


class Transport(Protocol):
    """The multiprocessing context of one iterator, whose queues, events and ends are its own."""

    @property
    def is_waiting(self) -> bool:
        """Whether nothing was taken in since the consumer has begun to wait."""
        ...

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


class Told:
    """What both of torch's iterators have in common: the pass that they tell, and its seed."""

    _told: Pass
    _seed = 0
    #: Whether the latest ``StopIteration`` is the dataset's own, and not the end of the indices.
    is_cut = False
    _has_index = False
    #: What torch has made and the consumer does not have yet, as after an exception of a signal's handler.
    _made: tuple[Any] | None = None
    #: What has ended a fetch in which torch may have lost a batch.
    _broken_by: str | None = None

    @property
    def _base_seed(self) -> int:
        return self._seed

    @_base_seed.setter
    def _base_seed(self, drawn: int) -> None:
        self._seed = self._told.seed(drawn)  # torch draws it and seeds its workers with it in one go

    def defer(self, holds: Callable[[], bool] | None = None) -> None:
        """Count a batch as delivered later, for a loop that may not use it at once; see ``Pass``."""
        self._told.defer(holds)

    def hand_over(self) -> None:
        """The consumer has got what ``next`` returned."""
        self._told.hand_over()

    def __next__(self) -> Any:
        if self._broken_by is not None:
            raise RuntimeError(
                f"this iterator was closed before the end of its epoch, by {self._broken_by} while it "
                "fetched a batch; iterate the loader anew, from its state_dict() if no batch may be missed"
            )
        self._told.wait()
        self.is_cut = self._has_index = False
        try:
            batch = super().__next__()  # type: ignore[misc]  # of torch's classes, which stand behind this
        except Exception:
            end_daemon_at_exit()
            raise
        finally:
            self._told.waited()
        self._made, self._told.is_given = None, True
        return batch

    def _next_index(self) -> Any:
        self._told.draw()
        try:
            index = super()._next_index()  # type: ignore[misc]  # likewise
            self._has_index = True
            return index
        finally:
            self._told.drew()

    def _stop(self, is_cut: bool) -> None:
        self.is_cut = is_cut
        (self._told.cut if is_cut else self._told.end)()


def wait_ended(processes: Iterable[BaseProcess], deadline: float) -> None:
    """Wait until all have ended; not beyond the deadline."""
    while alive := [process.sentinel for process in processes if process.is_alive()]:
        if not wait(alive, max(0.0, deadline - monotonic())):
            return
