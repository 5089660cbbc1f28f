"""What the fork server says of one worker: that it was forked, and how it ended."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import BinaryIO

from ..errors import WorkerDiedError, users_stacks_first
from .link import FromServer, receive_message, wait_readable, wait_readable_async


class Lifeline:
    """What the server says of one worker. Safe from any thread; nothing blocks but ``wait_started``."""

    def __init__(self, end: socket.socket, stack: BinaryIO) -> None:
        self._end = end
        #: What the worker writes its stack to when it is asked for it.
        self.stack = stack
        self._lock = threading.Lock()
        self.pid: int | None = None
        self.exitcode: int | None = None
        self.ended = False
        #: Why it could not be started.
        self.failure: str | None = None

    def fileno(self) -> int:
        """Readable when there is something for ``advance``."""
        return self._end.fileno()

    def wait_started(self, deadline: float | None = None) -> None:
        """Wait until the worker is forked.

        Args:
            deadline: By ``time.monotonic()``; None, the default, waits for as long as it takes.

        Raises:
            RuntimeError: It could not be.
            WorkerDiedError: The server ended, which nothing but a signal makes it do.
            TimeoutError: It was not by then.
        """
        if not wait_readable([self], deadline):
            raise TimeoutError
        self._hear(0)
        if self.pid is None and self.failure is None:
            raise WorkerDiedError("the process that workers are forked from was killed while it started one")
        if self.pid is None:
            raise RuntimeError(f"the fork server could not start a worker: {self.failure}")

    def give_up(self) -> None:
        """Wait no more for a worker that was not forked: the server, which may be stopped, kills it then."""
        if self.pid is None:
            self.ended = True

    def advance(self) -> bool:
        """Take in what has come, and say whether the worker has ended."""
        while not self.ended and self._hear(socket.MSG_DONTWAIT):
            pass
        return self.ended

    def kill(self) -> None:
        """Have the server kill the worker; its end is told all the same."""
        with suppress(OSError):  # it has ended already
            self._end.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Let go of the worker: if it still lives, it is killed."""
        self._end.close()
        self.stack.close()

    def _hear(self, flags: int) -> bool:
        with self._lock:
            try:
                message, _ = receive_message(self._end, flags)
            except BlockingIOError:
                return False
            except OSError:
                message = b""
            if not message:
                self.ended = True  # told before, or the server was killed and the worker with it
                return True
            kind, text = FromServer(message[0]), message[1:].decode(errors="replace")
            if kind is FromServer.PID:
                self.pid = int(text)
            elif kind is FromServer.EXIT:
                self.exitcode, self.ended = int(text), True
            else:
                self.failure, self.ended = text, True
            return True


def wait_ended(lifelines: Iterable[Lifeline], patience_s: float) -> None:
    """Wait until all these workers have ended, but no longer than ``patience_s``."""
    deadline = monotonic() + patience_s
    while waiting := [lifeline for lifeline in lifelines if not lifeline.advance()]:
        if not wait_readable(waiting, deadline):
            return


# What a worker is doing that lets its consumer wait: the state of its process, and its Python stack.
#
# A worker has faulthandler write its stack to a pipe of its parent's, on a signal that nobody else uses.
# That runs in C, whatever holds the interpreter, and costs nothing until somebody asks.

# Programs and tools count real-time signals from either end, and seldom get so far.
_SIGNAL = int(signal.SIGRTMAX) - 7 if hasattr(signal, "SIGRTMAX") else 0

# It takes a millisecond. A second is for a machine that swaps.
_FIRST_PATIENCE_S = 1.0

# Nothing says that a stack is complete, but it is written in one go.
_NEXT_PATIENCE_S = 0.1

# Beyond what a person reads. A pipe holds no more than 64 KiB: a worker does not wait for it, and cuts.
_LONGEST_BYTES = 16 << 10

# By the letter in /proc.
_STATES = {
    "new": "is being started",
    "R": "is running",
    "S": "is sleeping, or waits for something",
    "I": "is idle",
    "D": "waits in the kernel, for a disk or for memory that was swapped out",
    "T": "is stopped (the signal SIGCONT has it go on)",
    "t": "is stopped by a debugger",
}
_CAN_ANSWER = "RS"


