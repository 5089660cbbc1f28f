"""The parent's end of the fork server: it starts the server, and requests workers from it.

Laws:

* One shared server per process, started when first needed and kept until the process ends, so that no later
  loader waits for its start again. A process forked from this one starts its own.
* A worker shares nothing with another: it has its own connection and its own *lifeline*. On that the server
  reports its pid and how it ended; when the parent closes it, the server kills the worker.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import random
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from itertools import product
from operator import is_
from pathlib import Path
from time import monotonic
from types import ModuleType
from typing import Any, BinaryIO

from ..flow.channel import EndOfChannel
from ..flow.process import clean_python, has_linux, occupy_standard_descriptors, patience_s
from .by_value import any_class_came, imported_modules, programs_modules
from .lifeline import Lifeline, describe_process, open_pipe
from .link import READY, MessageSocket, socketpair

# The server ends within milliseconds of being asked. A second is for a machine that swaps.
_STOP_DEADLINE_S = 1.0

_log = logging.getLogger("asyncloader.workers")

# If the package itself fails to import, the parent needs the reason too.
_PROGRAM = """
import sys
try:
    from asyncloader.workers._forkserver_main import main
except BaseException:
    import os, struct, traceback
    reason = traceback.format_exc().encode(errors="replace")[-16384:]
    os.write(int(sys.argv[1]), struct.pack("<I?", len(reason), False) + reason)
    os._exit(1)
