"""A worker's program: runs one job and sends its batches, no faster than the parent takes them.

Laws:

* Between two batches the worker waits for a credit, and notices there if the parent has closed its end; the
  job's iterator is then closed. While user code runs nothing checks this: the fork server kills the worker.
* Every job ends with a message, END or ERROR. A worker that ends without one has died.
* The worker is single-threaded as long as the job is, so the job may fork or start programs.
"""

from __future__ import annotations

import importlib
import os
import pickle
import select
import signal
import socket
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, NoReturn

from ..blocks.memory import lend, when_torch_is_here
from ..errors import drop_frames
from ..observe.stopwatch import IDLE, SENDING, Stopwatch
from .lifeline import show_stack_on_signal
from .link import DONT_WAIT, FROM_WORKER, FromWorker, Setting, receive_grant, send_message, take_stored
from .packing import Packed, pack
from .raised import Dumped, dump_error
from .slots import OpenSlot, OutboundSlots, die_with_parent, keep_freed_memory, load_shared, name_process

# Free slots that a worker keeps, however many batches it may make ahead: enough that making one anew is
# rare, and few enough that what a consumer kept for a while does not stay allocated.
_MOST_SPARE = 64

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class _LetGo(Exception):
    """The parent has closed its end: it needs no further batches."""


def work(
    connection: socket.socket, server: int, stored_job: int, stack: int, shared: int | None = None
) -> None:
    """Run the stored job to its end, in a process just forked by ``server``."""
    die_with_parent(signal.SIGKILL)
    if os.getppid() != server:
        return  # it ended before the kernel was asked to send the signal
    show_stack_on_signal(stack)
    keep_freed_memory()
    when_torch_is_here(_use_one_thread)
    setting, job = take_stored(stored_job)
    outlet = _Outlet(connection, setting)
    try:
        _settle(setting)
        _produce(job, shared, outlet, connection)
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


def _produce(pickled_job: bytes, shared: int | None, outlet: _Outlet, connection: socket.socket) -> None:
    job: Callable[..., Any] = pickle.loads(pickled_job)
    batches: Any = iter(job() if shared is None else job(load_shared(shared)))
    watch = _Watch(connection, batches)
    stopwatch = getattr(batches, "stopwatch", None) or Stopwatch()  # a job may measure where its time goes
    try:
        while True:
            # The credit comes first: at most ``prefetch`` batches are made ahead of the consumer.
            outlet.wait_credit()
            opened = outlet.open_slot()
            lend(opened)
            try:
                made = list(islice(batches, 1))
            except Exception:
                if watch.let_go:
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


class _Watch:
    """Calls the ``let_go`` of a job that has one when the parent closes its end, also amid a batch."""

    def __init__(self, connection: socket.socket, batches: Any) -> None:
        self.let_go = False
        self._connection = connection
        self._batches = batches
        if hasattr(batches, "let_go"):
            threading.Thread(target=self._run, name="asyncloader-watch", daemon=True).start()

    def _run(self) -> None:
        poll = select.poll()
        # Not for what can be read: those are credits, for the main thread.
        poll.register(self._connection, select.POLLRDHUP)
        poll.poll()
        self.let_go = True
        self._batches.let_go()


class _Outlet:
    """The sending end: counts credits and bytes, packs batches into slots, and announces them."""

    def __init__(self, connection: socket.socket, setting: Setting) -> None:
        #: Whether the parent has closed its end.
        self.is_let_go = False
        self._connection = connection
        self._credits = setting.prefetch
        # With all credits here there is no other grant on its way to look for.
        self._most_credits = setting.prefetch
        self._most_bytes = setting.prefetch_bytes
        # Sizes of the batches sent and not yet received, oldest first.
        self._unreceived: deque[int] = deque()
        self._last_bytes = self._last_slot_bytes = 0
        # When the worker is idle, the parent has received all that was sent, and each of these slots may be
        # free at once; one more is being filled.
        self._slots = OutboundSlots(min(setting.prefetch, _MOST_SPARE) + 1, setting.spare_bytes)

    def wait_credit(self) -> None:
        """Take one credit, waiting for it. Raises _LetGo when the parent has closed its end."""
        while True:
            try:
                grant = receive_grant(self._connection, 0 if self._is_ahead() else DONT_WAIT)
            except BlockingIOError:
                break
            except ConnectionError:
                grant = None
            if grant is None:
                self._let_go()
            credits, freed, retired = grant
            self._credits += credits
            for _ in range(credits):
                self._unreceived.popleft()
            self._slots.take_back(freed)
            self._slots.retire(retired)
            if self._credits >= self._most_credits:
                break
        self._credits -= 1

    def _is_ahead(self) -> bool:
        """Whether the consumer has enough to receive, if the next batch is as large as the last."""
        if not self._credits:
            return True
        return bool(self._unreceived) and sum(self._unreceived) + self._last_bytes > self._most_bytes

    def open_slot(self) -> OpenSlot | None:
        """Where to make the next batch, which is assumed to be as large as the last one."""
        return self._slots.open(self._last_slot_bytes)

    def send(self, pair: tuple[Any, Any], made_in: OpenSlot | None) -> None:
        kind = type(pair[0])
        try:
            packed = pack(pair, made_in)
        except Exception as error:
            error.add_note(f"while pickling a batch of type {kind.__module__}.{kind.__qualname__} to send it")
            raise
        del pair  # large parts of it are freed one by one, as they are written
        self._last_bytes, self._last_slot_bytes = packed.size_bytes, packed.slot_bytes
        self._unreceived.append(packed.size_bytes)
        self._send_packed(FromWorker.BATCH, packed, made_in)

    def send_error(self, dumped: Dumped) -> None:
        self._send_packed(FromWorker.ERROR, pack(dumped))

    def end(self) -> None:
        self._tell(FROM_WORKER.pack(FromWorker.END, 0, 0))

    def _send_packed(self, kind: FromWorker, packed: Packed, made_in: OpenSlot | None = None) -> None:
        slot, descriptor, dropped = self._slots.fill(packed, made_in)
        for each in dropped:
            self._tell(FROM_WORKER.pack(FromWorker.DROP, each, 0))
        start = FROM_WORKER.pack(kind, slot, packed.at)
        if descriptor is None:
            self._tell(start, packed.message)
            return
        try:
            self._tell(start, packed.message, descriptors=[descriptor])
        finally:
            os.close(descriptor)

    def _tell(self, *parts: bytes, descriptors: Sequence[int] = ()) -> None:
        try:
            send_message(self._connection, *parts, descriptors=descriptors)
        except ConnectionError:
            self._let_go()

    def _let_go(self) -> NoReturn:
        self.is_let_go = True
        raise _LetGo from None


def _report(error: BaseException, outlet: _Outlet, worker: int) -> None:
    bare = drop_frames(error)
    if not outlet.is_let_go:
        with suppress(_LetGo):  # the pass has ended meanwhile, mostly by the same error of another worker
            outlet.send_error(dump_error(error, f"in worker {worker} (pid {os.getpid()})"))
    elif not bare:
        # Raised while the job was being closed, so that no other code reports it. But errors of reading
        # shards are expected then.
        traceback.print_exception(error)
