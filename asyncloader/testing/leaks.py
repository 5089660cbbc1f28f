"""A check that a block of code leaves nothing behind: threads, tasks, processes, descriptors, memory.

It finds Python threads; tasks of the running event loop; on Linux also child processes, file descriptors,
mappings of shared memory, and names in /dev/shm that this process or a child of it holds. Other programs on
the machine are not examined, so a name in /dev/shm that no process holds any more is not found: its owner is
unknown. Threads of native code (of BLAS or a Rust runtime) are not found either: such pools stay by design.

The check repeats until nothing is left or the time is up: closing a descriptor gives no event to wait for.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import re
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from multiprocessing import resource_tracker
from pathlib import Path
from textwrap import shorten
from typing import Any, TypeAlias

# What a process holds, by Linux's /proc; elsewhere everything here is empty. Each function accepts that
# things vanish while they are read.

_PROC = Path("/proc")
_MAPPING = re.compile(r"\S+ \S+ \S+ \S+ (\d+) +(/memfd:.*|/dev/shm/.*)")
_DELETED = " (deleted)"


def descendants(pid: int) -> set[int]:
    """Children, their children and so on, as far as their parents are alive."""
    found: set[int] = set()
    for task in _entries(_PROC / str(pid) / "task"):
        for child in _read(task / "children").split():
            found |= {int(child), *descendants(int(child))}
    return found


def marked(variable: str) -> set[int]:
    """Processes of this user that were started with this environment variable, including orphans."""
    needle = f"{variable}=".encode()
    found: set[int] = set()
    for entry in _entries(_PROC):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environ = (entry / "environ").read_bytes()
        except OSError:
            continue
        if needle in environ:
            found.add(int(entry.name))
    return found


def open_files(process: str = "self") -> dict[int, str]:
    """File descriptors of a process and what they point to, such as ``socket:[4711]``."""
    found: dict[int, str] = {}
    for entry in _entries(_PROC / process / "fd"):
        try:
            found[int(entry.name)] = os.readlink(entry)
        except OSError:
            # Such as the descriptor that listed the folder.
            continue
    return found


def named_memory(processes: Iterable[int]) -> set[str]:
    """Paths in /dev/shm that this process or one of ``processes`` has mapped or open.

    By process, since /dev/shm itself lists the names of every program on the machine.
    """
    found: set[str] = set()
    for process in ("self", *map(str, processes)):
        mapped = {mapping.partition(" ")[2] for mapping in shared_mappings(process)}
        held = mapped | set(open_files(process).values())
        found |= {path for path in held if path.startswith("/dev/shm/") and not path.endswith(_DELETED)}
    return found


def shared_mappings(process: str = "self") -> list[str]:
    """Mappings of memfds and of /dev/shm in a process, as ``INODE NAME``, one entry each."""
    matches = (_MAPPING.fullmatch(line) for line in _read(_PROC / process / "maps").splitlines())
    return [f"{match[1]} {match[2]}" for match in matches if match]


def _entries(folder: Path) -> Iterator[Path]:
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        yield folder / name


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


_Task: TypeAlias = asyncio.Task[Any]
# The wait between two checks, each of which takes milliseconds.
_LOOK_S = 0.02
_numbers = itertools.count()


def check_leaks(*, within_s: float = 1.0, allow: Callable[[str], bool] | None = None) -> LeakCheck:
    """Assert at the end of a ``with`` or ``async with`` block that it has left nothing behind.

    It looks for threads and tasks, and on Linux also for processes, file descriptors and shared memory. In a
    running event loop use ``async with``: the loop then runs while the check waits, so that tasks and
    transports can finish. A plain ``with`` blocks the loop. If the block raises, nothing is checked, since
    the traceback of an exception keeps objects alive.

    Args:
        within_s: The most seconds to wait after the block until everything is gone.
        allow: A function that gets the description of something left, such as ``thread 'worker-0'``, and
            returns whether it may stay. Two processes always may, since they stay until this process ends:
            the resource tracker of ``multiprocessing``, and the one that workers are forked from.

    Returns:
        A context manager, for one use.

    Raises:
        AssertionError: At the end of the block, something is left; the message lists it by name.
    """
    return LeakCheck(within_s, allow or (lambda _: False))


class LeakCheck:
    """See :func:`check_leaks`."""

    def __init__(self, within_s: float, allow: Callable[[str], bool]) -> None:
        self._within_s = within_s
        self._allow = allow
        # Inherited by every process started in the block, so that orphans are found too.
        self._marker = f"ASYNCLOADER_LEAK_CHECK_{os.getpid()}_{next(_numbers)}"

    def __enter__(self) -> LeakCheck:
        # Garbage of earlier code that is collected later would hide what this block leaks.
        gc.collect()
        _open_first_uvloop()
        # Weak references, so that the check does not keep alive what the block should free.
        self._threads = weakref.WeakSet(threading.enumerate())
        self._tasks = weakref.WeakSet(_running_tasks())
        self._processes = descendants(os.getpid())
        self._files = open_files()
        self._mappings = Counter(shared_mappings())
        self._names = named_memory(self._processes)
        os.environ[self._marker] = "1"
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        for wait_s in self._looks(error):
            time.sleep(wait_s)

    async def __aenter__(self) -> LeakCheck:
        return self.__enter__()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        for wait_s in self._looks(error):
            await asyncio.sleep(wait_s)

    def _looks(self, error: BaseException | None) -> Iterator[float]:
        """How long to wait before the next check, while something is left; raises if it stays."""
        os.environ.pop(self._marker, None)
        if error is not None:
            return
        deadline = time.monotonic() + self._within_s
        while (left := self._left()) and (remaining_s := deadline - time.monotonic()) > 0:
            yield min(remaining_s, _LOOK_S)
            gc.collect()
        if left:
            listed = "\n".join(f"  {description}" for description in left)
            raise AssertionError(f"left behind {self._within_s:g} s after the block:\n{listed}")

    def _left(self) -> list[str]:
        """Descriptions of what is there now, was not at the start, and is not allowed."""
        pids, descriptors = _kept_for_good()
        processes = descendants(os.getpid()) | marked(self._marker)
        found = [
            *map(_describe_thread, set(threading.enumerate()) - set(self._threads)),
            *map(_describe_task, _running_tasks() - set(self._tasks)),
            *map(_describe_process, processes - self._processes - pids),
            *self._new_files(descriptors),
            *self._new_memory(processes),
        ]
        return [description for description in found if not self._allow(description)]

    def _new_files(self, allowed: Collection[int | None]) -> list[str]:
        """New descriptors of the kinds that have become more.

        Counted by kind: a log file that was reopened meanwhile is new, but no leak.
        """
        # uvloop opens /dev/null at its first socket, as a reserve for when descriptors run out, and keeps it
        # until the loop is closed: while a loop runs, the block does not own it.
        spare = "/dev/null" if asyncio._get_running_loop() else None
        files = {fd: target for fd, target in open_files().items() if target != spare}
        stays = {(fd, target) for fd, target in files.items() if fd in allowed}
        now = dict(files.items() - stays)
        before = Counter(_file_kind(target) for _, target in self._files.items() - stays)
        grown = Counter(map(_file_kind, now.values())) - before
        return [
            f"file descriptor {fd} ({_file_kind(target)}): {target}"
            for fd, target in now.items()
            if _file_kind(target) in grown and self._files.get(fd) != target
        ]

    def _new_memory(self, processes: Iterable[int]) -> list[str]:
        mappings = Counter(shared_mappings()) - self._mappings
        names = named_memory(processes) - self._names
        return [
            *(f"shared mapping of inode {mapping}" for mapping in mappings.elements()),
            *(f"shared memory {entry}" for entry in sorted(names)),
        ]


def _kept_for_good() -> tuple[set[int | None], set[int | None]]:
    """Pids and descriptors of what stays until this process ends, once it was started."""
    tracker = getattr(resource_tracker, "_resource_tracker", None)
    servers = getattr(sys.modules.get("asyncloader.workers.forkserver"), "_shared", {}).values()
    pids = {getattr(tracker, "_pid", None), *(server.pid for server in servers)}
    return pids, {getattr(tracker, "_fd", None), *(server._control.fileno() for server in servers)}


def _running_tasks() -> set[_Task]:
    """The other tasks of the event loop that runs in this thread; none without one."""
    try:
        return asyncio.all_tasks() - {asyncio.current_task()}
    except RuntimeError:
        return set()


def _describe_process(pid: int) -> str:
    """``child process PID (STATE): BEGINNING OF COMMAND``; a zombie has ended and was not waited for."""
    folder = _PROC / str(pid)
    # A zombie has no command line, but still a name. Its state comes behind that, which may contain anything.
    command = _read(folder / "cmdline").replace("\0", " ").strip() or _read(folder / "comm").strip()
    state = "zombie" if _read(folder / "stat").rpartition(")")[2].startswith(" Z") else "running"
    return f"child process {pid} ({state}): {shorten(command, 120, placeholder=' ...')}"


def _describe_thread(thread: threading.Thread) -> str:
    return f"thread {thread.name!r}" + (" (daemon)" if thread.daemon else "")


def _describe_task(task: _Task) -> str:
    return f"task {task.get_name()!r}: {task.get_coro()!r}"


def _file_kind(target: str) -> str:
    """``socket``, ``pipe``, ``memfd``, ``eventpoll``, ``eventfd``, ``pidfd`` and so on, or ``file``."""
    if target.startswith("/memfd:"):
        return "memfd"
    match = re.match(r"(?:anon_inode:)?\[?(\w+)[\]:]", target)
    return match[1] if match else "file"


def _open_first_uvloop() -> None:
    """Open the pipe that libuv makes with a process's first loop, and keeps, before the block."""
    try:
        import uvloop
    except ImportError:
        return
    uvloop.new_event_loop().close()
