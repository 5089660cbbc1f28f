"""A worker's program: runs one job and sends its batches, no faster than the parent takes them.

Laws:

* Between two batches the worker waits for a credit, and notices there if the parent has closed its end; the
  job's iterator is then closed. While user code runs nothing checks this: the fork server kills the worker.
* Every job ends with a message, END or ERROR. A worker that ends without one has died.
* The worker is single-threaded as long as the job is, so the job may fork or start programs; but for a thread
  that ends the process with the server, where the kernel does not.
"""

from __future__ import annotations

import importlib
import os
import pickle
import socket
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Any

from ..blocks.memory import lend, when_torch_is_here
from ..errors import drop_frames
from ..flow.channel import EndOfChannel
from ..observe.stopwatch import IDLE, SENDING, Stopwatch
from .lifeline import show_stack_on_signal
from .link import Link, LinkKind, Setting
from .packing import pack
from .raised import Dumped, dump_error
from .slots import OpenSlot, die_with_parent, keep_freed_memory, load_shared, name_process

# Free slots that a worker keeps, however many batches it may make ahead: enough that making one anew is
# rare, and few enough that what a consumer kept for a while does not stay allocated.
_MOST_SPARE = 64

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class _LetGo(Exception):
    """The parent has closed its end: it needs no further batches."""


def work(
    connection: socket.socket,
    server: int,
    life: int | None,
    stack: int,
    leash: int,
    stored_job: int,
    shared: int | None = None,
) -> None:
    """Run the stored job to its end, in a process just forked by ``server``.

    Args:
        connection: To the parent.
        server: The server's process id.
        life: See ``die_with_parent``.
        stack: What stacks are written to on request.
        leash: A socket that the parent shuts down to let the worker go.
        stored_job: The setting and the job.
        shared: What the job is called with, stored for all jobs, if that is anything.
    """
    die_with_parent(server, life)
    show_stack_on_signal(stack)
    keep_freed_memory()
    when_torch_is_here(_use_one_thread)
    setting, job = load_shared(stored_job)
    outlet = _Outlet(connection, setting)
    try:
        _settle(setting)
        _produce(job, shared, outlet, leash)
        outlet.end()
    except _LetGo:
        pass
    except BaseException as error:
        _report(error, outlet, setting.number)
    sys.stdout.flush()
    sys.stderr.flush()


def _use_one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def _settle(setting: Setting) -> None:
    name_process(f"al-worker-{setting.number}")
    sys.path[:] = setting.path
    importlib.invalidate_caches()  # the server may have looked before a module was written
    sys.argv[:] = setting.argv
    os.chdir(setting.directory)
    # Libraries that the job imports only now would start a thread for each core, in each worker.
    threads = {name: os.environ[name] for name in THREADS}
    os.environ.clear()
    os.environ.update(setting.environment | threads)


def _produce(pickled_job: bytes, shared: int | None, outlet: _Outlet, leash: int) -> None:
    job: Callable[..., Any] = pickle.loads(pickled_job)
    batches: Any = iter(job() if shared is None else job(load_shared(shared)))
    is_let_go = threading.Event()
    if hasattr(batches, "let_go"):
        arguments = leash, is_let_go, batches.let_go
        threading.Thread(target=_watch, args=arguments, name="asyncloader-watch", daemon=True).start()
    stopwatch = getattr(batches, "stopwatch", None) or Stopwatch()  # a job may measure where its time goes
    try:
        while True:
            # The credit comes first: at most ``prefetch`` batches are made ahead of the consumer.
            outlet.wait_credit()
            opened = outlet.link.open_slot()
            lend(opened)
            try:
                made = list(islice(batches, 1))
            except Exception:
                if is_let_go.is_set():
                    raise _LetGo from None  # which is why it was raised
                raise
            if not made:
                return
            stopwatch.enter(SENDING)
            outlet.send(made.pop(), opened)  # without a reference here, so that packing can free it
            stopwatch.enter(IDLE)
    finally:
        if hasattr(batches, "close"):
            batches.close()


def _watch(leash: int, is_let_go: threading.Event, let_go: Callable[[], object]) -> None:
    """Call the job's ``let_go`` when the parent lets the worker go, also amid a batch."""
    os.read(leash, 1)  # the parent sends nothing: this is the end
    is_let_go.set()
    let_go()


class _Outlet:
    """The sending end: counts credits and bytes, and packs batches."""

    def __init__(self, connection: socket.socket, setting: Setting) -> None:
        #: Whether the parent has closed its end.
        self.is_let_go = False
        self._credits = setting.prefetch
        # With all credits here there is no other grant on its way to look for.
        self._most_credits = setting.prefetch
        self._most_bytes = setting.prefetch_bytes
        # Sizes of the batches sent and not yet received, oldest first.
        self._unreceived: deque[int] = deque()
        self._last_bytes = 0
        # When the worker is idle, the parent has received all that was sent, and each of these slots may be
        # free at once; one more is being filled.
        self.link = Link(connection, min(setting.prefetch, _MOST_SPARE) + 1, setting.spare_bytes)

    def wait_credit(self) -> None:
        """Take one credit, waiting for it. Raises _LetGo when the parent has closed its end."""
        while True:
            try:
                credits = self.link.read().credits
            except BlockingIOError:
                if not self._is_ahead():
                    break
                self.link.wait(None)
            except EndOfChannel:
                self.is_let_go = True
                raise _LetGo from None
            else:
                self._credits += credits
                for _ in range(credits):
                    self._unreceived.popleft()
                if self._credits >= self._most_credits:
                    break
        self._credits -= 1

    def _is_ahead(self) -> bool:
        """Whether the consumer has enough to receive, if the next batch is as large as the last."""
        if not self._credits:
            return True
        return bool(self._unreceived) and sum(self._unreceived) + self._last_bytes > self._most_bytes

    def send(self, pair: tuple[Any, Any], made_in: OpenSlot | None) -> None:
        kind = type(pair[0])
        try:
            packed = pack(pair, made_in)
        except Exception as error:
            error.add_note(f"while pickling a batch of type {kind.__module__}.{kind.__qualname__} to send it")
            raise
        del pair  # large parts of it are freed one by one, as they are written
        self._last_bytes = packed.size_bytes
        self._unreceived.append(packed.size_bytes)
        self.link.send(packed, made_in)

    def end(self, error: Dumped | None = None) -> None:
        """Report the job's end, or what it raised, as the last message."""
        if error is None:
            self.link.end()
        else:
            self.link.send(pack(error), kind=LinkKind.ERROR)
        self.link.drain()


def _report(error: BaseException, outlet: _Outlet, worker: int) -> None:
    bare = drop_frames(error)
    if not outlet.is_let_go:
        # If the pass has ended meanwhile, mostly by the same error of another worker, it goes nowhere.
        outlet.end(dump_error(error, f"in worker {worker} (pid {os.getpid()})"))
    elif not bare:
        # Raised while the job was being closed, so that no other code reports it. But errors of reading
        # shards are expected then.
        traceback.print_exception(error)
