"""Files that are being filled: which process may do so, how far they are, and their end.

Blocking, to be called in threads. But nothing waits for a lock: one that is held is an answer.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from .folder import (
    ABANDONED,
    FILE_FLAGS,
    FILLING,
    QUARANTINE,
    SHARDS,
    CachedFile,
    CacheFolder,
    CopyState,
    Header,
    Identity,
    read_header,
)

# Each attempt to lock a name fails only if another process removed the file in that very moment.
_CLAIM_ATTEMPTS = 10


def claim(folder: CacheFolder, identity: Identity) -> CachedFile | None:
    """The file that the shard is being downloaded to: a new one, locked, or that of another process.

    Returns:
        None if other processes made and removed it at each attempt.
    """
    path = f"{FILLING}/{identity.name}"
    for _ in range(_CLAIM_ATTEMPTS):
        found = _of_another(folder, path) or _new(folder, path)
        if found is not None:
            return found
    return None


def _of_another(folder: CacheFolder, path: str) -> CachedFile | None:
    """The file if its holder is alive; otherwise it is removed."""
    try:
        number = os.open(path, FILE_FLAGS, dir_fd=folder.number)
    except FileNotFoundError:
        return None
    except OSError:  # a link or a folder
        folder.remove(path)
        return None
    alive = False
    try:
        alive = not _lock(number)
        if not alive and folder.is_named(path, number):
            folder.remove(path)  # under its lock, and not reused: other processes may be reading it
    finally:
        if not alive:
            os.close(number)
    return CachedFile(number, None, path) if alive else None


def _new(folder: CacheFolder, path: str) -> CachedFile | None:
    """A new file, unless another process has just made one. It gets its name only after it was locked.

    Otherwise a process that looks for files of dead processes at that moment would take it for one.
    """
    draft = f"{FILLING}/.{secrets.token_hex(8)}"
    number = os.open(draft, FILE_FLAGS | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder.number)
    named = False
    try:
        if _lock(number):
            with suppress(FileExistsError, FileNotFoundError):
                os.link(draft, path, src_dir_fd=folder.number, dst_dir_fd=folder.number)
                named = True
    finally:
        folder.remove(draft)
        if not named:
            os.close(number)
    return CachedFile(number, None, path, locked=True) if named else None


def publish(folder: CacheFolder, found: CachedFile, identity: Identity, header: Header) -> None:
    """Give a file that is whole its final name, and remove what it replaces."""
    target = folder.final_path(identity, header.etag, header.size)
    with suppress(FileExistsError):
        os.mkdir(os.path.dirname(target), 0o700, dir_fd=folder.number)
    os.pwrite(found.number, header.encode(), 0)
    os.replace(found.path, target, src_dir_fd=folder.number, dst_dir_fd=folder.number)
    for other in folder.versions(identity):
        if other != target:
            folder.remove(other)
    fcntl.flock(found.number, fcntl.LOCK_UN)


def withdraw(folder: CacheFolder, found: CachedFile, last_word: Header) -> None:
    """Stop filling a file, with a last header for processes that read along."""
    try:
        # Before the lock is released, which wakes no process.
        with suppress(OSError):
            os.pwrite(found.number, last_word.encode(), 0)
        if folder.is_named(found.path, found.number):
            folder.remove(found.path)
    finally:
        fcntl.flock(found.number, fcntl.LOCK_UN)


def give_up(folder: CacheFolder, claimed: CachedFile | None) -> None:
    """Close a file whose claim was cancelled; a new file is removed."""
    if claimed is None:
        return
    try:
        if claimed.locked:
            withdraw(folder, claimed, ABANDONED)
    finally:
        claimed.close()


def being_filled(folder: CacheFolder) -> Iterator[tuple[Header | None, int]]:
    """Header and length of each file that is being filled; files of dead processes are removed."""
    for name in folder.names(FILLING):
        path = f"{FILLING}/{name}"
        try:
            # Writable, although nothing is written: closing it then wakes processes that read along. They may
            # have found our lock where they looked for that of a dead process.
            number = os.open(path, FILE_FLAGS, dir_fd=folder.number)
        except FileNotFoundError:
            continue
        except OSError:
            folder.remove(path)
            continue
        try:
            if not _lock(number):
                yield read_header(number), os.fstat(number).st_size
            elif folder.is_named(path, number):
                folder.remove(path)
        finally:
            os.close(number)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a file is.

    Attributes:
        header: None as long as there is none.
        filled: How many bytes of the shard it contains.
        alive: Whether a process is filling it.
    """

    header: Header | None
    filled: int
    alive: bool

    @property
    def state(self) -> CopyState | None:
        """The state by the header; None as long as there is none."""
        return None if self.header is None else self.header.state

    @property
    def ended(self) -> bool:
        """Whether no further bytes will come."""
        return not self.alive or self.state not in (None, CopyState.FILLING)


def look(number: int) -> Progress:
    """How far an open file is now."""
    # The lock first: once it is free, the header is final. A shared lock, so that readers do not take each
    # other for the process that fills the file.
    try:
        fcntl.flock(number, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        alive = True
    else:
        fcntl.flock(number, fcntl.LOCK_UN)
        alive = False
    header = read_header(number)
    filled = 0 if header is None else max(os.fstat(number).st_size - header.begin, 0)
    return Progress(header, filled, alive)


def _lock(number: int) -> bool:
    """Lock an open file, unless another process has; returns whether that worked."""
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# Room on the disk: measured, and made by evicting the files that were unused for longest.
#
# There is no lock for it: a process that is stopped while it holds one would stop all others. Instead a
# download first announces its length, in the header of the file that it is going to fill, and then counts. Of
# two that announce at the same time at least one sees the other; if there is no room for both, one or both do
# not use the cache.

_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Kept:
    """A file that could be evicted.

    Attributes:
        name: Its path below the cache's folder.
        size_bytes: Its length.
        used_ns: When it was last used.
        quarantined: Whether it is damaged, and only kept to be examined.
    """

    name: str
    size_bytes: int
    used_ns: int
    quarantined: bool = False


@dataclass(frozen=True, slots=True)
class Demand:
    """How much room is needed.

    Attributes:
        announced_bytes: Full lengths of all files that are being filled, by all processes.
        unwritten_bytes: How much of that is still to be written.
        limit_bytes: Most bytes of all files together.
        free_bytes: The free bytes of the file system.
        floor_bytes: How many should stay free.
    """

    announced_bytes: int
    unwritten_bytes: int
    limit_bytes: int
    free_bytes: int
    floor_bytes: int


def choose_victims(kept: Sequence[Kept], demand: Demand) -> list[Kept] | None:
    """The files to evict: bad ones first, then those unused for longest, and only as many as needed.

    Returns:
        None if there would be no room even without all of them; then nothing should be evicted.
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

    File systems themselves reserve a twentieth, since they slow down when full. A GiB is enough for the logs
    and the checkpoint that a training run must be able to write.
    """
    return min(file_system_bytes // 20, _GIB)


def make_room(folder: CacheFolder, limit_bytes: int) -> bool:
    """Evict what is used least until all that is announced fits; False if it cannot."""
    announced = unwritten = 0
    # First the files being filled, then the complete ones: a file that becomes complete meanwhile is counted
    # twice rather than never.
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


def kept_files(folder: CacheFolder) -> list[Kept]:
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
                    # The time of the last write is that of the last use: see ``touch``. The time of the last
                    # read is changed by any program that reads the file, such as a backup.
                    kept.append(Kept(f"{path}/{entry.name}", found.st_size, found.st_mtime_ns, quarantined))
    return kept
