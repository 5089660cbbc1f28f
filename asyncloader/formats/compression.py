"""Decompression as a stream: gzip, zstd, xz, bzip2 and brotli in pieces of at most 1 MiB.

Laws:

- No piece is larger than 1 MiB, whatever the ratio: a bomb costs time, never memory. The length of
  the whole stream is not bounded here, because nothing keeps it.
- Members, frames and streams in a row are one stream; of brotli there is only one. Bytes that follow
  the last one raise, except for the zero padding that gzip and xz allow.
- A stream that stops before its own end marker and checksum is truncated, and raises.
- The output before corrupt bytes raise depends on the stream alone, not on how it was cut into
  chunks: a reader that skips the rest of a shard must skip the same after a resume.
"""

from __future__ import annotations

import bz2
import lzma
import sys
import zlib
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Any, TypeAlias

from ..blocks import Block, OffsetTrail
from ..errors import FormatError
from ..types import Buffer
from .decoder import ByteQueue, Decoder, ShardSpec, SkippingDecoder, describe_bytes

# What the zstd program accepts without --long: a frame header may claim a window of terabytes.
_ZSTD_WINDOW_LOG = 27


def zstd() -> Any:
    """The module ``compression.zstd`` of Python 3.14, or its backport."""
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd


def _open_zstd() -> Any:
    options = {zstd().DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG}
    return zstd().ZstdDecompressor(options=options)


def _open_brotli() -> Any:
    try:
        import brotli
    except ImportError as error:
        raise ImportError("reading brotli needs a package: pip install asyncloader[mds]") from error
    stream = brotli.Decompressor()
    if not hasattr(stream, "can_accept_more_data"):  # older ones have no bound on their output
        raise ImportError(f"reading brotli needs brotli 1.2 or later, found {brotli.__version__}")
    return stream


