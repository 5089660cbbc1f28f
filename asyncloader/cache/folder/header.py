"""The first bytes of a cached file, which say what it holds; pure.

A file is ``HEADER_BYTES`` of header, a table of checksums and then the shard's bytes, so that no second file
can be out of step with it. The header is written before the first byte (what is coming), and once more after
the last. Behind it is a table of marks, one for each run that has verified the file: a mark is right or is
not there, so it needs neither checksum nor lock, and writers cannot spoil each other's. The checksums are of
stretches of the shard, each of the same length: see ``checksums``.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from enum import IntEnum

__all__ = [
    "ABANDONED",
    "HEADER_BYTES",
    "MARK_BYTES",
    "STRETCH_BYTES",
    "SUMS_BYTES",
    "Header",
    "State",
    "is_outdated",
    "mark_of",
]

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


class State(IntEnum):
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

    state: State
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
        if magic != _MAGIC or etag_bytes > _MOST_ETAG_BYTES or size > _MOST_BYTES or state > max(State):
            return None
        if page[end : end + _CHECKSUM_BYTES] != hashlib.sha256(page[:end]).digest():
            return None
        try:
            etag = page[_FIXED.size : end].decode()
        except UnicodeDecodeError:
            return None
        return cls(State(state), etag, size, sha256, crc32c)


#: The last word of a download that was given up.
ABANDONED = Header(State.ABANDONED, "", 0)


def is_outdated(page: bytes) -> bool:
    """Whether ``page`` begins a file of an earlier release, which cannot be checked as it is read."""
    return page.startswith(_MAGIC_BEFORE)


def mark_of(header: Header, run: str) -> tuple[int, bytes]:
    """Where in the file the mark of ``run`` stands, and what it is.

    Two runs may meet in one place of a file; then the one that comes second verifies the file once more.
    """
    mark = hashlib.sha256(header.sha256 + run.encode()).digest()
    return _MARKS_FROM + mark[0] % _MARKS * MARK_BYTES, mark
