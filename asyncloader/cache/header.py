"""The first bytes of a cached file, which say what it holds; pure.

A file is ``HEADER_BYTES`` of header and then the shard's bytes, so that no second file can be out of step
with it. The header is written before the first byte (what is coming), and once more after the last. Behind
it is a table of marks, one for each run that has verified the file: a mark is right or is not there, so it
needs neither checksum nor lock, and writers cannot spoil each other's.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from enum import IntEnum

__all__ = ["ABANDONED", "HEADER_BYTES", "MARK_BYTES", "Header", "State", "mark_of"]

# One page: what comes behind it is aligned, whatever is done with it.
HEADER_BYTES = 4096

MARK_BYTES = 32
_MARKS_FROM = 2048
_MARKS = (HEADER_BYTES - _MARKS_FROM) // MARK_BYTES

_MAGIC = b"asyncloader1\n\0\0\0"
# Magic, state, length of the ETag, size and sha256 of the shard; then the ETag, and the sha256 of all that.
_FIXED = struct.Struct("<16sHHQ32s")
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
    """

    state: State
    etag: str
    size: int
    sha256: bytes = bytes(32)

    @staticmethod
    def fits(etag: str) -> bool:
        """Whether there is room for this ETag."""
        return len(etag.encode()) <= _MOST_ETAG_BYTES

    def encode(self) -> bytes:
        etag = self.etag.encode()
        start = _FIXED.pack(_MAGIC, self.state, len(etag), self.size, self.sha256) + etag
        return start + hashlib.sha256(start).digest()

    @classmethod
    def parse(cls, page: bytes) -> Header | None:
        """The header at the start of ``page``; None if there is no sound one."""
        if len(page) < _FIXED.size:
            return None
        magic, state, etag_bytes, size, sha256 = _FIXED.unpack_from(page)
        end = _FIXED.size + etag_bytes
        if magic != _MAGIC or etag_bytes > _MOST_ETAG_BYTES or size > _MOST_BYTES or state > max(State):
            return None
        if page[end : end + _CHECKSUM_BYTES] != hashlib.sha256(page[:end]).digest():
            return None
        try:
            etag = page[_FIXED.size : end].decode()
        except UnicodeDecodeError:
            return None
        return cls(State(state), etag, size, sha256)


#: The last word of a download that was given up.
ABANDONED = Header(State.ABANDONED, "", 0)


def mark_of(header: Header, run: str) -> tuple[int, bytes]:
    """Where in the file the mark of ``run`` stands, and what it is.

    Two runs may meet in one place of a file; then the one that comes second verifies the file once more.
    """
    mark = hashlib.sha256(header.sha256 + run.encode()).digest()
    return _MARKS_FROM + mark[0] % _MARKS * MARK_BYTES, mark
