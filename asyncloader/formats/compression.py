"""Decompression as a stream: gzip, zstd, xz, bzip2 and brotli in pieces of at most 1 MiB.

Laws:

- No piece is larger than 1 MiB, whatever the ratio: a bomb costs time, never memory. How long the
  whole stream gets is not bounded here, because nothing keeps it.
- Members, frames and streams in a row are one stream, but for brotli's, of which there is one. What
  follows the last one raises, except for the zero padding that gzip and xz allow.
- A stream that stops before its own end marker and checksum is truncated, and raises.
- What comes out before corrupt bytes raise goes by the stream alone, and not by how it was cut into
  chunks: who skips the rest of a shard must skip the same after a resume.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from typing import Protocol

from ..blocks import Block, OffsetTrail
from ..errors import FormatError
from ..types import Buffer
from ._brotli import BrotliStream
from ._push import PushDecoder
from ._zstd import ZstdFrame
from .decoder import Decoder

__all__ = ["SIGNATURE_BYTES", "CompressedDecoder", "Decompressor", "compression_of"]

_PIECE_BYTES = 1 << 20
# Of the stream, from its first byte on: where one is corrupt a library keeps back what the same call had
# made before, which a copy of zlib's object before each call would save, for a tenth of its time. zlib
# hands back what it did not consume as a new object, so a bomb copies its input once per piece; with 64 KiB
# at a time that stays small.
_STEP_BYTES = 1 << 16
# What `xz -9` asks for is 65 MiB; a header may claim a dictionary of 4 GiB.
_XZ_MEMORY_BYTES = 256 << 20


class _Member(Protocol):
    """One gzip member, zstd frame, xz or bzip2 stream; the stdlib's decompressor protocol."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class _GzipMember:
    """zlib's object with the protocol of its younger siblings."""

    def __init__(self) -> None:
        self._object = zlib.decompressobj(wbits=31)
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._object.eof

    @property
    def unused_data(self) -> bytes:
        return self._object.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        piece = self._object.decompress(self._object.unconsumed_tail + data, max_length)
        # A full piece may leave output inside zlib although all input is consumed.
        self.needs_input = not self._object.unconsumed_tail and len(piece) < max_length
        return piece


def _xz_member() -> _Member:
    return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_BYTES)


_Codec = tuple[Callable[[], _Member], bytes, int]
# How to open a member, the bytes it may begin with, and the unit of zero padding between members.
_CODECS: dict[str, _Codec] = {
    "gzip": (_GzipMember, b"\x1f", 1),
    "zstd": (ZstdFrame, b"\x28" + bytes(range(0x50, 0x60)), 0),
    "xz": (_xz_member, b"\xfd", 4),
    "bzip2": (bz2.BZ2Decompressor, b"B", 0),
    # Nothing tells it by its content: only who is told may open it.
    "brotli": (BrotliStream, bytes(range(256)), 0),
}
# Of which there is one, since any byte may begin another: what follows it would be read as such.
_ALONE = frozenset({"brotli"})
_SIGNATURES = (
    ("gzip", b"\x1f\x8b\x08"),
    ("zstd", b"\x28\xb5\x2f\xfd"),
    ("xz", b"\xfd7zXZ\0"),
    # Its magic alone are three letters, with which a text may begin; so with the first block's magic
    # (pi) or the end's (the root of pi).
    *(("bzip2", b"BZh%d" % level + mark) for level in range(1, 10) for mark in (b"1AY&SY", b"\x17rE8P\x90")),
)
SIGNATURE_BYTES = 10


def compression_of(start: bytes) -> str | None:
    """The compression whose signature the shard begins with, or None.

    Args:
        start: The first ``SIGNATURE_BYTES`` bytes; fewer only if the shard has no more.
    """
    if start[1:4] == b"\x2a\x4d\x18" and start[0] & 0xF0 == 0x50:
        return "zstd"  # a skippable frame
    for name, signature in _SIGNATURES:
        # From four bytes on a shard cut within the signature is still known by it.
        if start.startswith(signature) or (len(start) > 3 and signature.startswith(start)):
            return name
    return None


