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
import hashlib
import os
import stat
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from ..stores.router import backend_of
from ..stores.urls import scheme_of

# The first bytes of a cached file, which say what it holds; pure.
#
# A file is ``HEADER_BYTES`` of header, a table of checksums and then the shard's bytes, so that no second
# file can be out of step with it. The header is written before the first byte (what is coming), and once
# more after the last. Behind it is a table of marks, one for each run that has verified the file: a mark is
# right or is not there, so it needs neither checksum nor lock, and writers cannot spoil each other's. The
# checksums are of stretches of the shard, each of the same length: see ``checksums``.

# One page: what comes behind it is aligned, whatever is done with it.
HEADER_BYTES = 4096

MARK_BYTES = 32
_MARKS_FROM = 2048
_MARKS = (HEADER_BYTES - _MARKS_FROM) // MARK_BYTES

# What one checksum is of. Nothing of a stretch is handed on before all of it is there and was compared, so
# this much is read in vain at each end of a range, and those who read along are so far behind a download. For
# each stretch a thread lets go of the interpreter's lock twice and waits for it, which is why it is not less.
STRETCH_BYTES = 1 << 20

# Of each stretch its crc32 and its crc32c.
SUMS_BYTES = 8

_MAGIC = b"asyncloader2\n\0\0\0"
# Files of this one have no checksums.
_MAGIC_BEFORE = b"asyncloader1\n\0\0\0"
# Magic, state, length of the ETag, size and sha256 of the shard, whether there is crc32c; then the ETag, and
# the sha256 of all that.
_FIXED = struct.Struct("<16sHHQ32s?")
_CHECKSUM_BYTES = 32
_MOST_ETAG_BYTES = 1024
_MOST_BYTES = 1 << 50


class CopyState(IntEnum):
    """How far a file is."""

    FILLING = 0  # as long as somebody holds its lock
    COMPLETE = 1
    ABANDONED = 2  # nothing more is coming: the bytes are to be had from the network
    REJECTED = 3  # all bytes came, and are not those that were promised


@dataclass(frozen=True, slots=True)
class Header:
    """What a cached file holds.

    Attributes:
        state: How far it is.
        etag: The version of the object.
        size: Length of the shard, without the header.
        sha256: Of the shard; zeros before it is complete.
        crc32c: Whether the stretches have their crc32c. Their crc32 they always have: whoever fills a file
            may have what computes crc32c fast, and another that reads it may not.
    """

    state: CopyState
    etag: str
    size: int
    sha256: bytes = bytes(32)
    crc32c: bool = False

    @property
    def begin(self) -> int:
        """Where in the file the shard's bytes begin."""
        sums_bytes = -(-self.size // STRETCH_BYTES) * SUMS_BYTES
        return HEADER_BYTES + -(-sums_bytes // HEADER_BYTES) * HEADER_BYTES

    @property
    def file_bytes(self) -> int:
        """How long the file is when it is complete."""
        return self.begin + self.size

    @staticmethod
    def fits(etag: str) -> bool:
        """Whether there is room for this ETag."""
        return len(etag.encode()) <= _MOST_ETAG_BYTES

    def encode(self) -> bytes:
        etag = self.etag.encode()
        start = _FIXED.pack(_MAGIC, self.state, len(etag), self.size, self.sha256, self.crc32c) + etag
        return start + hashlib.sha256(start).digest()

    @classmethod
    def parse(cls, page: bytes) -> Header | None:
        """The header at the start of ``page``; None if there is no sound one."""
        if len(page) < _FIXED.size:
            return None
        magic, state, etag_bytes, size, sha256, crc32c = _FIXED.unpack_from(page)
        end = _FIXED.size + etag_bytes
        if magic != _MAGIC or etag_bytes > _MOST_ETAG_BYTES or size > _MOST_BYTES or state > max(CopyState):
            return None
        if page[end : end + _CHECKSUM_BYTES] != hashlib.sha256(page[:end]).digest():
            return None
        try:
            etag = page[_FIXED.size : end].decode()
        except UnicodeDecodeError:
            return None
        return cls(CopyState(state), etag, size, sha256, crc32c)


#: The last word of a download that was given up.
ABANDONED = Header(CopyState.ABANDONED, "", 0)


def is_outdated(page: bytes) -> bool:
    """Whether ``page`` begins a file of an earlier release, which cannot be checked as it is read."""
    return page.startswith(_MAGIC_BEFORE)


def mark_of(header: Header, run: str) -> tuple[int, bytes]:
    """Where in the file the mark of ``run`` stands, and what it is.

    Two runs may meet in one place of a file; then the one that comes second verifies the file once more.
    """
    mark = hashlib.sha256(header.sha256 + run.encode()).digest()
    return _MARKS_FROM + mark[0] % _MARKS * MARK_BYTES, mark


# What a shard is called on disk; pure.
#
# Laws:
#
# * Two URLs that may mean different objects never share a name: not the base name counts, but what their
#   store
#   tells them apart by (endpoint, bucket, whole key and what of a query selects the object).
# * Names are digests: no URL is in any file name.


@dataclass(frozen=True, slots=True)
class Identity:
    """Which object a URL means.

    Attributes:
        endpoint: The server it is on.
        key: Its name there.
    """

    endpoint: str
    key: str

    @property
    def name(self) -> str:
        """Common to all versions of the object."""
        return _digest(self.endpoint, self.key)

    def version_name(self, etag: str, size: int) -> str:
        """Of one version of the object."""
        return _digest(self.endpoint, self.key, etag, str(size))


def identity_of(url: str, options: Mapping[str, Any], environ: Mapping[str, str]) -> Identity:
    """The endpoint and the key that ``url`` means.

    Args:
        url: As the store takes it.
        options: The stores' options; an ``endpoint`` among them is another server.
        environ: Where an object store looks when the options do not say.
    """
    return Identity(*backend_of(scheme_of(url)).locate(url, options, environ))


def _digest(*parts: str) -> str:
    # Each with its length: joined by any mark alone, ("a", "b/c") could be ("a/b", "c").
    joined = b"".join(b"%d:" % len(part) + part for part in (part.encode() for part in parts))
    return hashlib.sha256(joined).hexdigest()


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
class CachedFile:
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


class CacheFolder:
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

    def find(self, identity: Identity, bad: list[str], sha256: bytes | None = None) -> CachedFile | None:
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
                return CachedFile(number, header, path)
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

    def open_kept(self, path: str) -> CachedFile | None:
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
        return CachedFile(number, header, path)

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
    if header is None or header.state is not CopyState.COMPLETE or found.st_size != header.file_bytes:
        return None
    return header
