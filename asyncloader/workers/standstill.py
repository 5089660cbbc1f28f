"""What a worker is doing that lets its consumer wait: the state of its process, and its Python stack.

A worker has faulthandler write its stack to a pipe of its parent's, on a signal that nobody else uses. That
runs in C, whatever holds the interpreter, and costs nothing until somebody asks.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import BinaryIO

from ..tracebacks import users_stacks_first
from ._readable import wait_readable, wait_readable_async
from .lifeline import Lifeline

__all__ = ["describe_process", "observe", "observe_async", "open_pipe", "show_stack_on_signal"]

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