class BrotliStream:
    """Decompress one stream; the protocol of :class:`lzma.LZMADecompressor`.

    Bytes that follow the stream in the same call are an error of the stream.

    Raises:
        ImportError: The package is not installed, or too old.
    """

    unused_data = b""

    def __init__(self) -> None:
        self._stream = _open_brotli()
        self.needs_input = True

    @property
    def eof(self) -> bool:
        finished: bool = self._stream.is_finished()
        return finished

    def decompress(self, data: bytes, max_length: int) -> bytes:
        """The next output, of at most ``max_length``."""
        # Its buffer doubles until it is as long as the limit, or longer.
        output: bytes = self._stream.process(data, output_buffer_limit=max_length // 2)
        self.needs_input = self._stream.can_accept_more_data()
        return output


_PIECE_BYTES = 1 << 20
# Steps are counted from the first byte of the stream: if it is corrupt, a library drops the output of the
# same call. (A copy of zlib's object before each call would keep it, for a tenth of its time.) zlib returns
# the input that it did not consume as a new object, so a bomb copies its input once per piece; 64 KiB keep
# that small.
_STEP_BYTES = 1 << 16
# What `xz -9` asks for is 65 MiB; a header may claim a dictionary of 4 GiB.
_XZ_MEMORY_BYTES = 256 << 20


class _ZlibMember:
    """zlib's object with the protocol of its younger siblings."""

    def __init__(self, wbits: int) -> None:
        self._object = zlib.decompressobj(wbits)
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


# One gzip member, xz or bzip2 stream, or frame of zstd, which has the same methods.
_CompressedMember: TypeAlias = _ZlibMember | lzma.LZMADecompressor | bz2.BZ2Decompressor | BrotliStream
_Codec: TypeAlias = tuple[Callable[[], _CompressedMember], bytes, int]
# How to open a member, the bytes it may begin with, and the unit of zero padding between members.
_CODECS: dict[str, _Codec] = {
    "gzip": (partial(_ZlibMember, 31), b"\x1f", 1),
    "zstd": (_open_zstd, b"\x28" + bytes(range(0x50, 0x60)), 0),
    "xz": (partial(lzma.LZMADecompressor, lzma.FORMAT_XZ, _XZ_MEMORY_BYTES), b"\xfd", 4),
    "bzip2": (bz2.BZ2Decompressor, b"B", 0),
    # Their content does not identify them.
    "brotli": (BrotliStream, bytes(range(256)), 0),
    "deflate": (partial(_ZlibMember, -zlib.MAX_WBITS), bytes(range(256)), 0),
}
# Formats of one stream only: any byte may begin another, so bytes that follow would be read as one.
_ALONE = frozenset({"brotli", "deflate"})
_SIGNATURES = (
    ("gzip", b"\x1f\x8b\x08"),
    ("zstd", b"\x28\xb5\x2f\xfd"),
    ("xz", b"\xfd7zXZ\0"),
    # A text may begin with the three letters of its magic. So the magic of the first block (pi) or of the
    # end (the root of pi) is compared, too.
    *(("bzip2", b"BZh%d" % level + mark) for level in range(1, 10) for mark in (b"1AY&SY", b"\x17rE8P\x90")),
)
# The longest signature, bzip2's; as many bytes also tell a TFRecord from a gzip member that looks like it.
SIGNATURE_BYTES = 12


def compression_of(start: bytes) -> str | None:
    """The compression whose signature the shard begins with, or None.

    Args:
        start: The first ``SIGNATURE_BYTES`` bytes; fewer only if the shard is shorter.
    """
    if start[1:4] == b"\x2a\x4d\x18" and start[0] & 0xF0 == 0x50:
        return "zstd"  # a skippable frame
    for name, signature in _SIGNATURES:
        # A shard that is cut within the signature is recognized by four bytes of it.
        if start.startswith(signature) or (len(start) > 3 and signature.startswith(start)):
            return name
    return None


def describe_whole(start: bytes, what: str) -> str:
    """``describe_bytes`` for a format that is read in parts, which cannot be compressed as a whole."""
    if compression_of(start[:SIGNATURE_BYTES]) is None:
        return describe_bytes(start)
    return f"{describe_bytes(start)}; {what} is not supported when it is compressed as a whole: decompress it"


class Decompressor:
    """Feed compressed bytes, get pieces of at most 1 MiB.

    Args:
        name: "gzip", "zstd", "xz", "bzip2", "brotli" or "deflate".
        what: What is compressed, for messages.

    Attributes:
        fed: How many compressed bytes were used, the same for each piece in any chunking.
    """

    def __init__(self, name: str, what: str = "shard") -> None:
        self._name = name
        self._what = what
        self._open_member, self._first_bytes, self._pad_unit = _CODECS[name]
        self._member: _CompressedMember | None = None
        self._members = 0
        self._padding = 0
        self._held = ByteQueue()  # less than a step
        self.fed = 0  # without the bytes that are held
        self._produced = 0  # decompressed bytes

    def feed(self, chunk: bytes | memoryview) -> Iterator[bytes]:
        """The pieces that whole steps yield, one at a time; run it to its end before the next call.

        Args:
            chunk: The next bytes of the compressed stream.

        Returns:
            An iterator of pieces, none of them empty.

        Raises:
            FormatError: The stream is corrupt, or goes on after its end. The offset is that of the
                decompressed stream; the compressed one is in the message.
        """
        self._held.put(chunk)
        while self._held.size_bytes >= _STEP_BYTES:
            yield from self._step(_STEP_BYTES)

    def finish(self) -> Iterator[bytes]:
        """The pieces of what was held back, and a check that the stream has ended.

        Returns:
            As ``feed``.

        Raises:
            FormatError: The stream is truncated, or as by ``feed``.
        """
        yield from self._step(self._held.size_bytes)
        if self._member is not None or not self._members:
            raise self._fault("truncated" if self.fed else f"truncated: the {self._what} is empty")
        self._drop_padding(b"")

    def _step(self, size_bytes: int) -> Iterator[bytes]:
        """The pieces of so many bytes of those that are held."""
        step = b"".join(self._held.take(size_bytes))
        self.fed += size_bytes
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

    def _expand(self, member: _CompressedMember, step: bytes) -> Generator[bytes, None, bytes]:
        """Yield what ``step`` decompresses to; returns what of it follows the member."""
        while True:
            try:
                piece = member.decompress(step, _PIECE_BYTES)
            except MemoryError:
                raise
            except Exception as error:  # each library has a type of its own
                # brotli's library gets the stream and the bytes behind it in one call.
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
            f"{self._name}: {what}, before byte {self.fed} of the compressed {self._what}; write or copy it "
            "again",
            offset=self._produced,
        )


