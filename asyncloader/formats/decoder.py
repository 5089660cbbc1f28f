"""What a format's decoder does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol, TypeAlias

from ..blocks import Block
from ..errors import FormatError
from ..types import Buffer

__all__ = ["Decoder", "PassOver"]

PassOver: TypeAlias = Callable[[FormatError], None]
"""Takes note of a sample that does not decode, which is passed over then."""


class Decoder(Protocol):
    """Feed the bytes of one shard in any chunking, get blocks of samples; no I/O, no await.

    Both methods yield blocks as they come, so that a chunk which expands (decompression) is never
    held expanded as a whole. Empty blocks are not yielded.
    """

    def feed(self, chunk: Buffer) -> Iterator[Block]:
        """The samples that ``chunk`` completes. Raises FormatError with offset and sample."""
        ...

    def check_room(self, compressed_bytes: int) -> None:
        """Refuse a sample that has grown too large, where the shard is compressed.

        Args:
            compressed_bytes: How much of the compressed shard has become what was fed.

        Raises:
            FormatError: More than that may become is held of the sample that is being read.
        """
        ...

    def finish(self) -> Iterator[Block]:
        """The samples left at the end of the shard. Raises FormatError if it is truncated."""
        ...
