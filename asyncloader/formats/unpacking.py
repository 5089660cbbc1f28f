"""Shards that are compressed as a whole: what they become is checked against what an index promises.

Laws:

- A table or a sample, which has to be held in one piece, may not outgrow a bound that follows from the
  compressed bytes read so far, so that a bomb is refused. What does not have to be held may have any length.
- The length and the digest that an index promises of the decompressed shard are true, or an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..blocks import Block
from ..errors import FormatError
from ..types import Unpacked
from .decoder import Decoder
from .digest import Digest, extra_of, open_digest

_ADVICE = "it is damaged, or the index is: restore it, or write the index of the data set again"


class UnpackedDecoder(Decoder):
    """Check a decompressed shard in front of its decoder.

    Args:
        name: Name of the format, for messages.
        inner: The decoder of the format.
        promised: What the index promises; None if it promises nothing.

    Raises:
        ImportError: The digest that is promised needs a package.
    """

    def __init__(self, name: str, inner: Decoder, promised: Unpacked | None) -> None:
        self._name = name
        self._inner = inner
        self._promised = promised
        self._lengths = () if promised is None else (promised.size_bytes, promised.or_bytes)
        self._digest = _open_digest(name, promised)
        self._found = 0  # bytes

    @property
    def sample(self) -> int | None:
        return self._inner.sample

    def check_room(self, compressed_bytes: int) -> None:
        self._inner.check_room(compressed_bytes)

    def _decode(self, chunk: bytes | memoryview) -> Iterator[Block]:
        most = max((length for length in self._lengths if length is not None), default=None)
        wanted = len(chunk) if most is None else most - self._found
        self._found += min(len(chunk), wanted)
        if self._digest is not None:
            self._digest.update(chunk)
        # The samples before an error depend on the shard alone, not on how it is cut into chunks.
        yield from self._inner.feed(chunk[:wanted])
        if wanted < len(chunk):
            raise self._wrong_length("more")

    def finish(self) -> Iterator[Block]:
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
            sample=self._inner.sample,
        )


def _open_digest(name: str, promised: Unpacked | None) -> Digest | None:
    if promised is None or promised.hashed is None:
        return None
    algorithm = promised.hashed[0]
    digest = open_digest(algorithm)
    if digest is None:
        raise ImportError(
            f"{name}: the index promises only the {algorithm} of decompressed shards, which needs a package: "
            f"pip install asyncloader[{extra_of([algorithm])}]"
        )
    return digest


_MOST_LENGTH_BYTES = 5

# A copy of 64 bytes takes three, which is the largest ratio.
_MOST_SNAPPY_RATIO = 64 / 3

_PIECE_BYTES = 1 << 20


class SnappyDecoder(Decoder):
    """Decompress in front of another decoder.

    It holds the whole shard, compressed and then decompressed: a block of snappy has no parts.

    Args:
        inner: The decoder of the decompressed shard.
    """

    def __init__(self, inner: Decoder) -> None:
        self._inner = inner
        self._held = bytearray()

    def _decode(self, chunk: bytes | memoryview) -> Iterator[Block]:
        self._held += chunk
        yield from ()

    def finish(self) -> Iterator[Block]:
        whole = memoryview(_decompressed(self._held))
        self._held = bytearray()
        for at in range(0, len(whole), _PIECE_BYTES):
            yield from self._inner.feed(whole[at : at + _PIECE_BYTES])
        yield from self._inner.finish()


def _decompressed(content: bytearray) -> Any:
    """A block decompressed, as a buffer of pyarrow."""
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
