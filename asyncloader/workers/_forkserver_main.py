"""The fork server's program: a process that has imported what workers need, and forks one when asked.

Laws:

* One thread, always: a fork copies the locks of every other thread in whatever state they are.
* It never runs the user's code, neither the main module nor a job; its children do that.
* It sleeps until a descriptor wakes it: a request, a worker's lifeline, a child's end, the parent's end.
* It does not outlive its parent: when that ends, however it ends, the workers are killed and reaped at once.
  When it is itself killed, so are the workers.
"""

from __future__ import annotations

import gc
import importlib
import logging
import os
import selectors
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import Context
from types import ModuleType
from typing import Any, NoReturn

from ..flow.channel import EndOfChannel
from ..flow.process import has_linux
from ._worker_main import THREADS, work
from .link import READY, FromServer, MessageSocket
from .slots import name_process


def main(control_descriptor: int) -> NoReturn:
    """Serve fork requests until the parent has closed its end, or has ended."""
    # The terminal sends Ctrl-C to the whole group; the parent decides what happens to the workers. It started
    # this process with the signal blocked, so that it cannot arrive before this line.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    os.set_inheritable(control_descriptor, False)
    control = MessageSocket(socket.socket(fileno=control_descriptor))
    _serve(control, gc.collect)


def main_forked(control: socket.socket, mask: set[int | signal.Signals]) -> NoReturn:
    """The same in a process that its parent has just forked from itself.

    Args:
        control: This end of the control socket.
        mask: Signals that the parent blocks; all are blocked now.
    """
    # First: to collect what the program holds would run its finalizers. For the same reason nothing of it is
    # freed here.
    gc.freeze()
    kept: list[object] = [*gc.callbacks, sys.stdin, sys.stdout, sys.stderr, *logging.root.handlers]
    gc.callbacks.clear()
    gc.enable()

    def forget() -> None:
        """Be as a process is that was started anew."""
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for descriptor in map(int, os.listdir("/proc/self/fd")):
            if descriptor > 2 and descriptor != control.fileno():
                with suppress(OSError):  # it was the one that the folder was listed by
                    os.close(descriptor)
        sys.stdin, sys.stdout, sys.stderr = os.fdopen(0, closefd=False), sys.__stdout__, sys.__stderr__
        for number in signal.valid_signals():
            if signal.getsignal(number) not in (signal.SIG_DFL, signal.SIG_IGN):
                kept.append(signal.signal(number, signal.SIG_DFL))
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask - {signal.SIGINT})
        kept.extend(sys.modules.pop(name, None) for name in ("__main__", "__mp_main__"))
        sys.modules["__main__"] = ModuleType("__main__")
        logging.root.handlers.clear()
        os.environ.update(dict.fromkeys(THREADS, "1"))
        name_process("al-forkserver")

    # In a context of its own: that of the program's thread has what it has set there.
    Context().run(_serve, MessageSocket(control), forget)


def _serve(control: MessageSocket, prepare: Callable[[], object]) -> NoReturn:
    try:
        prepare()
        gc.freeze()  # what is here stays; workers' collections must not write to, and so copy, these pages
        server = _Server(control)
    except BaseException:
        control.post(traceback.format_exc().encode(errors="replace"))
        control.drain()
        os._exit(1)
    control.post(READY)
    try:
        server.serve()
    finally:
        server.kill_all()
    os._exit(0)


class _Server:
    def __init__(self, control: MessageSocket) -> None:
        self._control = control
        self._lifelines: dict[int, MessageSocket] = {}
        self._serving = True
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        #: A pipe that ends with this process, for its workers, where the kernel does not kill them.
        self._life = None if has_linux() else os.pipe()
        self._selector.register(self._control, selectors.EVENT_READ, self._answer)
        self._selector.register(self._woken, selectors.EVENT_READ, self._reap)

    def serve(self) -> None:
        while self._serving:
            for key, _ in self._selector.select():
                key.data()

    def kill_all(self) -> None:
        for pid in self._lifelines:
            os.kill(pid, signal.SIGKILL)
        while self._lifelines:
            self._bury(*os.waitpid(-1, 0))

    def _answer(self) -> None:
        while True:
            try:
                message, descriptors = self._control.receive()
            except BlockingIOError:
                return
            except EndOfChannel:
                self._serving = False
                return
            if descriptors:
                self._answer_fork(bytes(message), *descriptors)
            else:
                _preload(bytes(message).decode().split())

    def _answer_fork(self, given: bytes, *descriptors: int) -> None:
        connection = socket.socket(fileno=descriptors[0])
        lifeline = MessageSocket(socket.socket(fileno=descriptors[1]))
        try:
            self._fork(connection, lifeline, given, *descriptors[2:])
        except Exception as error:
            _tell(lifeline, FromServer.FAILED, str(error).encode())
            lifeline.close()
        finally:
            connection.close()
            for descriptor in descriptors[2:]:
                os.close(descriptor)

    def _fork(self, connection: socket.socket, lifeline: MessageSocket, *given: Any) -> None:
        threads = len(os.listdir("/proc/self/task")) if has_linux() else threading.active_count()
        if threads != 1:
            raise RuntimeError(f"it has {threads} threads, started by a library that it imports")
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_worker(connection, lifeline, server, *given)
        self._lifelines[pid] = lifeline
        # The parent sends nothing on a lifeline: if it becomes readable, the parent has closed it.
        self._selector.register(lifeline, selectors.EVENT_READ, lambda: self._cut(pid, lifeline))
        _tell(lifeline, FromServer.PID, b"%d" % pid)

    def _become_worker(
        self, connection: socket.socket, lifeline: MessageSocket, server: int, *given: Any
    ) -> NoReturn:
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            # A worker that kept another's descriptors would hold them open after the other's death.
            ends: list[socket.socket | MessageSocket] = [self._woken, self._waker, self._control, lifeline]
            for end in (*ends, *self._lifelines.values()):
                end.close()
            life = None
            if self._life is not None:
                life, alive = self._life
                os.close(alive)
            self._selector.close()
            work(connection, server, life, *given)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)

    def _cut(self, pid: int, lifeline: MessageSocket) -> None:
        # In the table means not yet reaped: only then is the pid certain to be the worker's.
        if self._lifelines.get(pid) is lifeline:
            self._selector.unregister(lifeline)
            os.kill(pid, signal.SIGKILL)

    def _reap(self) -> None:
        self._woken.recv(4096)
        while self._lifelines:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            self._bury(pid, status)

    def _bury(self, pid: int, status: int) -> None:
        lifeline = self._lifelines.pop(pid)
        if lifeline in self._selector.get_map():
            self._selector.unregister(lifeline)
        _tell(lifeline, FromServer.EXIT, b"%d" % os.waitstatus_to_exitcode(status))
        lifeline.close()


def _preload(modules: Sequence[str]) -> None:
    """Import once what each worker would import otherwise. Importing obstore before a fork is safe: only its
    clients start threads."""
    for name in modules:
        with suppress(Exception):  # the workers will raise it
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # see above


def _tell(lifeline: MessageSocket, kind: FromServer, text: bytes) -> None:
    lifeline.post(bytes([kind]) + text)
