"""Bytes compressed in the ways that shards of MDS are, and bombs."""

from __future__ import annotations

import bz2
import gzip
import struct
from collections.abc import Callable

import brotli
import pyarrow
import zstandard

__all__ = ["COMPRESS", "zeros_behind"]


def _brotli(content: bytes) -> bytes:
    # With a small window, as its decoder hands out no less; and quickly.
    compressed: bytes = brotli.compress(content, quality=1, lgwin=16)
    return compressed


def _snappy(content: bytes) -> bytes:
    return bytes(pyarrow.Codec("snappy").compress(content))


#: By the end of the name of a shard. Nothing here has a checksum but gz and bz2, as with their own writer.
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "br": _brotli,
    "bz2": bz2.compress,
    "gz": gzip.compress,
    "snappy": _snappy,
    "zstd": zstandard.ZstdCompressor(write_checksum=False).compress,
}

_BLOCK_BYTES = 128 << 10
_RAW, _RLE, _LAST = 0, 1, 1


def zeros_behind(head: bytes, zeros: int) -> bytes:
    """A frame of zstd that becomes ``head``, and then zeros of which four bytes make 128 KiB."""
    assert len(head) < _BLOCK_BYTES and zeros % _BLOCK_BYTES == 0
    window = struct.pack("<IBB", 0xFD2FB528, 0, (20 - 10) << 3)
    block = (_BLOCK_BYTES << 3 | _RLE << 1).to_bytes(3, "little") + b"\0"
    last = (0 << 3 | _RAW << 1 | _LAST).to_bytes(3, "little")
    return (
        window
        + (len(head) << 3 | _RAW << 1).to_bytes(3, "little")
        + head
        + block * (zeros // _BLOCK_BYTES)
        + last
    )
