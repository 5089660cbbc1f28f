"""An actor's program: runs one job, and returns its batches to calls.

Laws:

* The job runs on a thread of its own, which makes a batch for each credit. So the actor makes batches while
  Ray sends those before.
* Calls of ``start`` and ``next`` run one after the other, in the order of the calls. ``finish`` and
  ``observe`` run beside them, on another thread.
* What user code raises is an answer, with its frames and notes: an error of Ray's always means that the actor
  has died.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import traceback
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ... import __version__
from ...flow.process import has_linux
from ..packing import Bytes, take_apart
from ..raised import dump_failure
from ..slots import keep_freed_memory
from ..worker import Work
from .options import RayWorkers, import_ray

# What is sent through Ray's object store: a pickle stream, and beside it large memory, which is not copied.
#
# Ray returns what lies in its store as read-only, since any process that has the reference may map it. The
# reference to a batch exists in one process only, which reads it once: writing to it is like writing to a
# batch of a local worker, which lies in shared memory too; and torch has no read-only tensors. So tensors and
# arrays are made over the store's own pages, writable, where the system lets this process write there;
# elsewhere they are copied.

Parts: TypeAlias = tuple[Any, Sequence[Any]]
"""The pickle stream, and the buffers that are not in it: ``PickleBuffer`` when sent, Ray's when received."""

# Results up to 100 KB come by message into Ray's heap, not through the store (max_direct_call_object_size).
# Copying them takes some microseconds, less than finding out where they lie.
_LEAST_SHARED_BYTES = 128 << 10


def split(batch: object) -> tuple[Parts, int]:
    """Take ``batch`` apart to be returned by an actor; also how many bytes it has.

    Raises:
        Exception: What pickle raises for something that cannot be sent.
    """
    pieces, buffers = take_apart(batch)
    stream = b"".join(pieces)
    # As a buffer the stream is copied once, into the store; as bytes it would be part of Ray's own pickle.
    parts = pickle.PickleBuffer(stream), [pickle.PickleBuffer(buffer) for buffer in buffers]
    return parts, len(stream) + sum(map(len, buffers))


class ObjectPages:
    """Rebuilds batches over the pages that Ray has mapped; of one process."""

    def __init__(self) -> None:
        #: Mappings that may be written to: the store's own is one, of gigabytes.
        self._writable: list[range] = []

    def join(self, parts: Parts) -> Any:
        """The batch, with writable tensors and arrays; its memory stays in the store as long as they live."""
        stream, buffers = parts
        views = [np.frombuffer(buffer, np.uint8) for buffer in buffers]
        if sum(map(len, views)) < _LEAST_SHARED_BYTES:
            return pickle.loads(stream, buffers=[view.copy() for view in views])
        return pickle.loads(stream, buffers=[self._writable_over(view) for view in views])

    def _writable_over(self, view: Bytes) -> Bytes:
        if view.flags.writeable:
            return view
        address = view.ctypes.data
        if not any(address in mapping for mapping in self._writable):
            mapping = _mapping_of(address)
            if mapping is None:
                return view.copy()
            self._writable.append(mapping)
        return np.asarray(_Over(view))


class _Over:
    """The same memory as that of an array, which it keeps, and writable; what NumPy asks for it by."""

    def __init__(self, view: Bytes) -> None:
        self._view = view
        self.__array_interface__ = {**view.__array_interface__, "data": (view.ctypes.data, False)}


def _mapping_of(address: int) -> range | None:
    """The mapping of this process in which an address lies, if it may be written to and can be known."""
    if not has_linux():
        return None
    with open("/proc/self/maps") as lines:
        for line in lines:
            span, rights = line.split(maxsplit=2)[:2]
            first, stop = (int(bound, 16) for bound in span.split("-"))
            if first <= address < stop:
                return range(first, stop) if rights.startswith("rw") else None
    return None


class Is(IntEnum):
    """What an answer is."""

    STARTED = 1  # with a Place
    BATCHES = 2
    ERROR = 3  # what the job raised, dumped; there is no batch behind it
    END = 4  # nor behind this


Answer: TypeAlias = tuple[Is, Any]
"""What it is, and what it holds: of batches the parts of each, with how many bytes those have."""


class ActorPlace(NamedTuple):
    """Where an actor runs."""

    pid: int
    node: str


# How long a batch may wait for those behind it, to be sent with them. An answer costs all processes together
# some two milliseconds of processor time, however many batches are in it; but the consumer may wait for them.
_LINGER_S = 0.005