main(int(sys.argv[1]))
"""


# The server that all loaders of this process share, by what it uses of the system; and what is held to look
# for it.
_shared: dict[bool, ForkServer] = {}
_looking = threading.Lock()

# This process's ends of connections to servers. A server ends with its parent, which it sees by the end of
# the connection: so a process that is forked from the parent closes its copies.
_controls = weakref.WeakSet[MessageSocket]()


def _forget_servers() -> None:
    """In a process that was just forked, maybe while another thread held the lock."""
    global _shared, _looking
    inherited, _shared, _looking = _shared, {}, threading.Lock()
    for control in _controls:
        control.abandon()
    _controls.clear()
    for server in inherited.values():
        server.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_servers)


class ForkServer:
    """A clean, single-threaded process which imports once what workers need, and forks them when asked.

    Constructing starts nothing; ``start`` does.
    """

    def __init__(self) -> None:
        self._owner: int | None = None
        self._lock = threading.Lock()
        self._starting = threading.Lock()
        self._preloaded: set[str] = set()
        #: What the program's own modules held when it was forked; empty for a clean process.
        self._modules: dict[str, dict[str, Any]] = {}
        self._ready = threading.Event()
        self._process: subprocess.Popen[bytes] | _Forked | None = None
        self._control: MessageSocket | None = None
        self._finalizer: weakref.finalize[..., ForkServer] | None = None

    @classmethod
    def shared(cls) -> ForkServer:
        """This process's server, started if there is none alive. It lives until the process ends.

        If the program has assigned something to a name in one of its modules since the server was forked from
        it, another one is forked, where that is still safe. If it is not, this one stays for good.

        Raises:
            RuntimeError: See ``start``.
        """
        with _looking:
            server = _shared.get(has_linux())
            if server is None or not server.alive:
                server = cls()
                server.start()
            elif server._modules and not _are_alike(server._modules, _look_at_modules()):
                newer = cls()
                server._modules = {}  # without a fork nothing of them is to be kept
                if newer.start(only_forked=True):
                    server = newer
            _shared[has_linux()] = server
            return server

    def start(self, *, only_forked: bool = False) -> bool:
        """Start the process and return, while it is still importing.

        Args:
            only_forked: Do not start a clean one; returns false where a fork is not safe.

        Raises:
            RuntimeError: The platform cannot fork, or there is no Python executable to start.
        """
        if not hasattr(os, "fork"):
            raise RuntimeError(f"worker processes need Unix, but this is {sys.platform}; use num_workers=0")
        assert self._process is None, "a fork server starts once"
        occupy_standard_descriptors()  # also for the server and its workers, which inherit them
        self._owner = os.getpid()
        ours, theirs = socketpair()
        self._control = MessageSocket(ours)
        _controls.add(self._control)
        with theirs:
            self._process = _fork_process(theirs)
            if self._process is not None:
                self._modules = _look_at_modules()
            elif only_forked:
                self._control.close()
                return False
            else:
                self._process = _start_process(theirs.fileno())
        self._finalizer = weakref.finalize(self, _end, self._process, self._control, self._owner, self._ready)
        return True

    @property
    def pid(self) -> int:
        """The server's process id."""
        assert self._process is not None, "fork server not started"
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs, was not closed, and is this process's own."""
        return (
            self._process is not None
            and self._finalizer is not None
            and self._finalizer.alive
            and self._owner == os.getpid()
            and self._process.poll() is None
        )

    def wait_ready(self, deadline: float | None = None) -> None:
        """Wait until the server has imported what it needs.

        Args:
            deadline: By ``time.monotonic()``; None, the default, waits for as long as it takes.

        Raises:
            RuntimeError: It could not; the message has its traceback.
            TimeoutError: It had not by then.
        """
        assert self._control is not None, "fork server not started"
        if not self._starting.acquire(timeout=-1 if deadline is None else max(0.0, deadline - monotonic())):
            raise TimeoutError
        try:
            if self._ready.is_set():
                return
            try:
                answer = self._control.receive_before(deadline)
            except EndOfChannel:
                answer = b""
            if answer != READY:
                reason = answer.decode(errors="replace") or "it ended without an error message"
                self.close()
                raise RuntimeError(f"the fork server could not start:\n{reason}")
            self._ready.set()
        finally:
            self._starting.release()

    def preload(self, modules: Collection[str]) -> None:
        """Have it import these before it forks the next worker. Returns at once.

        One that cannot be imported there is left to the workers: they may find it by another path, and
        report it otherwise.
        """
        with self._lock:
            missing = sorted(set(modules) - self._preloaded)
            self._preloaded.update(missing)
        if missing and self._control is not None:
            self._control.post(" ".join(missing).encode())

    def fork(
        self,
        connection: socket.socket,
        given: bytes,
        job: BinaryIO,
        deadline: float | None = None,
    ) -> Lifeline:
        """Ask for a worker that runs a stored job; ``Lifeline.wait_started`` waits for it.

        Args:
            connection: The worker's end of its connection. The caller closes it afterwards.
            given: What the worker is given, pickled; see ``_worker_main.work``.
            job: The file with the job, which the caller closes too.
            deadline: Until when the server may take to start; see ``wait_ready``.

        Raises:
            RuntimeError: The server could not start, has ended, or belongs to another process.
            TimeoutError: It had not started by the deadline.
        """
        if self._owner != os.getpid():
            raise RuntimeError("this fork server belongs to another process; use ForkServer.shared()")
        self.wait_ready(deadline)
        assert self._control is not None
        ours, theirs = socketpair()
        stack, theirs_of_stack = open_pipe()
        lifeline = Lifeline(MessageSocket(ours), stack)
        with theirs, theirs_of_stack:
            ends = (connection, theirs, theirs_of_stack, job)
            self._control.post(given, [end.fileno() for end in ends])
        if self._control.is_let_go:
            lifeline.close()
            self.close()  # so that ``alive`` is false at once: it may not be reaped yet
            raise RuntimeError(f"the fork server (pid {self.pid}) has ended")
        if not self._control.drain(deadline):
            lifeline.close()
            raise TimeoutError
        return lifeline

    def close(self) -> None:
        """End the server; it kills the workers that are left. Idempotent."""
        if self._finalizer is not None:
            self._finalizer()


def _start_process(control: int) -> subprocess.Popen[bytes]:
    # One thread each, so that numpy's and torch's pools are never started and forking is safe.
    threads = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
    command, environment = clean_python(_PROGRAM, str(control))
    environment |= threads
    # The mask is inherited: the server ignores Ctrl-C from its first instruction.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment, pass_fds=[control])
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


# Forked from this process, a server is there at once, with all that is imported here and mostly in the same
# memory. But it has everything else of this process too. So that is done only where nothing of it can be in
# use, or be seen by a job; in doubt the server is a clean process.

