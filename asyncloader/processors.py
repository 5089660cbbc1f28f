"""The processors of this process: how many there are, and how long it has waited for one."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cache
from pathlib import Path

__all__ = ["parse_run_delay", "parse_throttled", "read_delay_s", "read_throttled_s", "usable_processors"]


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
