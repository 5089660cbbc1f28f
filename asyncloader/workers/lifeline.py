"""What the fork server says of one worker: that it was forked, and how it ended."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable
from contextlib import suppress
from time import monotonic
from typing import BinaryIO

from ._readable import wait_readable
from ._wire import FromServer, receive_message

__all__ = ["Lifeline", "wait_ended"]


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
            RuntimeError: It could not be, or the server ended.
            TimeoutError: It was not by then.
        """
        if not wait_readable([self], deadline):
            raise TimeoutError
        self._hear(0)
        if self.pid is None:
            reason = self.failure or "the server ended"
            raise RuntimeError(f"the fork server could not start a worker: {reason}")

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
