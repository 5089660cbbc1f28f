"""The checksums of a cached file: made while it is filled, and compared with all that is ever read of it.

A file is verified as a whole once a run, by its digest, and marked; what becomes of it on the disk from then
on, only the checksums of its stretches show. Each stretch has its own, so that a read within a shard costs no
more than the stretches that it touches. Blocking, to be called in threads.
"""

from __future__ import annotations

import errno
import hashlib
import os

from ...digest import Digest, open_digest
from ...types import Buffer
from .header import HEADER_BYTES, MARK_BYTES, STRETCH_BYTES, SUMS_BYTES, Header, mark_of
from .layout import READ_ONLY

__all__ = ["Check", "DamagedError", "Marks", "Stretches", "Sums", "has_crc32c", "mark", "touch"]

# As they follow each other in the table, with the length of one. The second is for whoever can compute it, at
# six times the speed: see ``digest``.
_ALGORITHMS = ("crc32", "crc32c")
_SUM_BYTES = SUMS_BYTES // len(_ALGORITHMS)

_READ_BYTES = 2 << 20


class DamagedError(Exception):
    """A file does not hold what was put into it."""


def has_crc32c() -> bool:
    """Whether this installation computes crc32c."""
    return open_digest("crc32c") is not None


class Sums:
    """Makes the checksums of a file that is filled from its start to its end.

    Args:
        header: What is coming.
    """

    def __init__(self, header: Header) -> None:
        self._header = header
        self._filled = 0
        self._digests = self._open_digests()

    def add(self, number: int, chunk: Buffer) -> None:
        """Count the next bytes, and write the checksums of the stretches that end in them."""
        rest = memoryview(chunk)
        while rest:
            begin = self._filled - self._filled % STRETCH_BYTES
            here = rest[: begin + STRETCH_BYTES - self._filled]
            rest = rest[len(here) :]
            self._filled += len(here)
            for digest in self._digests:
                digest.update(here)
            if self._filled in (begin + STRETCH_BYTES, self._header.size):
                sums = b"".join(digest.digest() for digest in self._digests)
                os.pwrite(number, sums, _sums_at(begin))
                self._digests = self._open_digests()

    def _open_digests(self) -> list[Digest]:
        algorithms = _ALGORITHMS if self._header.crc32c else _ALGORITHMS[:1]
        return [digest for name in algorithms if (digest := open_digest(name)) is not None]


class Stretches:
    """Reads a file, and gives nothing that was not held against its checksum.

    Args:
        header: What the file holds.
    """

    def __init__(self, header: Header) -> None:
        self._header = header
        self._algorithm = "crc32c" if header.crc32c and has_crc32c() else "crc32"

    def read(self, number: int, start: int, stop: int) -> list[Buffer]:
        """Bytes of the shard, of stretches that are filled.

        Raises:
            DamagedError: A stretch is not what was put there, or not there any more.
            OSError: The disk cannot read it.
        """
        first = start - start % STRETCH_BYTES
        sums = os.pread(number, _sums_at(stop - 1) + SUMS_BYTES - _sums_at(first), _sums_at(first))
        chunks: list[Buffer] = []
        for begin in range(first, stop, STRETCH_BYTES):
            stretch = self._read_stretch(number, begin)
            at = _sums_at(begin) - _sums_at(first) + _ALGORITHMS.index(self._algorithm) * _SUM_BYTES
            digest = open_digest(self._algorithm)
            assert digest is not None, "found to be there"
            digest.update(stretch)
            if digest.digest() != sums[at : at + _SUM_BYTES]:
                raise DamagedError
            low, high = max(start - begin, 0), min(stop - begin, len(stretch))
            chunks.append(stretch if high - low == len(stretch) else memoryview(stretch)[low:high])
        return chunks

    def _read_stretch(self, number: int, begin: int) -> bytes:
        stop = min(begin + STRETCH_BYTES, self._header.size)
        stretch = b""
        while len(stretch) < stop - begin:
            offset = begin + len(stretch)
            read = os.pread(number, stop - offset, self._header.begin + offset)
            if not read:
                raise DamagedError
            stretch = stretch + read if stretch else read
        return stretch


def _sums_at(offset: int) -> int:
    """Where the checksums of the stretch stand that a byte of the shard is in."""
    return HEADER_BYTES + offset // STRETCH_BYTES * SUMS_BYTES


class Check:
    """The digest of a file, worked out step by step, so that whoever waits for it can be cancelled.

    Args:
        header: What the file should hold.
    """

    _STEP_BYTES = 32 << 20

    def __init__(self, header: Header) -> None:
        self._header = header
        self._sha256 = hashlib.sha256()
        self._stretches = Stretches(header)
        self._offset = 0

    def step(self, number: int) -> bool | None:
        """Whether the file is right, once that is known.

        Raises:
            OSError: The disk cannot read it.
        """
        stop = min(self._offset + self._STEP_BYTES, self._header.size)
        while self._offset < stop:
            end = min(self._offset + _READ_BYTES, stop)
            try:
                chunks = self._stretches.read(number, self._offset, end)
            except DamagedError:
                return False
            for chunk in chunks:
                self._sha256.update(chunk)
            self._offset = end
        if self._offset < self._header.size:
            return None
        return self._sha256.digest() == self._header.sha256


class Marks:
    """Which files a run has verified: noted in the files, or here where these cannot be written.

    Args:
        run: Names it.
    """

    def __init__(self, run: str) -> None:
        self._run = run
        self._here: set[tuple[int, int, bytes]] = set()

    def has(self, number: int, header: Header) -> bool:
        """Whether the run has verified this file before."""
        offset, wanted = mark_of(header, self._run)
        return os.pread(number, MARK_BYTES, offset) == wanted or self._key(number, header) in self._here

    def add(self, number: int, header: Header) -> None:
        """Note that the run has verified this file."""
        try:
            mark(number, header, self._run)
        except OSError as error:
            if error.errno != errno.EBADF:  # as for a file that could only be opened to be read
                raise
            self._here.add(self._key(number, header))

    @staticmethod
    def _key(number: int, header: Header) -> tuple[int, int, bytes]:
        found = os.fstat(number)  # whose time changes where it can be touched
        return found.st_dev, found.st_ino, header.sha256


def mark(number: int, header: Header, run: str) -> None:
    """Note that ``run`` has verified this file."""
    offset, wanted = mark_of(header, run)
    os.pwrite(number, wanted, offset)


def touch(number: int) -> None:
    """Note that the file is used now, where that can be written."""
    try:
        os.utime(number)
    except OSError as error:
        if error.errno not in READ_ONLY:
            raise
