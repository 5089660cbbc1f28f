"""Room on the disk: measured, and made by evicting what was not used for longest.

There is no lock for it, since whoever held one could be stopped and stop everybody. Instead a download
first announces its length, in the header of the file that it is going to fill, and then counts. Of two that
announce at once at least one sees the other; if there is no room for both, one or both go without the cache.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from .layout import QUARANTINE, SHARDS, Folder
from .locks import being_filled

__all__ = ["Demand", "Kept", "choose_victims", "floor_bytes", "kept_files", "make_room"]

_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Kept:
    """A file that could be evicted.

    Attributes:
        name: Its path below the cache's folder.
        size_bytes: Its length.
        used_ns: When it was last used.
        quarantined: It is known to be bad, and only kept to be looked at.
    """

    name: str
    size_bytes: int
    used_ns: int
    quarantined: bool = False


@dataclass(frozen=True, slots=True)
class Demand:
    """What there has to be room for.

    Attributes:
        announced_bytes: Full lengths of all files that are being filled, by all processes.
        unwritten_bytes: How much of that is still to be written.
        limit_bytes: Most that all files may have.
        free_bytes: What the file system has left.
        floor_bytes: What it should have left in the end.
    """

    announced_bytes: int
    unwritten_bytes: int
    limit_bytes: int
    free_bytes: int
    floor_bytes: int


def choose_victims(kept: Sequence[Kept], demand: Demand) -> list[Kept] | None:
    """The files to evict: bad ones first, then those not used for longest, and no more than needed.

    Returns:
        None if there would not be room even with all of them gone; then nothing should be evicted.
    """
    over_limit = sum(file.size_bytes for file in kept) + demand.announced_bytes - demand.limit_bytes
    over_disk = demand.floor_bytes + demand.unwritten_bytes - demand.free_bytes
    missing = max(over_limit, over_disk)
    victims: list[Kept] = []
    for file in sorted(kept, key=lambda file: (not file.quarantined, file.used_ns, file.name)):
        if missing <= 0:
            break
        victims.append(file)
        missing -= file.size_bytes
    return None if missing > 0 else victims


def floor_bytes(file_system_bytes: int) -> int:
    """How much of a file system the cache leaves free: a twentieth, but no more than 1 GiB.

    A twentieth is what file systems themselves keep back from users, since they slow down when full; a GiB
    is enough for the logs and the checkpoint that a training run must be able to write.
    """
    return min(file_system_bytes // 20, _GIB)


def make_room(folder: Folder, limit_bytes: int) -> bool:
    """Evict what is used least until all that is announced fits; False if it cannot."""
    announced = unwritten = 0
    # First what is being filled, then what is kept: a file that becomes complete meanwhile is counted twice
    # rather than never.
    for header, length in being_filled(folder):
        full = length if header is None else header.file_bytes
        announced += full
        unwritten += max(full - length, 0)
    kept = kept_files(folder)
    disk = os.fstatvfs(folder.number)
    demand = Demand(
        announced,
        unwritten,
        limit_bytes,
        disk.f_bavail * disk.f_frsize,
        floor_bytes(disk.f_blocks * disk.f_frsize),
    )
    victims = choose_victims(kept, demand)
    folder.evicted += len(victims or ())
    for victim in victims or ():
        folder.remove(victim.name)
    return victims is not None


def kept_files(folder: Folder) -> list[Kept]:
    """All files that could be evicted now, in no order."""
    below = [(f"{SHARDS}/{name}", False) for name in folder.names(SHARDS)]
    kept = []
    for path, quarantined in [*below, (QUARANTINE, True)]:
        with folder.opened(path) as number:
            if number is None:
                continue
            with os.scandir(number) as entries:
                for entry in entries:
                    try:
                        found = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:  # evicted by another process
                        continue
                    # The time of the last write is that of the last use: see ``touch``. That of the last read
                    # is changed by whoever reads the file, a backup too.
                    kept.append(Kept(f"{path}/{entry.name}", found.st_size, found.st_mtime_ns, quarantined))
    return kept
