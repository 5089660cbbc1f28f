"""An actor's program: runs one job, and makes a batch of it each time it is called.

Laws:

* Calls of ``start``, ``next`` and ``finish`` come one after the other, on one thread, in the order of their
  asking. ``let_go`` and ``observe`` come beside them, on another.
* What user code raises is an answer, with its frames and notes: what Ray raises is the actor's death, and is
  about nothing else.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import traceback
from collections.abc import Sequence
from enum import IntEnum
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

from .. import __version__
from ..stopwatch import RESTING, SENDING, Stopwatch
from ..tracebacks import drop_frames
from ..workers._libc import keep_freed_memory
from ..workers._raised import dump_error
from .connecting import import_ray
from .parts import Parts, split

__all__ = ["Answer", "Is", "LaneWorker", "Place"]


class Is(IntEnum):
    """What an answer is."""

    STARTED = 1  # with a Place
    BATCH = 2
    ERROR = 3  # what the job raised, dumped; there is no batch behind it
    END = 4  # nor behind this


Answer: TypeAlias = tuple[int, Parts, int]
"""What it is, its parts, and how many bytes those have."""


class Place(NamedTuple):
    """Where an actor runs."""

    pid: int
    node: str


class LaneWorker:
    """A worker of a loader. Ray shows the name of the class to whoever looks at a cluster.

    Args:
        version: Of this package where the actor was asked for.

    Raises:
        RuntimeError: This node has another version.
    """

    def __init__(self, version: str) -> None:
        if version != __version__:
            raise RuntimeError(
                f"this node has asyncloader {__version__}, and whoever asked for the worker has {version}; "
                "install the same version on all nodes, or name it in RayWorkers(runtime_env=...)"
            )
        self._number = 0
        self._batches: Any = iter(())
        self._stopwatch = Stopwatch()
        self._is_over = False
        self._is_let_go = False
        self._thread = 0

    def start(self, number: int, pickled_job: bytes, shared: tuple[Any, Sequence[Any]]) -> Answer:
        """Begin a job with what all jobs of the pass are given.

        Args:
            number: The worker's, within its rank.
            pickled_job: The job.
            shared: What it is called with, pickled, and the buffers that are not in the pickle.
        """
        self._number = number
        self._thread = threading.get_ident()
        self._is_over = self._is_let_go = False  # as they were left by the job of another pass
        keep_freed_memory()
        try:
            pickled, buffers = shared
            self._batches = pickle.loads(pickled_job)(pickle.loads(pickled, buffers=buffers))
            self._stopwatch = getattr(self._batches, "stopwatch", None) or Stopwatch()
            return _answer(Is.STARTED, Place(os.getpid(), _node()))
        except ImportError as error:
            error.add_note(
                "while loading the job: what a dataset names must be importable on the node, such as by "
                'RayWorkers(runtime_env={"working_dir": "."})'
            )
            return self._failed(error)
        except BaseException as error:
            return self._failed(error)

    def next(self) -> Answer:
        """Make the next batch."""
        if self._is_over or self._is_let_go:
            return _answer(Is.END)
        try:
            return self._make()
        except BaseException as error:
            return self._failed(error)

    def finish(self) -> None:
        """Close the job, so that contexts are left."""
        if not self._is_over:
            self._is_over = True
            try:
                self._batches.close()
            except Exception as error:
                # Nobody else will hear of it. But that shards could not be read is no news then.
                if not drop_frames(error):
                    traceback.print_exception(error)

    def let_go(self) -> None:
        """Nobody wants more: end a wait for the next batch. Beside the other calls."""
        self._is_let_go = True
        let_go = getattr(self._batches, "let_go", None)
        if let_go is not None:
            let_go()

    def observe(self) -> str:
        """The Python stack of the thread that makes batches. Beside the other calls."""
        frame = sys._current_frames().get(self._thread)
        return "" if frame is None else "".join(traceback.format_stack(frame))

    def _make(self) -> Answer:
        is_made = False
        try:
            made = list(islice(self._batches, 1))
            if not made:
                return _answer(Is.END)
            self._stopwatch.enter(SENDING)
            kind = type(made[0][0])
            try:
                answer = _answer(Is.BATCH, made.pop())
            except Exception as error:
                name = f"{kind.__module__}.{kind.__qualname__}"
                error.add_note(f"while pickling a batch of type {name} to send it")
                raise
            self._stopwatch.enter(RESTING)
            is_made = True
            return answer
        finally:
            if not is_made:
                self._is_over = True
                self._batches.close()

    def _failed(self, error: BaseException) -> Answer:
        self._is_over = True
        drop_frames(error)
        if self._is_let_go:  # which is why it was raised
            return _answer(Is.END)
        place = f"in worker {self._number} (pid {os.getpid()} on node {_node()})"
        return _answer(Is.ERROR, dump_error(error, place))


def _answer(kind: Is, about: object = None) -> Answer:
    parts, size_bytes = split(about)
    return int(kind), parts, size_bytes


def _node() -> str:
    return str(import_ray().util.get_node_ip_address())
