"""A worker's program: runs one job and sends its batches, no faster than the parent takes them.

Laws:

* Between two batches the worker waits for a credit, and notices there if the parent has closed its end; the
  job is then closed. While user code runs, a thread checks this if the job listens; else the fork server
  kills the worker.
* Every job ends with a message, END or ERROR. A worker that ends without one has died.
* The worker is single-threaded as long as the job is, so the job may fork or start programs; but for a thread
  that ends the process with the server, where the kernel does not.
"""

from __future__ import annotations

import importlib
import os
import pickle
import select
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from ..blocks.memory import lend, when_torch_is_here
from ..flow.channel import EndOfChannel
from .lifeline import show_stack_on_signal
from .link import Link, LinkKind, Setting
from .packing import pack
from .raised import Dumped, dump_failure
from .slots import OpenSlot, die_with_parent, keep_freed_memory, load_shared, name_process
from .worker import Job

# Free slots that a worker keeps, however many batches it may make ahead: enough that making one anew is
# rare, and few enough that what a consumer kept for a while does not stay allocated.
_MOST_SPARE = 64

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def work(
    connection: socket.socket,
    server: int,
    life: int | None,
    given: bytes,
    stack: int,
    stored_job: int,
) -> None:
    """Run the stored job to its end, in a process just forked by ``server``.

    Args:
        connection: To the parent.
        server: The server's process id.
        life: See ``die_with_parent``.
        given: Pickled, the worker's number, the setting, and what the job is called with beside the number.
        stack: What stacks are written to on request.
        stored_job: What all workers of the pool do.
    """
    die_with_parent(server, life)
    show_stack_on_signal(stack)
    keep_freed_memory()
    when_torch_is_here(_use_one_thread)
    number, setting, its_own = pickle.loads(given)
    outlet = _Outlet(connection, setting)
    failure = None
    try:
        _settle(number, setting)
        job: Job = load_shared(stored_job)
        work = job(number, its_own)
        if work.let_go is not None:
            watch = threading.Thread(
                target=outlet.watch, args=(work.let_go,), name="asyncloader-watch", daemon=True
            )
            watch.start()
        work.run(outlet.take_credit, outlet.send, lambda: outlet.is_let_go)
    except BaseException as error:
        failure = dump_failure(error, f"in worker {number} (pid {os.getpid()})", outlet.is_let_go)
    outlet.end(failure)
    sys.stdout.flush()
    sys.stderr.flush()


def _use_one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def _settle(number: int, setting: Setting) -> None:
    name_process(f"al-worker-{number}")
    sys.path[:] = setting.path
    importlib.invalidate_caches()  # the server may have looked before a module was written
    sys.argv[:] = setting.argv
    os.chdir(setting.directory)
    # Libraries that the job imports only now would start a thread for each core, in each worker.
    threads = {name: os.environ[name] for name in THREADS}
    os.environ.clear()
    os.environ.update(setting.environment | threads)


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
        self._link = Link(connection, min(setting.prefetch, _MOST_SPARE) + 1, setting.spare_bytes)
        self._made_in: OpenSlot | None = None

    def watch(self, let_go: Callable[[], object]) -> None:
        """Call ``let_go`` when the parent has closed its end, also amid a batch; in a thread of its own."""
        poll = select.poll()
        poll.register(self._link, select.POLLHUP)
        poll.poll()
        self.is_let_go = True
        let_go()

    def take_credit(self) -> bool:
        """Wait for a credit, and lend a slot to make a batch in; false when the parent has closed its end."""
        while True:
            try:
                credits = self._link.read().credits
            except BlockingIOError:
                if not self._is_ahead():
                    break
                self._link.wait(None)
            except EndOfChannel:
                self.is_let_go = True
                return False
            else:
                self._credits += credits
                for _ in range(credits):
                    self._unreceived.popleft()
                if self._credits >= self._most_credits:
                    break
        self._credits -= 1
        self._made_in = self._link.open_slot()
        lend(self._made_in)
        return True

    def _is_ahead(self) -> bool:
        """Whether the consumer has enough to receive, if the next batch is as large as the last."""
        if not self._credits:
            return True
        return bool(self._unreceived) and sum(self._unreceived) + self._last_bytes > self._most_bytes

    def send(self, pair: tuple[Any, Any]) -> None:
        packed = pack(pair, self._made_in)
        del pair  # large parts of it are freed one by one, as they are written
        self._last_bytes = packed.size_bytes
        self._unreceived.append(packed.size_bytes)
        self._link.send(packed)

    def end(self, error: Dumped | None) -> None:
        """Report the job's end, or what it raised, as the last message."""
        if error is None:
            self._link.end()
        else:
            self._link.send(pack(error), kind=LinkKind.ERROR)
        self._link.drain()
