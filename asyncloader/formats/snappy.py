"""Shards compressed by snappy as one block, which is decompressed when all of it is there.

https://github.com/google/snappy/blob/main/format_description.txt: the length of what comes out, then copies
and literals. What is claimed is held against the most that so many bytes can be, before room is made for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..blocks import Block
from ..errors import FormatError
from ._push import PushDecoder
from .decoder import Decoder

__all__ = ["SnappyDecoder"]

_MOST_LENGTH_BYTES = 5

# A copy of 64 bytes takes three; nothing else takes less for what it makes.
_MOST_RATIO = 64 / 3

_PIECE_BYTES = 1 << 20


class SnappyDecoder(PushDecoder):
    """Decompress in front of another decoder.

    Holds the shard compressed, and in the end decompressed too: snappy's block has no parts.

    Args:
        inner: Decoder of what comes out.
    """

    def __init__(self, inner: Decoder) -> None:
        super().__init__()
        self._inner = inner
        self._held = bytearray()

    def _decode(self, chunk: bytes | memoryview) -> Iterator[Block]:
        self._held += chunk
        yield from ()

    def _decode_end(self) -> Iterator[Block]:
        whole = memoryview(_decompressed(self._held))
        self._held = bytearray()
        for at in range(0, len(whole), _PIECE_BYTES):
            yield from self._inner.feed(whole[at : at + _PIECE_BYTES])
        yield from self._inner.finish()


def _decompressed(content: bytearray) -> Any:
    """What a block is, as a buffer of pyarrow."""
    claimed, at = 0, 0
    while True:
        if at == min(_MOST_LENGTH_BYTES, len(content)):
            what = "corrupt data: no length at the beginning" if at == _MOST_LENGTH_BYTES else "truncated"
            raise FormatError(f"snappy: {what}", offset=0)
        claimed |= (content[at] & 0x7F) << 7 * at
        at += 1
        if content[at - 1] < 0x80:
            break
    if claimed > (len(content) - at) * _MOST_RATIO:
        raise FormatError(
            f"snappy: truncated, or corrupt data: {len(content)} bytes cannot be the {claimed} that they "
            f"claim",
            offset=0,
        )
    try:
        import pyarrow
    except ImportError as error:
        raise ImportError("reading snappy needs a package: pip install asyncloader[mds]") from error
    try:
        return pyarrow.Codec("snappy").decompress(content, decompressed_size=claimed)
    except (pyarrow.ArrowException, OSError) as error:
        raise FormatError(f"snappy: truncated, or corrupt data: {error}", offset=0) from error
