"""Another Python that starts clean: none of this process's threads and locks, and not its main module."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path

# Where the program is handed over: in the command it would be what `ps` shows, in the line of every worker.
_VARIABLE = "ASYNCLOADER_PROGRAM"


def clean_python(program: str, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """The command that runs ``program`` in a new process of this Python, with this process's import path.

    Args:
        program: Its text.
        arguments: The program has them in ``sys.argv[1:]``. Everybody on the machine can read them: no secret
            goes there.

    Returns:
        The command, and the environment that it needs, which is this process's and the program. The child
        takes that out again.

    Raises:
        RuntimeError: Python is embedded in another program, and cannot be started.
    """
    if not sys.executable:
        raise RuntimeError(
            "a process of its own was to be started, which needs sys.executable, but this embedded Python "
            "has none: load with num_workers=0, and name each shard instead of prefixes and globs"
        )
    # The path comes first: with it the child finds what this process would find.
    program = f"import sys\nsys.path[:] = {import_path()!a}\n{program}"
    # -P: without it the current directory comes first until the path is set, and a random.py there would be
    # imported.
    command = [sys.executable, "-P", "-c", f"import os; exec(os.environ.pop('{_VARIABLE}'))", *arguments]
    return command, {**os.environ, _VARIABLE: program}


def import_path() -> list[str]:
    """``sys.path`` as another process can use it."""
    # An empty entry is the current directory; other objects are ignored by import as well.
    return [entry or os.getcwd() for entry in sys.path if isinstance(entry, str)]


# Keeps descriptors 0, 1 and 2 what everybody takes them for: standard input, output and error.


def occupy_standard_descriptors() -> None:
    """Open ``os.devnull`` in the place of those that are closed, for the rest of the process's life.

    Called before anything of ours opens a descriptor that lives on. In a process that was started with
    one of the three closed, as services are, a socket would get its number: uvloop aborts the process
    when it closes such a one, and what C code prints to standard error would go to the other end, or
    into a shard. They stay open, and inheritable as the three always are, since to give the numbers back
    would hand them to the next file. What Python knows as ``sys.stdin``, ``sys.stdout`` and ``sys.stderr``
    stays as it was. Where all three are open nothing changes, at the cost of one system call or two.
    """
    # The system gives the lowest number that is free.
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


# The processors of this process: how many there are, and how long it has waited for one.


def usable_processors() -> int:
    """Those that this process may use, of which a container or a batch system may leave it a few."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def read_delay_s(thread: int) -> float:
    """How long a thread of this process was ready to run and had no processor.

    Args:
        thread: The system's number of it.

    Returns:
        Seconds since it was started; 0 where the system does not count them, or the thread has ended.
    """
    try:
        descriptor = os.open(f"/proc/self/task/{thread}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0.0
    try:
        return parse_run_delay(os.read(descriptor, 100).decode())
    except OSError:
        return 0.0
    finally:
        os.close(descriptor)


def read_throttled_s() -> float:
    """How long the container's quota has kept its processes from running; 0 where there is no quota."""
    path = _cpu_stat()
    try:
        return 0.0 if path is None else parse_throttled(path.read_text())
    except OSError:
        return 0.0


def parse_run_delay(schedstat: str) -> float:
    """Seconds of the second number in a thread's ``schedstat``: see sched-stats.rst of Linux."""
    fields = schedstat.split()
    return int(fields[1]) / 1e9 if len(fields) == 3 and fields[1].isdecimal() else 0.0


def parse_throttled(cpu_stat: str) -> float:
    """Seconds that a group's ``cpu.stat`` says it was throttled, of version 1 or 2 of control groups."""
    for line in cpu_stat.splitlines():
        name, _, value = line.partition(" ")
        unit = {"throttled_usec": 1e6, "throttled_time": 1e9}.get(name)
        if unit is not None and value.strip().isdecimal():
            return int(value) / unit
    return 0.0


def cpu_stat_paths(cgroup: str) -> Iterable[str]:
    """Where the ``cpu.stat`` of a process may be, by its ``/proc/self/cgroup``, the likeliest first.

    In a container the group's own folder is often mounted in place of the root.
    """
    for line in cgroup.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"]
        elif "cpu" in controllers.split(","):
            roots = ["/sys/fs/cgroup/cpu", f"/sys/fs/cgroup/{controllers}"]
        else:
            continue
        for root in roots:
            yield f"{root}{path.rstrip('/')}/cpu.stat"
            yield f"{root}/cpu.stat"


@cache
def _cpu_stat() -> Path | None:
    """The file, which stays the same for the life of a process, if a quota may be counted there."""
    try:
        paths = cpu_stat_paths(Path("/proc/self/cgroup").read_text())
        for path in map(Path, paths):
            if path.is_file() and "nr_throttled" in path.read_text():
                return path
    except OSError:
        pass
    return None


# What the C allocator is told, so that freed buffers are used again instead of faulted in anew.
#
# It acts on the user's whole process: on other libraries, and for as long as the process lives. So there is
# as little of it as pays, and what the user has set in the environment stays as it is.

# The largest block that glibc still learns from (DEFAULT_MMAP_THRESHOLD_MAX is 32 MiB on 64-bit machines).
_LESSON_BYTES = 31 << 20

_M_ARENA_MAX = -8  # malloc.h


@cache
def keep_freed_pages() -> None:
    """Teach glibc to keep the pages of freed buffers, as it learns from any program that frees a large one.

    By default it takes every buffer of 128 KiB from the kernel and gives it back at once, so that each
    chunk and each sample starts on fresh zeroed pages: measured here, 0.26 s of a CPU for each GB. When a
    mapped block is freed, glibc raises its thresholds to that block's size (malloc(3) and mallopt(3),
    M_MMAP_THRESHOLD): so we map one and free it, untouched. Unlike mallopt, this leaves alone whatever the
    user has set. Elsewhere than on glibc it does nothing.

    Once in a process: a second block would come from the heap, as was learnt, and be zeroed there, which took
    each pass 9 ms and the process 31 MiB.
    """
    bytes(_LESSON_BYTES)


def share_arenas() -> None:
    """Have the threads to come allocate from as many arenas as there are processors, not eight times as many.

    Each arena keeps freed pages of its own, by the lesson above up to 62 MiB, and each thread has an arena
    until there are so many: on threads that make samples of megabytes, hundreds of megabytes lay free while
    others were taken from the kernel. No more threads than there are processors run at a time, so that more
    arenas hardly save them a wait. Smaller thresholds would bound this as well, but cost a decoder of images
    a tenth more of the processor's time in page faults. It cannot be taken back (glibc fixes the number when
    it first counts), so this is for passes whose functions run on threads, and not where
    ``MALLOC_ARENA_MAX`` or ``GLIBC_TUNABLES`` says what the user wants. Elsewhere than on glibc it does
    nothing.
    """
    if "MALLOC_ARENA_MAX" in os.environ or "arena_max" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    with suppress(AttributeError):  # musl has no such knob
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, max(2, usable_processors()))