def describe_process(pid: int) -> str:
    """How a process is, in half a sentence such as ``"is running"``."""
    return _STATES.get(_look(pid)[0], "has ended")


def open_pipe() -> tuple[BinaryIO, BinaryIO]:
    """The parent's end and the worker's of what a stack is written to; neither ever blocks."""
    ours, theirs = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    return open(ours, "rb", buffering=0), open(theirs, "wb", buffering=0)


def show_stack_on_signal(pipe: int) -> None:
    """In a worker: write the stacks of all threads to ``pipe`` when the parent asks for them."""
    faulthandler.register(_SIGNAL, file=pipe, all_threads=True, chain=False)


def observe(lifeline: Lifeline) -> str:
    """How a worker's process is, and its Python stack where that can be had. Takes two seconds at most.

    Returns:
        Half a sentence, such as ``"is running; its Python stack:"``, and the stack's lines.
    """
    with _asked(lifeline) as answer:
        while answer.is_open and wait_readable([answer], monotonic() + answer.patience_s):
            answer.read()
        return answer.told()


async def observe_async(lifeline: Lifeline) -> str:
    """Like ``observe``, from a coroutine."""
    with _asked(lifeline) as answer:
        with suppress(TimeoutError):
            while answer.is_open:
                async with asyncio.timeout(answer.patience_s):
                    await wait_readable_async([answer])
                answer.read()
        return answer.told()


@contextmanager
def _asked(lifeline: Lifeline) -> Iterator[_Answer]:
    """The answer of a worker that was asked, if it can answer."""
    pid = lifeline.pid
    if lifeline.stack.closed:
        yield _Answer(None, "X")
        return
    # A descriptor of our own: whoever closes the worker meanwhile closes theirs.
    with open(os.dup(lifeline.stack.fileno()), "rb", buffering=0) as pipe:
        if lifeline.advance():
            yield _Answer(None, "X")
        elif pid is None:
            yield _Answer(None, "new")
        else:
            state, listens = _look(pid)
            answer = _Answer(pipe if listens else None, state)
            answer.ask(pid)
            yield answer


def _look(pid: int) -> tuple[str, bool]:
    """The letter of the process's state, and whether it would show its stack if it was sent the signal."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return "X", False
    entries = dict(line.split(":", 1) for line in lines)
    state = entries["State"].split()[0]
    # Without a handler the signal would end it: the user's code may have set another, and taken it away.
    listens = int(entries["SigCgt"], 16) >> (_SIGNAL - 1) & 1
    return state, bool(listens) and state in _CAN_ANSWER


class _Answer:
    """What a worker tells of itself.

    Args:
        pipe: What its stack will come on; None if it cannot show it.
        state: The letter of its state.
    """

    def __init__(self, pipe: BinaryIO | None, state: str) -> None:
        self._pipe = pipe
        self._state = state
        self._stack = b""
        #: Whether more of it may come.
        self.is_open = pipe is not None

    def fileno(self) -> int:
        assert self._pipe is not None
        return self._pipe.fileno()

    @property
    def patience_s(self) -> float:
        """How long to wait for the next piece."""
        return _NEXT_PATIENCE_S if self._stack else _FIRST_PATIENCE_S

    def ask(self, pid: int) -> None:
        """Have the worker show its stack, if it can."""
        if self._pipe is not None:
            while self._pipe.read(_LONGEST_BYTES):  # an answer that came too late for who asked before
                pass
            with suppress(ProcessLookupError):
                os.kill(pid, _SIGNAL)

    def read(self) -> None:
        """Take what has come."""
        assert self._pipe is not None
        piece = self._pipe.read(_LONGEST_BYTES)
        self._stack += piece or b""
        self.is_open = bool(piece) and len(self._stack) < _LONGEST_BYTES

    def told(self) -> str:
        """All of it, as half a sentence and the stack's lines."""
        doing = _STATES.get(self._state, "has ended")
        if self._stack:
            return f"{doing}; its Python stack:\n{users_stacks_first(self._stack.decode(errors='replace'))}"
        if self._pipe is not None:
            return f"{doing}; it showed no Python stack within {_FIRST_PATIENCE_S:g} s"
        return f"{doing}; no Python stack can be had of it" if self._state in _STATES else doing
