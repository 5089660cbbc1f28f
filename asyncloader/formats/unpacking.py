"""Shards that are compressed as a whole: what they become is held against what is known of it.

Laws:

- What has to be held in one piece, the table or a sample, is bounded by what the shard has compressed: a bomb
  is refused when it has grown to that. What need not be held may be of any length.
- What an index promises of the decompressed shard, its length and a digest, is true, or an error.
- An error says which sample was being read, if there was one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from ..blocks import Block
from ..errors import FormatError
from ..types import Unpacked
from .compression import SniffingDecoder
from .decoder import Decoder
from .digest import Digest, extra_of, open_digest
from .offsets import TableDecoder

Check: TypeAlias = Callable[[int], None]
"""Called behind each piece that was decompressed, with the number of compressed bytes up to there."""

# A sample, as a page of Parquet; and the table, of which there are copies while it is read, of 4 million
# samples. Or a hundred times what has come of the shard.
_MOST_BYTES = 256 << 20
_MOST_TABLE_BYTES = 16 << 20
_MOST_RATIO = 100

_ADVICE = "it is damaged, or the index is: restore it, or write the index of the data set anew"


def sniffed(inner: Decoder, check: Check) -> Decoder:
    """Decompress in front of ``inner`` if the shard is compressed still: servers may unpack what they send.

    Never for shards that are not compressed by their name: one of 559,903 samples begins as gzip does.
    """
    return SniffingDecoder(lambda: inner, check)


class UnpackingDecoder(Decoder):
    """Decompress a shard in front of the decoder of what it becomes.

    Args:
        name: Of the format, for messages.
        unpack: Puts a decoder that decompresses in front of another one, and has the check called.
        inner: Decoder of what comes out.
        promised: What that should be; None if nobody says.

    Raises:
        ImportError: A digest is promised that needs a package.
    """

    def __init__(
        self,
        name: str,
        unpack: Callable[[Decoder, Check], Decoder],
        inner: TableDecoder,
        promised: Unpacked | None,
    ) -> None:
        super().__init__()
        self._inner = inner
        unpacked = _UnpackedDecoder(name, inner, promised)
        self._outer = unpack(unpacked, unpacked.check_room)

    def _decode(self, chunk: bytes | memoryview) -> Iterator[Block]:
        return self._naming_the_sample(self._outer.feed(chunk))

    def _decode_end(self) -> Iterator[Block]:
        return self._naming_the_sample(self._outer.finish())

    def _naming_the_sample(self, blocks: Iterator[Block]) -> Iterator[Block]:
        try:
            yield from blocks
        except FormatError as error:
            if error.sample is None:
                error.sample = self._inner.sample
            raise


class _UnpackedDecoder(Decoder):
    """What comes out, on its way to its decoder."""

    def __init__(self, name: str, inner: TableDecoder, promised: Unpacked | None) -> None:
        super().__init__()
        self._name = name
        self._inner = inner
        self._promised = promised
        self._lengths = () if promised is None else (promised.size_bytes, promised.or_bytes)
        self._digest = _open_digest(name, promised)
        self._found = 0  # bytes

    def check_room(self, compressed_bytes: int) -> None:
        """Hold what has to be held in one piece against what is reasonable."""
        inner = self._inner
        most = max(_MOST_BYTES if inner.has_table else _MOST_TABLE_BYTES, _MOST_RATIO * compressed_bytes)
        if inner.held_bytes > most:
            what = "a sample" if inner.has_table else "the table"
            raise FormatError(
                f"{self._name}: {compressed_bytes} compressed bytes have become {self._found}, of which "
                f"{what} takes more than {most}: the shard is damaged, or made to use up memory",
                offset=self._found - inner.held_bytes,
            )

    def _decode(self, chunk: bytes | memoryview) -> Iterator[Block]:
        most = max((length for length in self._lengths if length is not None), default=None)
        wanted = len(chunk) if most is None else most - self._found
        self._found += min(len(chunk), wanted)
        if self._digest is not None:
            self._digest.update(chunk)
        # What comes of it goes by the shard alone, and not by how it is cut.
        yield from self._inner.feed(chunk[:wanted])
        if wanted < len(chunk):
            raise self._wrong_length("more")

    def _decode_end(self) -> Iterator[Block]:
        yield from self._inner.finish()
        if self._promised is None:
            return
        if self._found not in self._lengths:
            raise self._wrong_length(f"{self._found}")
        if self._digest is None or self._promised.hashed is None:
            return
        algorithm, wanted = self._promised.hashed
        if (found := self._digest.digest()) != wanted:
            raise FormatError(
                f"{self._name}: the index promises the {algorithm} {wanted.hex()} of this shard when it is "
                f"decompressed, found {found.hex()}; {_ADVICE}"
            )

    def _wrong_length(self, found: str) -> FormatError:
        assert self._promised is not None
        return FormatError(
            f"{self._name}: the index promises {self._promised.size_bytes} bytes of this shard when it is "
            f"decompressed, found {found}; {_ADVICE}",
            offset=self._found,
        )


def _open_digest(name: str, promised: Unpacked | None) -> Digest | None:
    if promised is None or promised.hashed is None:
        return None
    algorithm = promised.hashed[0]
    digest = open_digest(algorithm)
    if digest is None:
        raise ImportError(
            f"{name}: the index promises only the {algorithm} of what shards become when they are "
            f"decompressed, which needs a package: pip install asyncloader[{extra_of([algorithm])}]"
        )
    return digest


_MOST_LENGTH_BYTES = 5

# A copy of 64 bytes takes three; nothing else takes less for what it makes.
_MOST_SNAPPY_RATIO = 64 / 3

_PIECE_BYTES = 1 << 20


class SnappyDecoder(Decoder):
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
    if claimed > (len(content) - at) * _MOST_SNAPPY_RATIO:
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
