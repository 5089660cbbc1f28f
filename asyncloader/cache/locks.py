"""Files that are being filled: which process may do so, their end, and the room for them.

Blocking, to be called in threads. But nothing waits for a lock: one that is held is an answer.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from .folder import (
    FILE_FLAGS,
    FILLING,
    QUARANTINE,
    ROOT,
    SHARDS,
    CachedFile,
    CacheFolder,
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
        if (number := _open_held(folder, path)) is not None:
            return CachedFile(number, None, path)
        if (found := _new(folder, path)) is not None:
            return found
    return None


def _open_held(folder: CacheFolder, path: str) -> int | None:
    """A file that a process is filling, open; one whose process has ended is removed."""
    try:
        # Writable, although nothing may be written: closing it then wakes processes that wait for the file.
        # They may have found our lock where they looked for that of a dead process.
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
            folder.remove(path)  # under its lock, and not reused: other processes may be waiting for it
    finally:
        if not alive:
            os.close(number)
    return number if alive else None


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
    fcntl.flock(found.number, fcntl.LOCK_UN)  # at once: the new name wakes who waits
    for other in folder.versions(identity):
        if other != target:
            folder.remove(other)


def withdraw(folder: CacheFolder, found: CachedFile) -> None:
    """Stop filling a file."""
    try:
        if folder.is_named(found.path, found.number):
            folder.remove(found.path)
    finally:
        fcntl.flock(found.number, fcntl.LOCK_UN)


def give_up(folder: CacheFolder, claimed: CachedFile | None) -> None:
    """Close a file whose opening was cancelled; one that this process was to fill is removed."""
    if claimed is None:
        return
    try:
        if claimed.locked:
            withdraw(folder, claimed)
    finally:
        claimed.close()


def being_filled(folder: CacheFolder) -> Iterator[tuple[Header | None, int]]:
    """Header and length of each file that is being filled; files of dead processes are removed."""
    for name in folder.names(FILLING):
        if (number := _open_held(folder, f"{FILLING}/{name}")) is not None:
            try:
                yield read_header(number), os.fstat(number).st_size
            finally:
                os.close(number)


def is_locked(number: int) -> bool:
    """Whether another process is filling an open file."""
    # A shared lock, so that readers do not take each other for the process that fills the file.
    if not _lock(number, fcntl.LOCK_SH):
        return True
    fcntl.flock(number, fcntl.LOCK_UN)
    return False


def _lock(number: int, kind: int = fcntl.LOCK_EX) -> bool:
    """Lock an open file, unless another process has; returns whether that worked."""
    try:
        fcntl.flock(number, kind | fcntl.LOCK_NB)
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


@dataclass(frozen=True)
class CacheFile:
    """A file of a cache that could be evicted.

    Attributes:
        path: Below the ``cache_dir``. It consists of digests: its URL is not known.
        size_bytes: Its length on disk: that of the shard, a header and checksums.
        unused_s: How long ago it was last used.
        is_bad: Whether it is damaged, and only kept to be examined.
    """

    path: str
    size_bytes: int
    unused_s: float
    is_bad: bool


def choose_oldest(files: Iterable[CacheFile], missing_bytes: int) -> list[CacheFile] | None:
    """The files to remove for so much room: bad ones first, then those unused for longest.

    Returns:
        None if there would be no room even without all of them; then nothing should be removed.
    """
    oldest: list[CacheFile] = []
    for file in sorted(files, key=lambda file: (not file.is_bad, -file.unused_s, file.path)):
        if missing_bytes <= 0:
            break
        oldest.append(file)
        missing_bytes -= file.size_bytes
    return None if missing_bytes > 0 else oldest


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
    over_limit = sum(file.size_bytes for file in kept) + announced - limit_bytes
    disk = os.fstatvfs(folder.number)
    free, floor = disk.f_bavail * disk.f_frsize, floor_bytes(disk.f_blocks * disk.f_frsize)
    victims = choose_oldest(kept, max(over_limit, floor + unwritten - free))
    folder.evicted += over_limit > 0 if victims is None else len(victims)
    for victim in victims or ():
        folder.remove(os.path.relpath(victim.path, ROOT))
    return victims is not None


def kept_files(folder: CacheFolder) -> list[CacheFile]:
    """All files that could be evicted now, in no order."""
    now_ns = time.time_ns()
    below = [(f"{SHARDS}/{name}", False) for name in folder.names(SHARDS)]
    kept = []
    for path, is_bad in [*below, (QUARANTINE, True)]:
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
                    unused_s = max(now_ns - found.st_mtime_ns, 0) / 1e9
                    kept.append(CacheFile(f"{ROOT}/{path}/{entry.name}", found.st_size, unused_s, is_bad))
    return kept
