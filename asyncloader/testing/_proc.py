"""What a process holds, read from Linux's /proc; elsewhere everything here is empty.

Every reader copes with things that vanish while they are read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten

__all__ = ["ProcessId", "descendants", "marked", "open_files", "shared_entries", "shared_mappings"]

_PROC = Path("/proc")
_SHM = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process for good: a pid alone may be given to another one.

    Attributes:
        pid: Its process id.
        started: Its start time in clock ticks since boot.
    """

    pid: int
    started: int

    def describe(self) -> str:
        """``child process PID (STATE): BEGINNING OF COMMAND``; a zombie has ended but was not waited for."""
        folder = _PROC / str(self.pid)
        # A zombie has no command line any more, but still a name.
        command = _read(folder / "cmdline").replace("\0", " ").strip() or _read(folder / "comm").strip()
        fields = _stat_fields(self.pid)
        state = "zombie" if fields and fields[0] == "Z" else "running"
        return f"child process {self.pid} ({state}): {shorten(command, 120, placeholder=' ...')}"


def descendants(pid: int) -> set[ProcessId]:
    """Children, their children and so on, as long as the chain of living parents holds."""
    found: set[ProcessId] = set()
    for task in _entries(_PROC / str(pid) / "task"):
        for child in _read(task / "children").split():
            found |= {*_identify(int(child)), *descendants(int(child))}
    return found


def marked(variable: str) -> set[ProcessId]:
    """Processes of this user that were executed with this environment variable, orphans included."""
    needle = f"{variable}=".encode()
    found: set[ProcessId] = set()
    for entry in _entries(_PROC):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environ = (entry / "environ").read_bytes()
        except OSError:
            continue
        if needle in environ:
            found |= set(_identify(int(entry.name)))
    return found


def open_files() -> dict[int, str]:
    """File descriptors of this process and what they point to, such as ``socket:[4711]``."""
    found: dict[int, str] = {}
    try:
        names = os.listdir("/proc/self/fd")
    except OSError:
        return found
    for name in names:
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            # Among others, the descriptor that listed the folder.
            continue
    return found


def shared_entries() -> set[str]:
    """Paths in /dev/shm that belong to this user."""
    uid = os.getuid() if hasattr(os, "getuid") else -1
    found: set[str] = set()
    for entry in _entries(_SHM):
        try:
            if entry.lstat().st_uid == uid:
                found.add(str(entry))
        except OSError:
            continue
    return found


def shared_mappings() -> list[str]:
    """Mappings of memfds and of /dev/shm in this process, as ``INODE NAME``, one entry each."""
    line = re.compile(r"\S+ \S+ \S+ \S+ (\d+) +(/memfd:.*|/dev/shm/.*)")
    matches = (line.fullmatch(text) for text in _read(_PROC / "self" / "maps").splitlines())
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


def _stat_fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; the command before them may hold anything."""
    return _read(_PROC / str(pid) / "stat").rpartition(")")[2].split()


def _identify(pid: int) -> Iterator[ProcessId]:
    fields = _stat_fields(pid)
    if len(fields) > 19:
        yield ProcessId(pid, int(fields[19]))
