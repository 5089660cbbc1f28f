"""Files that are being filled: who may do so, how far they are, and their end.

Blocking, to be called in threads. But no lock is ever waited for: one that is held is an answer.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from .header import ABANDONED, Header, State
from .identity import Identity
from .layout import FILE_FLAGS, FILLING, Folder, Found, read_header

__all__ = ["Progress", "being_filled", "claim", "give_up", "look", "publish", "withdraw"]

# Each attempt to lock a name fails only if another process removed the file in that very moment.
_CLAIM_ATTEMPTS = 10


def claim(folder: Folder, identity: Identity) -> Found | None:
    """The file that the shard is being downloaded to: a new one, locked, or that of another process.

    Returns:
        None if others made and removed it all the time.
    """
    path = f"{FILLING}/{identity.name}"
    for _ in range(_CLAIM_ATTEMPTS):
        found = _of_another(folder, path) or _new(folder, path)
        if found is not None:
            return found
    return None


def _of_another(folder: Folder, path: str) -> Found | None:
    """The file if its holder lives; one whose holder has died is removed."""
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
            folder.remove(path)  # under its lock, and not used again: others may be reading it
    finally:
        if not alive:
            os.close(number)
    return Found(number, None, path) if alive else None


def _new(folder: Folder, path: str) -> Found | None:
    """A new file, unless somebody has just made one. It has its name only when it is locked.

    Else whoever looks for files of the dead in that moment would take it for one.
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
    return Found(number, None, path, locked=True) if named else None


def publish(folder: Folder, found: Found, identity: Identity, header: Header) -> None:
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


def withdraw(folder: Folder, found: Found, last_word: Header) -> None:
    """Give up filling a file, with a last word to those who read along."""
    try:
        # Before the lock goes: nobody is woken by that.
        with suppress(OSError):
            os.pwrite(found.number, last_word.encode(), 0)
        if folder.is_named(found.path, found.number):
            folder.remove(found.path)
    finally:
        fcntl.flock(found.number, fcntl.LOCK_UN)


def give_up(folder: Folder, claimed: Found | None) -> None:
    """Close what was claimed for somebody who has gone; a new file goes with it."""
    if claimed is None:
        return
    try:
        if claimed.locked:
            withdraw(folder, claimed, ABANDONED)
    finally:
        claimed.close()


def being_filled(folder: Folder) -> Iterator[tuple[Header | None, int]]:
    """Header and length of each file that is being filled; those left by the dead are removed."""
    for name in folder.names(FILLING):
        path = f"{FILLING}/{name}"
        try:
            # Writable, although nothing is written: closing it then wakes those who read along, who may
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
        filled: Bytes of the shard that are there.
        alive: Whether somebody is filling it.
    """

    header: Header | None
    filled: int
    alive: bool

    @property
    def state(self) -> State | None:
        """What the header says; None as long as there is none."""
        return None if self.header is None else self.header.state

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return not self.alive or self.state not in (None, State.FILLING)


def look(number: int) -> Progress:
    """How far an open file is now."""
    # The lock first: once it is free, the header is the last word. Shared, so that those who look do not take
    # each other for the one that fills it.
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
    """Lock an open file, unless somebody has."""
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