class CompressedDecoder(Decoder):
    """Decompress in front of another decoder.

    Trails have no byte offsets: decompression cannot start in the middle, so a position in such a
    shard is a sample index only, and reopening reads the shard from its start.

    Args:
        inner: The decoder of the decompressed shard.
        name: "gzip", "zstd", "xz", "bzip2" or "brotli".
    """

    def __init__(self, inner: Decoder, name: str) -> None:
        self._inner = inner
        self._decompressor = Decompressor(name)

    def _decode(self, chunk: bytes | memoryview) -> Iterator[Block]:
        return self._decode_pieces(self._decompressor.feed(chunk))

    def finish(self) -> Iterator[Block]:
        yield from self._decode_pieces(self._decompressor.finish())
        yield from map(_without_ends, self._inner.finish())

    def _decode_pieces(self, pieces: Iterator[bytes]) -> Iterator[Block]:
        try:
            for piece in pieces:
                yield from map(_without_ends, self._inner.feed(piece))
                self._inner.check_room(self._decompressor.fed)
        except FormatError as error:
            if error.sample is None:
                error.sample = self._inner.sample
            raise


def _without_ends(block: Block) -> Block:
    if isinstance(block.trail, OffsetTrail):
        block.trail.ends = None
    return block


class SniffingDecoder(Decoder):
    """Decompress if the first bytes show that the shard is compressed.

    Args:
        make_inner: Makes the decoder of the uncompressed format.
        named: The compression that the shard's name states. A shard of no bytes is a truncated stream of it:
            no compression turns an empty file into no bytes.
        is_plain: See ``open_stream``.
    """

    def __init__(
        self,
        make_inner: Callable[[], Decoder],
        named: str | None = None,
        is_plain: Callable[[bytes], bool] | None = None,
    ) -> None:
        self._make_inner = make_inner
        self._named = named
        self._is_plain = is_plain
        self._start = b""
        self._inner: Decoder | None = None

    def feed(self, chunk: Buffer) -> Iterator[Block]:
        # Nothing is left to do with what comes behind the signature.
        return super().feed(chunk) if self._inner is None else self._inner.feed(chunk)

    def _decode(self, chunk: bytes | memoryview) -> Iterator[Block]:
        chunk = b"".join((self._start, chunk)) if self._start else chunk
        if len(chunk) < SIGNATURE_BYTES:
            self._start = bytes(chunk)
            return
        self._start = b""
        self._inner = self._choose(bytes(chunk[:SIGNATURE_BYTES]))
        yield from self._inner.feed(chunk)

    def finish(self) -> Iterator[Block]:
        if self._inner is None:
            self._inner = self._choose(self._start)  # less than a signature
            yield from self._inner.feed(self._start)
        yield from self._inner.finish()

    def _choose(self, start: bytes) -> Decoder:
        inner = self._make_inner()
        compression = compression_of(start) if start else self._named
        if compression is None or (self._is_plain is not None and self._is_plain(start)):
            return inner
        return CompressedDecoder(inner, compression)


def open_stream(
    spec: ShardSpec, make: Callable[..., Decoder], is_plain: Callable[[bytes], bool] | None = None
) -> Decoder:
    """The decoder of a shard that is read from front to back, compressed as a whole or not.

    The first bytes show whether the shard is compressed, whatever its name is: servers may compress or
    decompress a file while they send it. Only uncompressed shards have positions with a byte offset, so with
    ``start_byte`` the first bytes are not looked at.

    Args:
        spec: Where to begin.
        make: Makes the decoder of the format, from ``start_sample`` and ``start_byte``.
        is_plain: Whether the first ``SIGNATURE_BYTES`` are the format's own, for a format whose shards may
            begin like compressed ones.
    """
    if spec.start_byte:
        opened = make(start_sample=spec.start_sample, start_byte=spec.start_byte)
        return SkippingDecoder(opened, spec.skip, spec.start_sample) if spec.skip else opened
    sniffing = SniffingDecoder(make, named=spec.compression, is_plain=is_plain)
    return SkippingDecoder(sniffing, spec.first_sample) if spec.first_sample else sniffing
