"""A shard's bytes on disk, complete or growing, as readers in this process wait for and read them."""

from __future__ import annotations

import asyncio
import copy as copying
import errno
import hashlib
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import ParamSpec, TypeVar

from ..errors import StoreError
from ..flow.engine import opened
from ..formats.digest import Digest, open_digest
from ..types import Buffer
from .folder import HEADER_BYTES, MARK_BYTES, READ_ONLY, STRETCH_BYTES, SUMS_BYTES, Header, mark_of

P = ParamSpec("P")
T = TypeVar("T")


class Descriptor:
    """An open file. It is closed when its last holder has closed it and no thread works on it any more.

    A thread cannot be cancelled. If the descriptor was closed meanwhile, its number could be that of another
    file by the time the thread writes.

    Args:
        number: The descriptor.
        folder: Of its folder, which is kept open as long, for work that uses both.
    """

    def __init__(self, number: int, folder: Descriptor | None = None) -> None:
        self.number = number
        self._holders = 1
        self._folder = folder and folder.share()

    def share(self) -> Descriptor:
        """This descriptor, for one more holder."""
        assert self._holders, "this file was closed"
        self._holders += 1
        return self

    def close(self) -> None:
        """To be called once by each holder."""
        self._holders -= 1
        if not self._holders:
            os.close(self.number)
            if self._folder is not None:
                self._folder.close()

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``work(...)`` in a thread, this file being open. If cancelled, the thread still finishes it."""
        return await asyncio.shield(self._begin(partial(work, *args, **kwargs)))

    async def acquire(self, work: Callable[[], T], give_up: Callable[[T], object]) -> T:
        """What ``work()`` opens in a thread, while this file is kept open.

        Args:
            work: Cannot be stopped.
            give_up: Closes what ``work`` has opened if this is cancelled, while this file is still open.
        """
        self.share()
        opening = self._begin(work)
        try:
            return await opened(opening, give_up)
        finally:
            # After ``give_up``, which is such a callback too.
            opening.add_done_callback(lambda _: self.close())

    def _begin(self, work: Callable[[], T]) -> asyncio.Future[T]:
        self.share()
        working = asyncio.get_running_loop().run_in_executor(None, work)
        working.add_done_callback(lambda _: self.close())
        return working


# The checksums of a cached file: made while it is filled, and compared at every read.
#
# A file is verified as a whole once in a run, by its digest, and marked. Damage after that is found by the
# checksums of its stretches. Each stretch has its own, so a read within a shard costs only the stretches that
# it touches. Blocking, to be called in threads.

# In the order of the table, with the length of one. The second is six times as fast where the installation
# can compute it: see ``digest``.
_ALGORITHMS = ("crc32", "crc32c")
_SUM_BYTES = SUMS_BYTES // len(_ALGORITHMS)

_READ_BYTES = 2 << 20


class DamagedCopyError(Exception):
    """A file does not contain what was written to it."""


def has_crc32c() -> bool:
    """Whether this installation computes crc32c."""
    return open_digest("crc32c") is not None


class Sums:
    """Makes the checksums of a file that is filled from its start to its end.

    Args:
        header: Of the file.
    """

    def __init__(self, header: Header) -> None:
        self._header = header
        self._filled = 0
        self._digests = self._open_digests()

    def add(self, number: int, chunk: Buffer) -> None:
        """Add the next bytes, and write the checksums of the stretches that end in them."""
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


def read_stretches(number: int, header: Header, start: int, stop: int) -> list[Buffer]:
    """Bytes of the shard in a file, from stretches that are filled; only those that match their checksum.

    Args:
        number: The descriptor of the file.
        header: Of the file.
        start: Offset in the shard.
        stop: Likewise, behind the last byte.

    Raises:
        DamagedCopyError: A stretch is not what was written, or missing.
        OSError: The disk cannot read it.
    """
    algorithm = "crc32c" if header.crc32c and has_crc32c() else "crc32"
    first = start - start % STRETCH_BYTES
    sums = os.pread(number, _sums_at(stop - 1) + SUMS_BYTES - _sums_at(first), _sums_at(first))
    chunks: list[Buffer] = []
    for begin in range(first, stop, STRETCH_BYTES):
        size = min(STRETCH_BYTES, header.size - begin)
        stretch = os.pread(number, size, header.begin + begin)
        # Some file systems return less than is there.
        while len(stretch) < size:
            rest = os.pread(number, size - len(stretch), header.begin + begin + len(stretch))
            if not rest:
                raise DamagedCopyError
            stretch += rest
        at = _sums_at(begin) - _sums_at(first) + _ALGORITHMS.index(algorithm) * _SUM_BYTES
        digest = open_digest(algorithm)
        assert digest is not None, "has_crc32c has found it"
        digest.update(stretch)
        if digest.digest() != sums[at : at + _SUM_BYTES]:
            raise DamagedCopyError
        low, high = max(start - begin, 0), min(stop - begin, size)
        chunks.append(stretch if high - low == size else memoryview(stretch)[low:high])
    return chunks


def _sums_at(offset: int) -> int:
    """The offset in the file of the checksums for the stretch with this byte of the shard."""
    return HEADER_BYTES + offset // STRETCH_BYTES * SUMS_BYTES


_CHECK_BYTES = 32 << 20


def check_steps(number: int, header: Header) -> Iterator[bool | None]:
    """Compare an open file with its digest step by step, so that waiting for it can be cancelled.

    Returns:
        Whether it is right, in the end; None before.

    Raises:
        OSError: The disk cannot read it.
    """
    sha256 = hashlib.sha256()
    try:
        for begin in range(0, header.size, _READ_BYTES):
            for chunk in read_stretches(number, header, begin, min(begin + _READ_BYTES, header.size)):
                sha256.update(chunk)
            if not (begin + _READ_BYTES) % _CHECK_BYTES:
                yield None
    except DamagedCopyError:
        yield False
    else:
        yield sha256.digest() == header.sha256


class Marks:
    """The files that a run has verified: marked in the files, or noted here if they are read-only.

    Args:
        run: Names the run.
    """

    def __init__(self, run: str) -> None:
        self._run = run
        self._here: set[tuple[int, int, bytes]] = set()

    def has(self, number: int, header: Header) -> bool:
        """Whether the run has verified this file before."""
        offset, wanted = mark_of(header, self._run)
        return os.pread(number, MARK_BYTES, offset) == wanted or self._key(number, header) in self._here

    def add(self, number: int, header: Header) -> None:
        """Record that the run has verified this file."""
        try:
            offset, wanted = mark_of(header, self._run)
            os.pwrite(number, wanted, offset)
        except OSError as error:
            if error.errno != errno.EBADF:  # that is of a file which is open for reading only
                raise
            self._here.add(self._key(number, header))

    @staticmethod
    def _key(number: int, header: Header) -> tuple[int, int, bytes]:
        found = os.fstat(number)  # without the time, which ``touch`` changes
        return found.st_dev, found.st_ino, header.sha256


def touch(number: int) -> None:
    """Set the time of last use of a file, unless it is read-only."""
    try:
        os.utime(number)
    except OSError as error:
        if error.errno not in READ_ONLY:
            raise


class Copy:
    """One shard in the cache, as its readers in this process see it: expected, growing, or whole.

    Laws: bytes are available by whole stretches only, so that each can be compared with its checksum; and the
    last stretch only when the copy is complete, so that no reader takes a shard for whole that may still
    prove wrong. Each reader closes the copy, also if it is cancelled while it waits for it.

    Attributes:
        header: What the file contains; None before there is one.
        file: Open once there is a header.
        filled: How many bytes are available.
        growing: Whether more may come.
    """

    header: Header | None = None
    file: Descriptor

    def __init__(self) -> None:
        self.filled = 0
        self.growing = True
        self._error: Exception | None = None
        self._changed = asyncio.Event()
        self._holders = 1

    @property
    def is_wanted(self) -> bool:
        """Whether it has a reader beside the holder that fills it."""
        return self._holders > 1

    def share(self) -> Copy:
        """This copy, for one more reader."""
        self._holders += 1
        return self

    def close(self) -> None:
        """To be called once by each reader."""
        self._holders -= 1
        if not self._holders and self.header is not None:
            self.file.close()

    # --- for readers ---

    async def wait_opened(self) -> bool:
        """Wait until there are bytes to come; says whether there are.

        Raises:
            StoreError: The shard is unavailable.
        """
        while self.header is None and self.growing:
            await self.wait_change()
        if self.header is None:
            self.check()
        return self.header is not None

    async def wait_change(self) -> None:
        """Wait until there are more bytes, or it has ended."""
        await self._changed.wait()

    def check(self) -> None:
        """Raise the error that has ended it, if there is one."""
        if isinstance(self._error, StoreError):
            # A copy for each reader: a traceback grows each time that one error is raised.
            raise copying.copy(self._error) from self._error
        if self._error is not None:
            raise self._error

    # --- for what fills it ---

    def open(self, file: Descriptor, header: Header) -> None:
        """Its bytes are in this file, or are going to be."""
        self.file, self.header = file.share(), header
        if header.is_complete:
            self.end(whole=True)
        self._wake()

    def grow(self, filled: int) -> None:
        """So many bytes of the shard are in the file now."""
        assert self.header is not None, "it was opened"
        readable = min(filled, self.header.size - 1)
        self.filled = max(self.filled, readable - readable % STRETCH_BYTES)
        self._wake()

    def end(self, *, whole: bool = False, error: Exception | None = None) -> None:
        """The copy is whole, or no further bytes will come; ``error`` if the shard is unavailable."""
        if self.growing:
            self.growing = False
            if whole and self.header is not None:
                self.filled = self.header.size
            self._error = error
            self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