class LaneWorker:
    """A worker of a loader. Ray's tools show the name of this class.

    Args:
        version: Of this package in the loader's process.

    Raises:
        RuntimeError: This node has another version.
    """

    def __init__(self, version: str) -> None:
        if version != __version__:
            raise RuntimeError(
                f"this node has asyncloader {__version__}, but the loader's process has {version}; install "
                "the same version on all nodes, or name it in RayWorkers(runtime_env=...)"
            )
        self._number = 0
        self._place = ActorPlace(os.getpid(), import_ray().util.get_node_ip_address())
        self._thread = threading.Thread()
        #: Notified of all changes of what follows.
        self._changed = threading.Condition()
        #: How many batches may be made.
        self._credits = 0
        #: Those made and not yet returned.
        self._made = deque[tuple[Parts, int]]()
        #: What comes behind all batches, as soon as that is known.
        self._last: Answer | None = None
        self._is_let_go = False
        self._work: Work | None = None

    def start(self, number: int, given: Any, job: tuple[Any, Sequence[Any]]) -> Answer:
        """Begin a job.

        Args:
            number: The worker's, within its rank.
            given: What the job is called with.
            job: It, pickled, and the buffers that are not in the pickle.
        """
        self._number = number
        # As they were left by the job of another pass.
        self._credits, self._last, self._is_let_go = 0, None, False
        self._made.clear()
        keep_freed_memory()
        try:
            pickled, buffers = job
            self._work = pickle.loads(pickled, buffers=buffers)(number, given)
        except ImportError as error:
            error.add_note(
                "while loading the job: what a dataset names must be importable on the node, such as by "
                'ray.init(runtime_env={"working_dir": "."})'
            )
            self._last = self._failed(error)
        except BaseException as error:
            self._last = self._failed(error)
        else:
            # Not named as one of the library's own threads, which would not wait for the end of its engine,
            # in which contexts are left.
            self._thread = threading.Thread(
                target=self._run, args=(self._work,), name="ray-batches", daemon=True
            )
            self._thread.start()
        return self._last or (Is.STARTED, self._place)

    def next(self, credits: int, most: int) -> Answer:
        """The next batches, as soon as there is one.

        Args:
            credits: How many more batches may be made.
            most: How many to return at most. They are waited for as long as that is worth it.
        """
        with self._changed:
            self._credits += credits
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._made or self._ends)
            self._changed.wait_for(lambda: len(self._made) >= most or self._ends, _LINGER_S)
            made = [self._made.popleft() for _ in range(min(most, len(self._made)))]
            return (Is.BATCHES, made) if made else (self._last or (Is.END, None))

    def finish(self) -> None:
        """No further batches are needed: end a wait for the next one, and close the job, so that contexts are
        left. Runs beside the other calls."""
        with self._changed:
            self._is_let_go = True
            self._changed.notify_all()
        if self._thread.is_alive():
            if self._work is not None and self._work.let_go is not None:
                self._work.let_go()
            self._thread.join()

    def observe(self) -> str:
        """The Python stack of the thread that makes batches. Runs beside the other calls."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        return "" if frame is None else "".join(traceback.format_stack(frame))

    @property
    def _ends(self) -> bool:
        """Whether the last batch was made."""
        return self._is_let_go or self._last is not None

    def _run(self, work: Work) -> None:
        work.stopwatch.move_here()
        try:
            work.run(self._take_credit, self._send, lambda: self._is_let_go)
            last: Answer = (Is.END, None)
        except BaseException as error:
            last = self._failed(error)
        with self._changed:
            self._last = last
            self._changed.notify_all()

    def _send(self, batch: tuple[Any, Any]) -> None:
        """Keep a batch to be returned while the next one is made."""
        parts = split(batch)
        with self._changed:
            self._made.append(parts)
            self._changed.notify_all()

    def _take_credit(self) -> bool:
        """Wait for a credit; False if no batch is needed any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._credits or self._is_let_go)
            self._credits -= 1
            return not self._is_let_go

    def _failed(self, error: BaseException) -> Answer:
        place = f"in worker {self._number} (pid {self._place.pid} on node {self._place.node})"
        failure = dump_failure(error, place, self._is_let_go)
        return (Is.END, None) if failure is None else (Is.ERROR, failure)


# Actors between two passes: with ``persistent_workers=True`` they are kept, and what they have imported.


class Bench:
    """A loader's idle actors, whose jobs have ended, until another pass, or the loader's end.

    Args:
        asked: What each actor is requested with.
        keeps: Whether actors are kept; else each is killed with its pass.
    """

    def __init__(self, asked: RayWorkers, keeps: bool) -> None:
        self.asked = asked
        self.keeps = keeps
        # Re-entrant: a garbage collection while it is held may end a pass, whose actors are added.
        self._lock = threading.RLock()
        #: Each with the connection to Ray by which it was made: after another ``ray.init()`` it is lost.
        self._idle: list[tuple[str, Any]] = []
        self._owner = os.getpid()
        # Not the bench itself: a finalizer's arguments are never collected.
        weakref.finalize(self, _kill, self._idle, self._owner)

    def take(self) -> Any | None:
        """An actor for another job, or None if there is none; it may have been lost meanwhile."""
        if self._owner != os.getpid():
            return None
        with self._lock:
            while self._idle:
                made_by, actor = self._idle.pop(0)
                if made_by == _connection():
                    return actor
        return None

    def seat(self, actor: Any) -> None:
        """Add an actor, until it is taken or the bench is cleared."""
        with self._lock:
            self._idle.append((_connection(), actor))

    def clear(self) -> None:
        """Kill all idle actors. From any thread."""
        with self._lock:
            _kill(self._idle, self._owner)

    def __reduce__(self) -> Any:
        """A copy, here or elsewhere, is an empty one."""
        return Bench, (self.asked, self.keeps)


def _connection() -> str:
    return str(import_ray().get_runtime_context().get_worker_id())


def _kill(idle: list[tuple[str, Any]], owner: int) -> None:
    if owner != os.getpid():  # in a fork they are another process's
        return
    while idle:
        _, actor = idle.pop()
        ray = import_ray()
        # Where Ray has shut down its actors have ended, and calling it would start another cluster.
        if ray.is_initialized():
            with suppress(Exception):  # it was lost
                ray.kill(actor)
