"""Processes that make shards, a run at a time each; they end with the one that started them."""

from __future__ import annotations

import os
import pickle
import struct
import subprocess
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from threading import Lock
from typing import IO, TypeAlias

from .._flow.children import clean_python
from ..by_value import dumps_outward
from ..errors import WorkerDiedError
from ..index.expectations import Expected
from .making import Task, make_shards

__all__ = ["make_all", "receive", "send"]

_LENGTH = struct.Struct("<Q")
_PROGRAM = "import sys\nfrom asyncloader.converting._worker_main import main\nmain(int(sys.argv[1]))\n"

Told: TypeAlias = Callable[[str, Expected], object]
"""Hears of a shard that is whole: its name, and what it is."""


def make_all(tasks: Iterator[Task], workers: int, told: Told, inherited: Collection[int] = ()) -> None:
    """Make the shards of all tasks.

    Args:
        tasks: Asked for one by one.
        workers: How many processes; 0 for this one.
        told: Called with each shard when it is whole, by one thread at a time.
        inherited: Descriptors that the processes need, under the same numbers.

    Raises:
        WorkerDiedError: A process ended by itself, killed or for want of memory.
        Exception: What making a shard raised.
    """
    if not workers:
        for mine in tasks:
            for shard in make_shards(mine):
                told(*shard)
        return
    lock = Lock()

    def tell(name: str, made: Expected) -> None:
        with lock:
            told(name, made)

    with ExitStack() as stack:
        # The threads first: the end of the processes ends what they wait for.
        threads = stack.enter_context(ThreadPoolExecutor(workers, thread_name_prefix="asyncloader-convert"))
        idle = [stack.enter_context(_working(number, inherited)) for number in range(workers)]
        running: dict[Future[None], _Worker] = {}
        while True:
            while idle and (task := next(tasks, None)) is not None:
                worker = idle.pop()
                running[threads.submit(worker.do, task, tell)] = worker
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                idle.append(running.pop(future))
                future.result()


class _Worker:
    """A process, and what goes to it and comes from it."""

    def __init__(self, number: int, process: subprocess.Popen[bytes]) -> None:
        self._number = number
        self._process = process

    def do(self, task: Task, told: Told) -> None:
        """Have a run of shards made."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(BrokenPipeError):  # it has ended, as the answer says
            send(self._process.stdin, dumps_outward(task))
        while (content := receive(self._process.stdout)) is not None:
            answer = pickle.loads(content)
            if answer is None:
                return
            if isinstance(answer, Exception):
                raise answer
            told(*answer)
        raise WorkerDiedError(
            "a process that makes shards was ended from outside, by the kernel for want of memory perhaps; "
            "call convert again, which goes on with the shards that are missing, with fewer num_workers",
            worker=self._number,
            pid=self._process.pid,
            exitcode=self._process.wait(),
        )


@contextmanager
def _working(number: int, inherited: Collection[int]) -> Iterator[_Worker]:
    """A process, which is killed if it is still at work in the end."""
    lifeline, held = os.pipe()
    try:
        command, environment = clean_python(_PROGRAM, str(lifeline))
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            pass_fds=(lifeline, *inherited),
        )
    except BaseException:
        os.close(held)
        raise
    finally:
        os.close(lifeline)
    try:
        yield _Worker(number, process)
    finally:
        os.close(held)
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()


def send(pipe: IO[bytes], content: bytes) -> None:
    """One message."""
    pipe.write(_LENGTH.pack(len(content)))
    pipe.write(content)
    pipe.flush()


def receive(pipe: IO[bytes]) -> bytes | None:
    """The next message; None at the end, also in the middle of one."""
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    content = pipe.read(length)
    return content if len(content) == length else None
