"""What the fork server reports of one worker: that it was forked, and how it ended."""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import BinaryIO

from ..errors import WorkerDiedError, users_stacks
from ..flow.channel import EndOfChannel
from ..flow.process import has_linux
from .link import FromServer, MessageSocket, wait_readable


class Lifeline:
    """What the server reports of one worker. Safe from any thread; only ``wait_started`` blocks.

    Args:
        end: The server has the other end.
        stack: What the worker writes its stack to on request.
    """

    def __init__(self, end: MessageSocket, stack: BinaryIO) -> None:
        self._end = end
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
        while self.pid is None and not self.ended:
            if not self._hear() and not wait_readable([self], deadline):
                raise TimeoutError
        if self.pid is None and self.failure is None:
            raise WorkerDiedError("the process that workers are forked from was killed while it started one")
        if self.pid is None:
            raise RuntimeError(f"the fork server could not start a worker: {self.failure}")

    def give_up(self) -> None:
        """Stop waiting for a worker that is not forked yet; once it is, the server kills it."""
        if self.pid is None:
            self.ended = True

    def advance(self) -> bool:
        """Read what has come; returns whether the worker has ended."""
        while not self.ended and self._hear():
            pass
        return self.ended

    def kill(self) -> None:
        """Have the server kill the worker, and report its end as usual."""
        self._end.let_go(socket.SHUT_WR)

    def close(self) -> None:
        """Release the worker: if it still lives, it is killed."""
        self._end.close()
        self.stack.close()

    def abandon(self) -> None:
        """In a forked process: close the copies."""
        self._end.abandon()
        self.stack.close()

    def _hear(self) -> bool:
        """Read one message; False if none has come."""
        with self._lock:
            try:
                message = bytes(self._end.receive()[0])
            except BlockingIOError:
                return False
            except (EndOfChannel, OSError):
                self.ended = True  # reported before, or the server was killed and the worker with it
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


# What a worker does while its consumer waits: the state of its process, and its Python stack.
#
# On a signal that other programs do not use, faulthandler writes the worker's stack to a pipe of its
# parent's. That runs in C, whatever holds the interpreter, and costs nothing until it is requested.


def _stack_signal() -> int:
    # Programs and tools count real-time signals from either end, and seldom get this far. Without /proc it is
    # not known who handles a signal, and the other one does nothing to who does not.
    return int(signal.SIGRTMAX) - 7 if has_linux() else int(signal.SIGURG)


# It takes a millisecond. A second is for a machine that swaps.
_FIRST_PATIENCE_S = 1.0

# Nothing marks the end of a stack, but it is written at once.
_NEXT_PATIENCE_S = 0.1

# More than a person reads. A pipe holds at most 64 KiB: a worker does not wait for room, and truncates.
_LONGEST_BYTES = 16 << 10

# By the letter in /proc.
_STATES = {
    "new": "is being started",
    "?": "is running, or waits for something",
    "R": "is running",
    "S": "is sleeping, or waits for something",
    "D": "waits in the kernel, for a disk or for memory that was swapped out",
    "T": "is stopped (the signal SIGCONT has it go on)",
    "t": "is stopped by a debugger",
}
_ENDED = "has ended"
_CAN_ANSWER = "RS?"


def describe_process(pid: int) -> str:
    """How a process is, in half a sentence such as ``"is running"``."""
    return _STATES.get(_look(pid)[0], _ENDED)


def open_pipe() -> tuple[BinaryIO, BinaryIO]:
    """The parent's end and the worker's of what a stack is written to; neither ever blocks."""
    ours, theirs = os.pipe()
    for end in (ours, theirs):
        os.set_blocking(end, False)
    return open(ours, "rb", buffering=0), open(theirs, "wb", buffering=0)


def show_stack_on_signal(pipe: int) -> None:
    """In a worker: write the stacks of all threads to ``pipe`` when the parent asks for them."""
    faulthandler.register(_stack_signal(), file=pipe, all_threads=True, chain=False)


def observe(lifeline: Lifeline) -> str:
    """The state of a worker's process, and its Python stack if available. Takes two seconds at most.

    Returns:
        Half a sentence, such as ``"is running; its Python stack:"``, and the stack's lines.
    """
    if lifeline.stack.closed:
        return _ENDED
    # A descriptor of our own: another thread may close the worker, and its descriptor, meanwhile.
    with open(os.dup(lifeline.stack.fileno()), "rb", buffering=0) as pipe:
        pid = lifeline.pid
        if lifeline.advance():
            return _ENDED
        state, can_answer = ("new", False) if pid is None else _look(pid)
        if state not in _STATES:
            return _ENDED
        if pid is None or not can_answer:
            return f"{_STATES[state]}; its Python stack is not available"
        stack = _request_stack(pid, pipe)
    if not stack:
        return f"{_STATES[state]}; it showed no Python stack within {_FIRST_PATIENCE_S:g} s"
    return f"{_STATES[state]}; its Python stack:\n{users_stacks(stack.decode(errors='replace'))}"


def _request_stack(pid: int, pipe: BinaryIO) -> bytes:
    """What a worker writes when it is signalled, as far as it comes in time."""
    while pipe.read(_LONGEST_BYTES):  # an answer that came too late for the previous request
        pass
    with suppress(ProcessLookupError):
        os.kill(pid, _stack_signal())
    stack = b""
    while len(stack) < _LONGEST_BYTES:
        if not wait_readable([pipe], monotonic() + (_NEXT_PATIENCE_S if stack else _FIRST_PATIENCE_S)):
            break
        piece = pipe.read(_LONGEST_BYTES)
        if not piece:
            break
        stack += piece
    return stack


def _look(pid: int) -> tuple[str, bool]:
    """The letter of the process's state, and whether it would show its stack if it was sent the signal."""
    if not has_linux():
        return "?", True
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return "X", False
    entries = dict(line.split(":", 1) for line in lines)
    state = entries["State"].split()[0]
    # Without a handler the signal would kill it: the user's code may have replaced ours, and removed its own.
    listens = int(entries["SigCgt"], 16) >> (_stack_signal() - 1) & 1
    return state, bool(listens) and state in _CAN_ANSWER
