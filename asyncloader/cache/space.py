"""Room on the disk: measured, and made by evicting; blocking, to be called in threads.

There is no lock for it, since whoever held one could be stopped and stop everybody. Instead a download
first announces its length, in the header of the file that it is going to fill, and then counts. Of two that
announce at once at least one sees the other; if there is no room for both, one or both go without the cache.
"""

from __future__ import annotations

import os

from .filling import being_filled
from .folder import QUARANTINE, SHARDS, Folder
from .room import Demand, Kept, choose_victims, floor_bytes

__all__ = ["make_room"]


def make_room(folder: Folder, limit_bytes: int) -> bool:
    """Evict what is used least until all that is announced fits; False if it cannot."""
    announced = unwritten = 0
    # First what is being filled, then what is kept: a file that becomes complete meanwhile is counted twice
    # rather than never.
    for header, length in being_filled(folder):
        full = length if header is None else header.file_bytes
        announced += full
        unwritten += max(full - length, 0)
    kept = _kept(folder)
    disk = os.fstatvfs(folder.number)
    demand = Demand(
        announced,
        unwritten,
        limit_bytes,
        disk.f_bavail * disk.f_frsize,
        floor_bytes(disk.f_blocks * disk.f_frsize),
    )
    victims = choose_victims(kept, demand)
    for victim in victims or ():
        folder.remove(victim.name)
    return victims is not None


def _kept(folder: Folder) -> list[Kept]:
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
