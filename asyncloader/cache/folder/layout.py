"""The cache's private folder, and the files in it; blocking, to be called in threads.

::

    asyncloader-v1/                    0700, owned by the user
        filling/NAME                   being downloaded; whoever does so holds its lock
        shards/NN/NAME.VERSION         complete
        quarantine/NAME.VERSION        found to be bad

NAME is the digest of endpoint and key, VERSION that of endpoint, key, ETag and size; see ``identity``.

Laws:

* A file is filled once, by one download: a new download makes a new file. So whoever has a file open sees
  one version of a shard, whatever happens to its name.
* A file gets its final name only when it is whole.
* Nothing here waits for another process. A lock that is held is an answer.
* There is no state but these files; any of them may be deleted at any moment.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from .header import HEADER_BYTES, Header, State, is_outdated
from .identity import Identity

__all__ = [
    "FILE_FLAGS",
    "FILLING",
    "QUARANTINE",
    "READ_ONLY",
    "ROOT",
    "SHARDS",
    "Folder",
    "Found",
    "read_header",
]

ROOT = "asyncloader-v1"
FILLING, SHARDS, QUARANTINE = "filling", "shards", "quarantine"

# O_NONBLOCK: to open a named pipe that somebody has put there must not hold the thread.
FILE_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

#: What a disk says that is mounted read-only, or a folder that is not to be written.
READ_ONLY = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})

# Enough to see what is wrong with a disk; each may be as large as a shard.
_MOST_QUARANTINED = 4


@dataclass(slots=True)
class Found:
    """A file of the cache, open.

    Attributes:
        number: Its descriptor.
        header: None where nothing is written yet.
        path: Its name below the folder.
        locked: Whether this process is the one to fill it.
    """

    number: int
    header: Header | None
    path: str
    locked: bool = False

    def close(self) -> None:
        os.close(self.number)


class Folder:
    """The private folder.

    Args:
        parent: The user's cache folder; made if it is not there.

    Raises:
        ValueError: The private folder is a link, or somebody else's, or others may read it.
        OSError: It cannot be made or opened.
    """

    def __init__(self, parent: str) -> None:
        self.evicted = 0  # files, to make room
        path = os.path.join(parent, ROOT)
        os.makedirs(parent, exist_ok=True)
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)
        try:
            self.number = os.open(path, _FOLDER_FLAGS)
        except NotADirectoryError:  # what Linux says to O_DIRECTORY with O_NOFOLLOW
            raise ValueError(
                f"{path!r} should be a folder of the cache's own, but is a link or a file"
            ) from None
        try:
            found = os.fstat(self.number)
            if found.st_uid != os.geteuid():
                raise ValueError(
                    f"{path!r} should belong to user {os.geteuid()}, but belongs to {found.st_uid}; "
                    "give each user a cache_dir of their own"
                )
            if found.st_mode & 0o077:
                raise ValueError(
                    f"{path!r} should be private (mode 0700), but has {stat.S_IMODE(found.st_mode):04o}: "
                    "others could have put files there; delete it"
                )
            for name in (FILLING, SHARDS, QUARANTINE):
                with suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=self.number)
        except BaseException:
            os.close(self.number)
            raise

    def close(self) -> None:
        os.close(self.number)

    # --- complete files ---

    def find(self, identity: Identity, bad: list[str], sha256: bytes | None = None) -> Found | None:
        """The complete file of a shard; what has its name and is none goes to quarantine and into ``bad``.

        A file of an earlier release is removed, and nothing is said of it.

        Args:
            identity: The shard's.
            bad: Gets the new names of bad files.
            sha256: The shard's, if an index tells: damaged on its way here, a file is whole and wrong.
        """
        for path in self.versions(identity):
            try:
                number = self._open_complete(path)
            except FileNotFoundError:
                continue
            except OSError:  # a link, a folder, a file of another user
                if name := self.quarantine(path):
                    bad.append(name)
                continue
            header = _sound_header(number)
            if (
                header is not None
                and path.endswith(identity.version_name(header.etag, header.size))
                and (sha256 is None or header.sha256 == sha256)
            ):
                return Found(number, header, path)
            try:
                if not self._drop_outdated(path, number) and (name := self.quarantine(path, number)):
                    bad.append(name)
            finally:
                os.close(number)
        return None

    def _open_complete(self, path: str) -> int:
        """Open a complete file: to be marked and touched, or, where nothing can be written, to be read."""
        try:
            return os.open(path, FILE_FLAGS, dir_fd=self.number)
        except OSError as error:
            if error.errno not in READ_ONLY:
                raise
        return os.open(path, FILE_FLAGS & ~os.O_RDWR | os.O_RDONLY, dir_fd=self.number)

    def open_kept(self, path: str) -> Found | None:
        """The complete file of this name; None if it is none. A file of an earlier release is removed."""
        try:
            number = os.open(path, FILE_FLAGS, dir_fd=self.number)
        except OSError:
            return None
        header = _sound_header(number)
        if header is None:
            try:
                self._drop_outdated(path, number)
            finally:
                os.close(number)
            return None
        return Found(number, header, path)

    def final_path(self, identity: Identity, etag: str, size: int) -> str:
        """The name of the complete file of this version of a shard."""
        return f"{SHARDS}/{identity.name[:2]}/{identity.name}.{identity.version_name(etag, size)}"

    def quarantine(self, path: str, number: int | None = None) -> str | None:
        """Take a bad file out of use.

        Args:
            number: The descriptor it was read by: the name may mean a better file by now.

        Returns:
            Its new name; None if somebody else has taken it away, who then tells of it.
        """
        name = f"{QUARANTINE}/{os.path.basename(path)}"
        if number is not None and not self.is_named(path, number):
            return None
        try:
            os.replace(path, name, src_dir_fd=self.number, dst_dir_fd=self.number)
        except FileNotFoundError:
            return None
        with suppress(FileNotFoundError):
            os.utime(name, dir_fd=self.number, follow_symlinks=False)
        ages = []
        for other in self.names(QUARANTINE):
            with suppress(FileNotFoundError):
                found = os.stat(f"{QUARANTINE}/{other}", dir_fd=self.number, follow_symlinks=False)
                ages.append((found.st_mtime_ns, f"{QUARANTINE}/{other}"))
        for _, old in sorted(ages)[:-_MOST_QUARANTINED]:
            self.remove(old)
        return name

    def remove(self, path: str) -> None:
        """Delete a file, if it is there. Those who have it open go on reading it."""
        with suppress(FileNotFoundError):
            try:
                os.unlink(path, dir_fd=self.number)
            except (IsADirectoryError, PermissionError):  # a folder was put in a file's place
                os.rmdir(path, dir_fd=self.number)

    def names(self, folder: str) -> list[str]:
        """What is in one of the folders below."""
        with self.opened(folder) as number:
            return [] if number is None else os.listdir(number)

    @contextmanager
    def opened(self, folder: str) -> Iterator[int | None]:
        """A descriptor of a folder below; None if there is none."""
        try:
            number = os.open(folder, _FOLDER_FLAGS, dir_fd=self.number)
        except (FileNotFoundError, NotADirectoryError):
            yield None
            return
        try:
            yield number
        finally:
            os.close(number)

    def versions(self, identity: Identity) -> list[str]:
        """The complete files of a shard by name; more than one only while one replaces another."""
        below = f"{SHARDS}/{identity.name[:2]}"
        return [f"{below}/{name}" for name in self.names(below) if name.startswith(identity.name + ".")]

    def _drop_outdated(self, path: str, number: int) -> bool:
        """Remove the open file if an earlier release has made it; whether that was so."""
        try:
            if not is_outdated(os.pread(number, HEADER_BYTES, 0)):
                return False
        except OSError:  # a pipe, or the disk cannot read it
            return False
        if self.is_named(path, number):
            self.remove(path)
        return True

    def is_named(self, path: str, number: int) -> bool:
        """Whether the open file has this name (still)."""
        try:
            named = os.stat(path, dir_fd=self.number, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return os.path.samestat(named, os.fstat(number))


def read_header(number: int) -> Header | None:
    """The header of an open file; None if there is no sound one, perhaps because it is just being written."""
    return Header.parse(os.pread(number, HEADER_BYTES, 0))


def _sound_header(number: int) -> Header | None:
    """The header of a complete file, if what can be seen without reading all of it is right."""
    found = os.fstat(number)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        return None
    try:
        header = read_header(number)
    except OSError:  # the disk cannot read it
        return None
    if header is None or header.state is not State.COMPLETE or found.st_size != header.file_bytes:
        return None
    return header