# Pages that this process writes to or frees later are the server's alone: at most so much, which is not far
# from what a clean server has for itself once it has imported torch.
_MOST_ANONYMOUS_KIB = 512 << 10

# Of a thread that may have been joined, and is listed a moment longer: PF_EXITING of Linux's sched.h.
_EXITING = 4

# Packages with generators of their own that do not matter: NumPy's is seeded in each worker, and sympy, which
# torch imports, tests its results by its own.
_WITH_GENERATORS = frozenset({"numpy", "sympy"})

# How far into the values of the program's own modules generators are looked for, among how many values, which
# takes milliseconds, and what holds none.
_DEPTH = 4
_MOST_VALUES = 10_000
_LEAVES = (type(None), bool, int, float, complex, str, bytes)

# Libraries that keep threads for numeric code: OpenMP's, which torch uses, and OpenBLAS, which NumPy does.
# The functions return how many threads they use, set that, and end those that wait; work starts new ones.
_POOLS = re.compile(r"/lib(gomp|iomp5|omp|openblas|scipy_openblas)[^/]*\.so[^/]*$")
_BLAS = [
    f"{package}openblas_{{}}_num_threads{bits}" for package, bits in product(("", "scipy_"), ("", "64_"))
]
_OF_POOLS = [
    ("omp_get_max_threads", "omp_set_num_threads", "omp_pause_resource_all"),
    *[(name.format("get"), name.format("set"), "blas_thread_shutdown_") for name in _BLAS],
]
_OMP_PAUSE_HARD = 2  # the one argument; OpenBLAS's function has none


class _Forked:
    """A process forked from this one, with as much of ``subprocess.Popen`` as a server's parent needs."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self.wait(os.WNOHANG)

    def wait(self, flags: int = 0) -> int | None:
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, flags)
            except ChildProcessError:  # another thread was first, or the program has all its children reaped
                pid, status = self.pid, 0
            if pid:
                self.returncode = status
        return self.returncode

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def _fork_process(theirs: socket.socket) -> _Forked | None:
    """A server forked from this process; None where that is not known to be safe."""
    if (
        not has_linux()
        or not _has_nothing_begun({theirs.fileno(), *(control.fileno() for control in _controls)})
        or _has_generators()
    ):
        return None
    from ._forkserver_main import main_forked

    with _without_other_threads() as is_alone:
        if not is_alone:
            return None
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # it may be None, or anything of the user's
                stream.flush()  # or both processes would write it
        collects = gc.isenabled()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        gc.disable()
        try:
            try:
                pid = os.fork()
            except OSError:  # too many processes, say; a clean one may be possible, and has a better error
                return None
            if pid == 0:
                try:
                    main_forked(theirs, mask)
                finally:  # no error may have this process go on with the program
                    os._exit(1)
            return _Forked(pid)
        finally:
            if collects:
                gc.enable()
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _has_nothing_begun(own: set[int]) -> bool:
    """Whether this process has no Python thread, open file, connection, device or mode that a copy of it must
    not have, and is small enough. Other threads are looked for later."""
    callers = (frame.f_code.co_filename for frame, _ in traceback.walk_stack(sys._getframe()))
    if any(file.startswith("<frozen importlib") for file in callers):
        return False  # a module is half imported, and locked
    torch = sys.modules.get("torch")
    if torch is not None:
        modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")
        devices = torch.get_default_device().type, torch.cuda.is_initialized()
        if (*modes, *devices) != (True, False, False, "cpu", False):
            return False
    if len(sys._current_frames()) > 1 or any_class_came() or sys.gettrace() or sys.getprofile():
        return False
    size = re.search(r"RssAnon:\s*(\d+) kB", Path("/proc/self/status").read_text())
    is_small = size is not None and int(size[1]) <= _MOST_ANONYMOUS_KIB
    return is_small and _open_descriptors() <= own


def _open_descriptors() -> set[int]:
    """Those that the program has opened, as far as can be seen: it was itself started with the others."""
    found = set()
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):  # it was the one that the folder was listed by
            mode = os.fstat(descriptor).st_mode
            is_passed_on = os.get_inheritable(descriptor) and (stat.S_ISFIFO(mode) or stat.S_ISCHR(mode))
            if descriptor > 2 and not is_passed_on:
                found.add(descriptor)
    return found


def _has_generators() -> bool:
    """Whether a module has a random generator of its own: each worker would draw the same."""
    kinds: tuple[type, ...] = (random.Random,)
    if (numpys := sys.modules.get("numpy.random")) is not None:
        kinds += (numpys.Generator, numpys.RandomState)
    packages = (
        held for name, _, held in imported_modules() if name.partition(".")[0] not in _WITH_GENERATORS
    )
    if any(type(value) in kinds for held in packages for value in list(held.values())):
        return True
    if (torch := sys.modules.get("torch")) is not None:
        kinds += (torch.Generator,)
    return _may_hold([value for _, held in programs_modules() for value in list(held.values())], kinds)


def _may_hold(values: list[Any], kinds: tuple[type, ...]) -> bool:
    """Whether a value is of these kinds, or has one among its attributes or items; true where they are many.

    No code of the values runs: some import more, or raise, when they are asked for their class.
    """
    seen = 0
    for _ in range(_DEPTH):
        within: list[Any] = []
        for value in values:
            kind = type(value)
            if issubclass(kind, kinds):
                return True
            if kind is dict:
                within += list(value.values())
            elif kind in (list, tuple, set, frozenset):
                within += list(value)
            elif not issubclass(kind, (*_LEAVES, ModuleType, type)):
                with suppress(AttributeError):
                    within += object.__getattribute__(value, "__dict__").values()
        values = [value for value in within if type(value) not in _LEAVES]
        seen += len(values)
        if seen > _MOST_VALUES:
            return True
    return False


def _look_at_modules() -> dict[str, dict[str, Any]]:
    """What the program's own modules hold now."""
    return {
        name: {key: value for key, value in list(held.items()) if not key.startswith("__")}
        for name, held in programs_modules()
    }


