"""The cache's private folder, and the files in it; blocking, to be called in threads.

::

    asyncloader-v1/                    0700, owned by the user
        filling/NAME                   being downloaded; the downloading process holds its lock
        shards/NN/NAME.VERSION         complete
        quarantine/NAME.VERSION        damaged

NAME is the digest of endpoint and key, VERSION that of endpoint, key, ETag and size; see ``identity``.

Laws:

* A file is filled once, by one download; a new download makes a new file. So a process that has a file open
  sees one version of a shard, whatever happens to its name.
* A file gets its final name only when it is whole.
* Nothing here waits for another process. A lock that is held is an answer.
* These files are all the state there is; any of them may be deleted at any time.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from ..stores.router import backend_of
from ..stores.urls import scheme_of

# The header of a cached file; pure.
#
# A file is ``HEADER_BYTES`` of header, a table of checksums and then the shard's bytes, so that no second
# file can disagree with it. The header is written before the first byte, with the expected length, and again
# after the last. A table of marks follows it, one for each run that has verified the file. A mark is right or
# absent, so it needs neither checksum nor lock, and writers cannot damage each other's marks. The checksums
# are of stretches of the shard of equal length.

# One page, so that what follows is aligned.
HEADER_BYTES = 4096

MARK_BYTES = 32
_MARKS_FROM = 2048
_MARKS = (HEADER_BYTES - _MARKS_FROM) // MARK_BYTES

# The bytes of one checksum. A stretch is passed on only after all of it was read and compared. So up to this
# much more is read at each end of a range, and readers are so far behind a download. For each stretch a
# thread releases the interpreter's lock twice and waits for it, so stretches are not smaller.
STRETCH_BYTES = 1 << 20

# Of each stretch its crc32 and its crc32c.
SUMS_BYTES = 8

_MAGIC = b"asyncloader2\n\0\0\0"
# Magic, whether the file is complete, length of the ETag, size and sha256 of the shard, whether there is
# crc32c; then the ETag, and the sha256 of all that.
_FIXED = struct.Struct("<16sHHQ32s?")
_CHECKSUM_BYTES = 32
_MOST_ETAG_BYTES = 1024
_MOST_BYTES = 1 << 50


@dataclass(frozen=True, slots=True)
class Header:
    """What a cached file contains.

    Attributes:
        etag: The version of the object.
        size: Length of the shard, without the header.
        sha256: Of the shard; zeros before the file is complete.
        crc32c: Whether the stretches have their crc32c. They always have their crc32: the process that fills
            a file may be able to compute crc32c fast, while one that reads it may not.
    """

    etag: str
    size: int
    sha256: bytes = bytes(32)
    crc32c: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether all bytes of the shard are there, and are those that were promised."""
        return any(self.sha256)

    @property
    def begin(self) -> int:
        """The offset of the shard's bytes in the file."""
        sums_bytes = -(-self.size // STRETCH_BYTES) * SUMS_BYTES
        return HEADER_BYTES + -(-sums_bytes // HEADER_BYTES) * HEADER_BYTES

    @property
    def file_bytes(self) -> int:
        """How long the file is when it is complete."""
        return self.begin + self.size

    @staticmethod
    def fits(etag: str) -> bool:
        """Whether the header has room for this ETag."""
        return len(etag.encode()) <= _MOST_ETAG_BYTES

    def encode(self) -> bytes:
        etag = self.etag.encode()
        start = _FIXED.pack(_MAGIC, self.is_complete, len(etag), self.size, self.sha256, self.crc32c) + etag
        return start + hashlib.sha256(start).digest()

    @classmethod
    def parse(cls, page: bytes) -> Header | None:
        """The header at the start of ``page``; None if it is not valid."""
        if len(page) < _FIXED.size:
            return None
        magic, _, etag_bytes, size, sha256, crc32c = _FIXED.unpack_from(page)
        end = _FIXED.size + etag_bytes
        if magic != _MAGIC or etag_bytes > _MOST_ETAG_BYTES or size > _MOST_BYTES:
            return None
        if page[end : end + _CHECKSUM_BYTES] != hashlib.sha256(page[:end]).digest():
            return None
        try:
            etag = page[_FIXED.size : end].decode()
        except UnicodeDecodeError:
            return None
        return cls(etag, size, sha256, crc32c)


def mark_of(header: Header, run: str) -> tuple[int, bytes]:
    """The offset of the mark of ``run`` in the file, and the mark.

    Two runs may have the same offset in a file; then the second one verifies the file again.
    """
    mark = hashlib.sha256(header.sha256 + run.encode()).digest()
    return _MARKS_FROM + mark[0] % _MARKS * MARK_BYTES, mark


# The name of a shard on disk; pure.
#
# Laws:
#
# * Two URLs that may mean different objects never share a name. What counts is not the base name, but all
#   that identifies an object to its store (endpoint, bucket, whole key, and the part of a query that selects
# it).
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
    # Each with its length: with a separator alone, ("a", "b/c") could be ("a/b", "c").
    joined = b"".join(b"%d:" % len(part) + part for part in (part.encode() for part in parts))
    return hashlib.sha256(joined).hexdigest()


ROOT = "asyncloader-v1"
FILLING, SHARDS, QUARANTINE = "filling", "shards", "quarantine"

# O_NONBLOCK: opening a named pipe that was put there must not block the thread.
FILE_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

#: The errors of a disk that is mounted read-only, or of a folder without permission to write.
READ_ONLY = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})

