"""What every decoder shares: one feed at a time, and blocks that stay small.

``feed`` and ``finish`` return iterators, and bytes are lost if one is dropped half-way. So the next
call insists that the last one was run to its end; a decoder that raised is closed for good.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

from ..blocks import Block
from ..types import Buffer

__all__ = [
    "LFS_POINTER",
    "MAX_BLOCK_BYTES",
    "MAX_BLOCK_SAMPLES",
    "PushDecoder",
    "describe_bytes",
    "most_unpacked",
]

# A block is what a queue hop costs once and what the memory budget counts by: 1024 samples make the
# hop's cost per sample vanish, and 8 MiB is small against any budget worth having.
MAX_BLOCK_SAMPLES = 1024
MAX_BLOCK_BYTES = 8 << 20


# What one piece may become that is decompressed, or a hundred times what has come of the shard: no training
# sample is known to shrink by more, but small ones and masks.
_MOST_UNPACKED_BYTES = 256 << 20
_MOST_RATIO = 100


def most_unpacked(compressed_bytes: int) -> int:
    """How many bytes may have to be held in one piece, by how much of a compressed shard has come."""
    return max(_MOST_UNPACKED_BYTES, _MOST_RATIO * compressed_bytes)


class PushDecoder(ABC):
    """Base of the decoders: checks the order of calls, leaves the bytes to the subclass."""

    def __init__(self) -> None:
        self._idle = True

    def feed(self, chunk: Buffer) -> Iterator[Block]:
        """The samples that ``chunk`` completes.

        Args:
            chunk: The next bytes of the shard, any number of them. The decoder may keep views of them until
                the samples that they belong to are complete. Nothing that comes out refers to their memory,
                which is used again when nobody looks at it.

        Returns:
            An iterator of blocks; it must be run to its end before the next call.

        Raises:
            FormatError: The bytes are not what the format promises. Samples completed before the
                fault are yielded first. The decoder cannot be used any more.
            RuntimeError: The iterator of the call before was not run to its end, or raised.
        """
        self._claim()
        return self._release_after(self._decode(chunk if type(chunk) is bytes else memoryview(chunk)))

    def finish(self) -> Iterator[Block]:
        """The samples left at the end of the shard; call it once, after the last byte.

        Returns:
            An iterator of blocks.

        Raises:
            FormatError: The shard is truncated.
            RuntimeError: As for :meth:`feed`.
        """
        self._claim()
        return self._decode_end()

    def check_room(self, compressed_bytes: int) -> None:
        """See ``Decoder.check_room``."""
        return  # most have a bound of their own, which is as low

    def _claim(self) -> None:
        if not self._idle:
            raise RuntimeError(
                "decoder is closed or busy: run each feed() to its end before the next call, "
                "call finish() once, and open a new decoder after an error"
            )
        self._idle = False

    def _release_after(self, blocks: Iterator[Block]) -> Iterator[Block]:
        yield from blocks
        self._idle = True

    @abstractmethod
    def _decode(self, chunk: bytes | memoryview) -> Iterator[Block]: ...

    @abstractmethod
    def _decode_end(self) -> Iterator[Block]: ...


LFS_POINTER = b"version https://git-lfs"
"""How the file begins that Git keeps in the place of a large one."""

_SIGNATURES = (
    (b"<", "a web page or an XML listing"),
    (b"{", "JSON"),
    (b"[", "JSON"),
    (LFS_POINTER, "a Git LFS pointer: the file itself was not downloaded"),
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"\xfd7zXZ", "xz"),
    (b"BZh", "bzip2"),
    (b"PK\x03\x04", "a zip archive"),
    (b"PAR1", "Parquet"),
)


def describe_bytes(start: bytes) -> str:
    """A half sentence on what ``start`` looks like instead, or "" if it looks like nothing known."""
    text = start[:64].removeprefix(b"\xef\xbb\xbf").lstrip()
    for signature, what in _SIGNATURES:
        if text.startswith(signature):
            return f"; the bytes look like {what}"
    return ""
