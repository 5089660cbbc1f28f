"""The consumer's end of the roads to torch's workers: where its loop puts tasks, and gets results from.

Laws:

* A road is a socket to one worker, with slots: no thread, no lock that a killed process could hold, no name
  in the file system. Whoever wants a result waits on all the sockets.
* A worker that ends without having been told to is seen at once, behind all that it has sent.
* A worker sees at once that its consumer has let go, or died.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from time import perf_counter
from typing import Any

from torch.utils.data import IterDataPipe, MapDataPipe

from ..workers._wire import socketpair
from ..workers.link import Link
from .at_worker import AtWorker, run_worker
from .queues import Results, Tasks
from .timing import LoopStats
from .travel import ByValue, actual_context

__all__ = ["Roads"]


class Roads(BaseContext):
    """The multiprocessing context of one iterator: its queues are roads; all else is the loader's own.

    torch asks for the queue of results first, and then for each worker's queue of tasks and its process.

    Args:
        context: The loader's ``multiprocessing_context``.
        prefetch_factor: How many tasks torch gives each worker ahead.
        tally: Hears of what workers tell beside their results.
    """

    def __init__(self, context: BaseContext | None, prefetch_factor: int, tally: LoopStats) -> None:
        self._tally = tally
        self._context = actual_context(context)
        # One for each batch ahead, one that the consumer holds, one that is being made.
        self._spare = prefetch_factor + 2
        self._results: Results | None = None
        self._tasks: list[Tasks] = []

    # --- asked by torch's loop ---

    def get_context(self, method: str | None = None) -> Any:
        return self._context

    def get_start_method(self, allow_none: bool = False) -> str:
        return self._context.get_start_method()

    def Queue(self, maxsize: int = 0) -> Any:
        if self._results is None:
            self._results = Results(self._tally)
            return self._results
        ours, theirs = socketpair()
        far = AtWorker(theirs, self._spare, self._abandon, self._tally.watch_from(perf_counter()))
        tasks = Tasks(Link(ours, self._spare), far, by_value=self.get_start_method() != "fork")
        self._tasks.append(tasks)
        self._results.add(tasks.link)
        return tasks

    def Event(self) -> Any:
        return NotOver()

    def Process(self, *, target: Callable[..., object], args: Sequence[Any]) -> Any:
        """A worker, in which its end of the road stands for the queues and the event."""
        (tasks,) = (each for each in args if isinstance(each, Tasks))
        stand_ins = (Results, Tasks, NotOver)
        there: list[Any] = [tasks.far if isinstance(each, stand_ins) else each for each in args]
        if self.get_start_method() != "fork":
            # Only now: torch's loop must see in this process that the dataset is a pipe.
            pipes = (IterDataPipe, MapDataPipe)
            there = [ByValue(each, "dataset", each) if isinstance(each, pipes) else each for each in there]
        process: Any = self._context
        return process.Process(target=run_worker, args=(tasks.far, target, *there))

    # --- told by who runs torch's loop ---

    def began(self, processes: Sequence[BaseProcess]) -> None:
        """All workers were started."""
        assert self._results is not None
        for tasks, process in zip(self._tasks, processes, strict=True):
            tasks.let_far_go()
            self._results.watch(tasks, process)

    @property
    def is_waiting(self) -> bool:
        """Whether nothing was taken in since the consumer has begun to wait."""
        return self._results is not None and self._results.is_waiting

    def wake(self) -> None:
        """Have whoever waits for a result get ``(None, None)``; from any thread."""
        if self._results is not None:
            self._results.wake()

    def let_go(self) -> None:
        """Have the workers end."""
        for tasks in self._tasks:
            tasks.link.let_go()

    def close(self) -> None:
        """Give everything back but what lies under batches. The workers have ended."""
        for tasks in self._tasks:
            tasks.let_far_go()
        if self._results is not None:
            self._results.close()

    def _abandon(self, own: socket.socket) -> None:
        """In a forked worker: close the copies of what belongs to the consumer, and to workers before it."""
        for tasks in self._tasks:
            tasks.abandon(own)
        if self._results is not None:
            self._results.close()


class NotOver:
    """Stands for the event that torch sets at the end: here sockets tell the workers."""

    def is_set(self) -> bool:
        return False