# Enough to examine what is wrong with a disk; each may be as large as a shard.
_MOST_QUARANTINED = 4


@dataclass(slots=True)
class CachedFile:
    """A file of the cache, open.

    Attributes:
        number: Its descriptor.
        header: None where none is written yet.
        path: Its name below the folder.
        locked: Whether this process fills it.
        is_verified: Whether this run has verified it.
    """

    number: int
    header: Header | None
    path: str
    locked: bool = False
    is_verified: bool = False

    def close(self) -> None:
        os.close(self.number)


class CacheFolder:
    """The private folder.

    Args:
        parent: The user's cache folder; made if it is missing.

    Raises:
        ValueError: The private folder is a link, or belongs to another user, or others may read it.
        OSError: It cannot be made or opened.
    """

    def __init__(self, parent: str) -> None:
        self.evicted = 0  # files, to make room, and those for which the limit had none
        path = os.path.join(parent, ROOT)
        os.makedirs(parent, exist_ok=True)
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)
        try:
            self.number = os.open(path, _FOLDER_FLAGS)
        except NotADirectoryError:  # of Linux, for O_DIRECTORY with O_NOFOLLOW
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
        """The complete file of a shard; a bad file of its name goes to quarantine and is added to ``bad``.

        Args:
            identity: Of the shard.
            bad: Gets the new names of bad files.
            sha256: Of the shard by an index: a file that was damaged on its way here is whole, but wrong.
        """

        def is_wanted(found: CachedFile, header: Header) -> bool:
            is_named_so = found.path.endswith(identity.version_name(header.etag, header.size))
            return is_named_so and (sha256 is None or header.sha256 == sha256)

        for path in self.versions(identity):
            if (found := self.open_sound(path, bad, is_wanted)) is not None:
                return found
        return None

    def open_sound(
        self, path: str, bad: list[str], is_sound: Callable[[CachedFile, Header], bool]
    ) -> CachedFile | None:
        """The complete file of this name, if it is sound; a bad one goes to quarantine, see ``find``."""
        try:
            found = self._open_kept(path)
        except FileNotFoundError:
            return None
        except OSError:  # a link, a folder, a file of another user
            name = self.quarantine(path)
        else:
            if found.header is not None and is_sound(found, found.header):
                return found
            with closing(found):
                name = self.quarantine(path, found.number)
        if name is not None:
            bad.append(name)
        return None

    def _open_kept(self, path: str) -> CachedFile:
        """The file of this name, open for reading only if it is read-only; no header if it is not sound."""
        try:
            number = os.open(path, FILE_FLAGS, dir_fd=self.number)
        except OSError as error:
            if error.errno not in READ_ONLY:
                raise
            number = os.open(path, FILE_FLAGS & ~os.O_RDWR | os.O_RDONLY, dir_fd=self.number)
        return CachedFile(number, _sound_header(number), path)

    def final_path(self, identity: Identity, etag: str, size: int) -> str:
        """The name of the complete file of this version of a shard."""
        return f"{SHARDS}/{identity.name[:2]}/{identity.name}.{identity.version_name(etag, size)}"

    def quarantine(self, path: str, number: int | None = None) -> str | None:
        """Take a bad file out of use.

        Args:
            number: The descriptor that it was read by: the name may mean another file by now.

        Returns:
            Its new name; None if another process has moved it, which then reports it.
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
        """Delete a file, if it exists. Processes that have it open can still read it."""
        with suppress(FileNotFoundError):
            try:
                os.unlink(path, dir_fd=self.number)
            except (IsADirectoryError, PermissionError):  # a folder was put in a file's place
                os.rmdir(path, dir_fd=self.number)

    def names(self, folder: str) -> list[str]:
        """The names in one of the folders below."""
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
        """The names of a shard's complete files; more than one only while one replaces another."""
        below = f"{SHARDS}/{identity.name[:2]}"
        return [f"{below}/{name}" for name in self.names(below) if name.startswith(identity.name + ".")]

    def is_named(self, path: str, number: int) -> bool:
        """Whether the open file still has this name."""
        try:
            named = os.stat(path, dir_fd=self.number, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return os.path.samestat(named, os.fstat(number))


def read_header(number: int) -> Header | None:
    """The header of an open file; None if it is not valid, maybe because it is just being written."""
    return Header.parse(os.pread(number, HEADER_BYTES, 0))


def _sound_header(number: int) -> Header | None:
    """The header of a complete file, if everything is right that can be checked without reading it all."""
    found = os.fstat(number)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        return None
    try:
        header = read_header(number)
    except OSError:  # the disk cannot read it
        return None
    if header is None or not header.is_complete or found.st_size != header.file_bytes:
        return None
    return header
