"""What a process holds, read from Linux's /proc; elsewhere everything here is empty.

Every reader copes with things that vanish while they are read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten

__all__ = ["ProcessId", "descendants", "marked", "named_memory", "open_files", "shared_mappings"]

_PROC = Path("/proc")
_MAPPING = re.compile(r"\S+ \S+ \S+ \S+ (\d+) +(/memfd:.*|/dev/shm/.*)")
_DELETED = " (deleted)"


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


def open_files(process: str = "self") -> dict[int, str]:
    """File descriptors of a process and what they point to, such as ``socket:[4711]``."""
    found: dict[int, str] = {}
    for entry in _entries(_PROC / process / "fd"):
        try:
            found[int(entry.name)] = os.readlink(entry)
        except OSError:
            # Among others, the descriptor that listed the folder.
            continue
    return found


def named_memory(processes: Iterable[ProcessId]) -> set[str]:
    """Paths in /dev/shm that this process or one of ``processes`` has mapped or open.

    By who holds them, since /dev/shm itself lists those of every program on the machine.
    """
    found: set[str] = set()
    for process in ("self", *(str(process.pid) for process in processes)):
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


def _stat_fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; the command before them may hold anything."""
    return _read(_PROC / str(pid) / "stat").rpartition(")")[2].split()


def _identify(pid: int) -> Iterator[ProcessId]:
    fields = _stat_fields(pid)
    if len(fields) > 19:
        yield ProcessId(pid, int(fields[19]))
