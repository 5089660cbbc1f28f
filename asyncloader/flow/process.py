"""Clean child processes, standard descriptors, processors and the allocator of this process.

A clean child is another Python without this process's threads, locks and main module.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
import threading
from contextlib import suppress
from functools import cache
from pathlib import Path

# The variable with the program: in the command, `ps` would show it for every worker.
_VARIABLE = "ASYNCLOADER_PROGRAM"


def has_linux() -> bool:
    """Whether to use what only Linux has: memfd, pidfd, prctl, inotify, ``/proc``.

    With ``ASYNCLOADER_PORTABLE`` in the environment Linux does without, so that tests there run what other
    systems do.
    """
    return sys.platform == "linux" and not os.environ.get("ASYNCLOADER_PORTABLE")


def patience_s(usual_s: float, at_exit: float = 1.0) -> float:
    """How long closing waits for something that should end: less when the interpreter exits.

    Args:
        usual_s: Seconds while the program goes on, which the end of a function or a file system may take.
        at_exit: The most when nothing is left to be done but to end the process.
    """
    return usual_s if threading.main_thread().is_alive() else min(usual_s, at_exit)


def clean_python(program: str, *arguments: str) -> tuple[list[str], dict[str, str]]:
    """The command that runs ``program`` in a new process of this Python, with this process's import path.

    Args:
        program: Its text.
        arguments: The program has them in ``sys.argv[1:]``. All users of the machine can read them, so they
            must contain no secret.

    Returns:
        The command, and its environment, which is that of this process with the program. The child removes
        the program from it.

    Raises:
        RuntimeError: Python is embedded in another program, and cannot be started.
    """
    if not sys.executable:
        raise RuntimeError(
            "starting a process needs sys.executable, but this embedded Python has none: load with "
            "num_workers=0, and name each shard instead of prefixes and globs"
        )
    # The path comes first, so that the child finds what this process would find.
    program = f"import sys\nsys.path[:] = {import_path()!a}\n{program}"
    # -P: without it the current directory comes first until the path is set, and a random.py there would be
    # imported.
    command = [sys.executable, "-P", "-c", f"import os; exec(os.environ.pop('{_VARIABLE}'))", *arguments]
    return command, {**os.environ, _VARIABLE: program}


def import_path() -> list[str]:
    """``sys.path`` as another process can use it."""
    # An empty entry is the current directory; import ignores other objects too.
    return [entry or os.getcwd() for entry in sys.path if isinstance(entry, str)]


def occupy_standard_descriptors() -> None:
    """Open ``os.devnull`` as standard input, output or error if these are closed, until the process ends.

    Called before the library opens any lasting descriptor. In a process that was started with one of the
    three closed, as some services are, a socket would get its number: uvloop aborts the process when it
    closes such a socket, and what C code prints to standard error would go into a connection or a shard. They
    stay open, since the next file would get a freed number, and inheritable, as the three always are.
    ``sys.stdin``, ``sys.stdout`` and ``sys.stderr`` stay as they were. If all three are open, this costs two
    system calls.
    """
    # The system returns the lowest free number.
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


def usable_processors() -> int:
    """How many this process may use; a container or a batch system may allow only a few."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def read_delay_s(thread: int) -> float:
    """How long a thread of this process was ready to run and had no processor.

    Args:
        thread: The system's id of it.

    Returns:
        Seconds since its start; 0 if the system does not count them, or the thread has ended.
    """
    with suppress(OSError), open(f"/proc/self/task/{thread}/schedstat") as counts:
        return parse_run_delay(counts.read())
    return 0.0


def read_throttled_s() -> float:
    """How long the container's quota has kept its processes from running; 0 without a quota."""
    with suppress(OSError):
        if (path := _cpu_stat()) is not None:
            return parse_throttled(path.read_text())
    return 0.0


def parse_run_delay(schedstat: str) -> float:
    """Seconds of the second number in a thread's ``schedstat``: see sched-stats.rst of Linux."""
    fields = schedstat.split()
    return int(fields[1]) / 1e9 if len(fields) == 3 and fields[1].isdecimal() else 0.0


def parse_throttled(cpu_stat: str) -> float:
    """Seconds that a group was throttled by its ``cpu.stat``, of version 2 of control groups."""
    found = re.search(r"^throttled_usec (\d+)$", cpu_stat, re.MULTILINE)
    return int(found[1]) / 1e6 if found else 0.0


def cpu_stat_paths(cgroup: str) -> list[str]:
    """The possible paths of a process's ``cpu.stat``, by its ``/proc/self/cgroup``, the likeliest first.

    In a container the group's own folder is often mounted in place of the root.
    """
    found = re.search(r"^0::(.*)$", cgroup, re.MULTILINE)
    folders = [found[1].rstrip("/"), ""] if found else []
    return [f"/sys/fs/cgroup{folder}/cpu.stat" for folder in folders]


@cache
def _cpu_stat() -> Path | None:
    """The file, which does not change during the life of a process, if it can count a quota."""
    with suppress(OSError):
        for path in map(Path, cpu_stat_paths(Path("/proc/self/cgroup").read_text())):
            if path.is_file() and "nr_throttled" in path.read_text():
                return path
    return None


# Settings of the C allocator, so that freed buffers are used again without new page faults. They affect the
# whole process, other libraries included, until it ends. So there are only those that pay, and settings of
# the user in the environment are kept.

# The largest block that glibc still learns from (DEFAULT_MMAP_THRESHOLD_MAX is 32 MiB on 64-bit machines).
_LESSON_BYTES = 31 << 20

_M_ARENA_MAX = -8  # malloc.h


@cache
def keep_freed_pages() -> None:
    """Make glibc keep the pages of freed buffers, as it does in any program that frees a large one.

    By default it maps every buffer of 128 KiB or more and unmaps it when it is freed, so each chunk and each
    sample starts on fresh zeroed pages: measured here, 0.26 s of processor time for each GB. When a mapped
    block is freed, glibc raises its thresholds to the size of that block (malloc(3) and mallopt(3),
    M_MMAP_THRESHOLD). So this maps one and frees it, untouched. Unlike mallopt, it keeps the user's settings.
    Without glibc it does nothing.

    Once in a process: a second block would come from the heap and be zeroed there, which took each pass 9 ms
    and the process 31 MiB.
    """
    bytes(_LESSON_BYTES)


def share_arenas() -> None:
    """Make later threads allocate from as many arenas as there are processors, not eight times as many.

    Each arena keeps freed pages of its own, up to 62 MiB after ``keep_freed_pages``, and each new thread gets
    an arena up to the limit. With threads that make samples of megabytes, hundreds of megabytes were free
    while other pages were taken from the kernel. At most as many threads as processors run at a time, so
    further arenas save almost no waiting. Smaller thresholds would bound this as well, but cost an image
    decoder a tenth more processor time in page faults. It cannot be undone (glibc fixes the number at its
    first use), so this is only for passes whose functions run on threads, and not if the user has set
    ``MALLOC_ARENA_MAX`` or ``GLIBC_TUNABLES``. Without glibc it does nothing.
    """
    if "MALLOC_ARENA_MAX" in os.environ or "arena_max" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    with suppress(AttributeError):  # musl has no such setting
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, max(2, usable_processors()))