class Decompressor:
    """Feed compressed bytes, get pieces of at most 1 MiB.

    Args:
        name: "gzip", "zstd", "xz", "bzip2" or "brotli".

    Attributes:
        fed: How many compressed bytes it has looked at, the same for each piece in any chunking.

    Raises:
        ValueError: Another name.
    """

    def __init__(self, name: str) -> None:
        if name not in _CODECS:
            raise ValueError(f"compression must be one of {', '.join(_CODECS)}, not {name!r}")
        self._name = name
        self._open_member, self._first_bytes, self._pad_unit = _CODECS[name]
        self._member: _Member | None = None
        self._members = 0
        self._padding = 0
        self._held = bytearray()  # less than a step
        self.fed = 0  # compressed bytes, those held not yet
        self._produced = 0  # decompressed bytes

    def feed(self, chunk: Buffer) -> Iterator[bytes]:
        """The pieces that whole steps yield, one at a time; run it to its end before the next call.

        Args:
            chunk: The next bytes of the compressed stream.

        Returns:
            An iterator of pieces, none of them empty.

        Raises:
            FormatError: The stream is corrupt, or goes on after its end. The offset is that of the
                decompressed stream; the compressed one is in the message.
        """
        at = 0
        if self._held:
            at = min(_STEP_BYTES - len(self._held), len(chunk))
            self._held += chunk[:at]
            if len(self._held) < _STEP_BYTES:
                return
            yield from self._take_step()
        while len(chunk) - at >= _STEP_BYTES:
            at += _STEP_BYTES
            yield from self._step(bytes(chunk[at - _STEP_BYTES : at]))
        self._held += chunk[at:]

    def finish(self) -> Iterator[bytes]:
        """The pieces of what was held back, and a check that the stream has ended.

        Returns:
            As ``feed``.

        Raises:
            FormatError: The stream is truncated, or as by ``feed``.
        """
        yield from self._take_step()
        if self._member is not None or not self._members:
            raise self._fault("truncated" if self.fed else "truncated: the shard is empty")
        self._drop_padding(b"")

    def _take_step(self) -> Iterator[bytes]:
        step = bytes(self._held)
        self._held.clear()
        yield from self._step(step)

    def _step(self, step: bytes) -> Iterator[bytes]:
        self.fed += len(step)
        while step:
            if self._member is None:
                step = self._drop_padding(step)
                if not step:
                    break
                is_over = self._members > 0 and self._name in _ALONE
                if is_over or step[0] not in self._first_bytes:
                    raise self._fault("trailing garbage" if self._members else "corrupt data")
                self._member = self._open_member()
            step = yield from self._expand(self._member, step)

    def _drop_padding(self, step: bytes) -> bytes:
        if self._pad_unit and self._members:
            rest = step.lstrip(b"\0")
            self._padding += len(step) - len(rest)
            if (rest or not step) and self._padding % self._pad_unit:
                raise self._fault(f"padding of {self._padding} bytes, not a multiple of {self._pad_unit}")
            step = rest
        return step

    def _expand(self, member: _Member, step: bytes) -> Generator[bytes, None, bytes]:
        """Yield what ``step`` decompresses to; returns what of it follows the member."""
        while True:
            try:
                piece = member.decompress(step, _PIECE_BYTES)
            # bz2 raises OSError, ZstdFrame ValueError.
            except (zlib.error, lzma.LZMAError, OSError, ValueError) as error:
                # A stream of brotli and what follows it come to its library in one call.
                may_follow = self._members > 0 or self._name in _ALONE
                what = "corrupt data or trailing garbage" if may_follow else "corrupt data"
                raise self._fault(f"{what}: {error}") from error
            step = b""
            if piece:
                self._produced += len(piece)
                yield piece
            if member.eof:
                self._member = None
                self._members += 1
                self._padding = 0
                return member.unused_data
            if member.needs_input:
                return b""

    def _fault(self, what: str) -> FormatError:
        return FormatError(
            f"{self._name}: {what}, before byte {self.fed} of the compressed shard", offset=self._produced
        )


class CompressedDecoder(PushDecoder):
    """Decompress in front of another decoder.

    Trails have no byte offsets: decompression cannot start in the middle, so a position in such a
    shard is a sample index only, and reopening reads the shard from its start.

    Args:
        inner: Decoder of what comes out.
        name: "gzip", "zstd", "xz", "bzip2" or "brotli".
        check: Called behind each piece with the number of compressed bytes up to there, and may raise.

    Raises:
        ValueError: Another name.
    """

    def __init__(self, inner: Decoder, name: str, check: Callable[[int], None] | None = None) -> None:
        super().__init__()
        self._inner = inner
        self._decompressor = Decompressor(name)
        self._check = check

    def _decode(self, chunk: bytes | memoryview) -> Iterator[Block]:
        yield from self._hand_on(self._decompressor.feed(chunk))

    def _decode_end(self) -> Iterator[Block]:
        yield from self._hand_on(self._decompressor.finish())
        yield from map(_without_ends, self._inner.finish())

    def _hand_on(self, pieces: Iterator[bytes]) -> Iterator[Block]:
        for piece in pieces:
            yield from map(_without_ends, self._inner.feed(piece))
            if self._check is not None:
                self._check(self._decompressor.fed)


def _without_ends(block: Block) -> Block:
    trail = block.trail
    return block.follow(replace(trail, ends=None)) if isinstance(trail, OffsetTrail) else block