def _are_alike(before: dict[str, dict[str, Any]], now: dict[str, dict[str, Any]]) -> bool:
    """Whether all names of all modules refer to the same objects; a module that is new is of no account."""
    return all(
        name in now and held.keys() == now[name].keys() and all(map(is_, held.values(), now[name].values()))
        for name, held in before.items()
    )


@contextmanager
def _without_other_threads() -> Iterator[bool]:
    """End the idle threads of numeric libraries, which use one within the block, as workers do; whether this
    thread is then the only one."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    paths = {line.split(maxsplit=5)[5] for line in maps if _POOLS.search(line)}
    sizes: list[tuple[Callable[[int], object], int]] = []
    for path, names in product(paths, _OF_POOLS):
        library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD)
        if all(hasattr(library, name) for name in names):
            get_size, set_size, end = (getattr(library, name) for name in names)
            sizes.append((set_size, get_size()))
            set_size(1)
            end(_OMP_PAUSE_HARD)
    try:
        yield sum(map(_lives, os.listdir("/proc/self/task"))) == 1
    finally:
        for set_size, size in sizes:
            set_size(size)


def _lives(thread: str) -> bool:
    with suppress(OSError):  # it has ended
        fields = Path(f"/proc/self/task/{thread}/stat").read_text().rpartition(")")[2].split()
        return not int(fields[6]) & _EXITING
    return False


def _end(
    process: subprocess.Popen[bytes] | _Forked, control: MessageSocket, owner: int, ready: threading.Event
) -> None:
    if os.getpid() != owner:
        # A forked process leaves the server to its owner.
        process.returncode = 0
        return
    # This works across such copies. Reading then ends when the server does, and not before.
    control.let_go(socket.SHUT_WR)
    # While it still imports it does not listen, but neither does it have workers to kill.
    if not ready.is_set():
        process.kill()
    else:
        try:
            # It posts one message, READY, which has come: what is read now is its end.
            control.receive_before(monotonic() + patience_s(_STOP_DEADLINE_S, at_exit=0.5))
        except EndOfChannel:
            pass
        except TimeoutError:
            what = describe_process(process.pid)
            _log.warning("the process that workers come from (pid %d) %s; it was killed", process.pid, what)
            process.kill()
    control.close()
    process.wait()
