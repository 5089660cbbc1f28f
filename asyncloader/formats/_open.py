"""What `open_decoder` puts in front of a format's decoder: sniffing, and skipping to a position."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..blocks import Block
from ..errors import FormatError
from ._push import PushDecoder
from .compression import SIGNATURE_BYTES, CompressedDecoder, compression_of
from .decoder import Decoder

__all__ = ["SkippingDecoder", "SniffingDecoder"]


class SniffingDecoder(PushDecoder):
    """Decide by the first bytes whether to decompress.

    Args:
        make_inner: Makes the decoder of the uncompressed format.
        check: See ``CompressedDecoder``; by default the inner decoder's ``check_room``. Not called where
            nothing is decompressed.
        named: The compression that the shard's name tells. A shard of no bytes is a truncated stream of it:
            no compression makes nothing of an empty file.
    """

    def __init__(
        self,
        make_inner: Callable[[], Decoder],
        check: Callable[[int], None] | None = None,
        named: str | None = None,
    ) -> None:
        super().__init__()
        self._make_inner = make_inner
        self._check = check
        self._named = named
        self._start = b""
        self._inner: Decoder | None = None

    def _decode(self, chunk: bytes | memoryview) -> Iterator[Block]:
        if self._inner is None:
            chunk = b"".join((self._start, chunk)) if self._start else chunk
            if len(chunk) < SIGNATURE_BYTES:
                self._start = bytes(chunk)
                return
            self._start = b""
            self._inner = self._choose(bytes(chunk[:SIGNATURE_BYTES]))
        yield from self._inner.feed(chunk)

    def _decode_end(self) -> Iterator[Block]:
        if self._inner is None:
            self._inner = self._choose(self._start)  # less than a signature
            yield from self._inner.feed(self._start)
        yield from self._inner.finish()

    def _choose(self, start: bytes) -> Decoder:
        inner = self._make_inner()
        compression = compression_of(start) if start else self._named
        if compression is None:
            return inner
        return CompressedDecoder(inner, compression, self._check or inner.check_room)


class SkippingDecoder(PushDecoder):
    """Drop the samples before those that are wanted, where a decoder cannot begin at these.

    Args:
        inner: The decoder.
        count: Samples to drop.
        first: Index in the shard of the first one of them.
    """

    def __init__(self, inner: Decoder, count: int, first: int = 0) -> None:
        super().__init__()
        self._inner = inner
        self._wanted = first + count
        self._reached = first

    def _decode(self, chunk: bytes | memoryview) -> Iterator[Block]:
        return self._drop(self._inner.feed(chunk))

    def _decode_end(self) -> Iterator[Block]:
        yield from self._drop(self._inner.finish())
        if self._reached < self._wanted:
            raise FormatError(
                f"expected at least {self._wanted} samples, as many come before those to read or were read "
                f"from it before; found {self._reached}: the shard has changed"
            )

    def _drop(self, blocks: Iterator[Block]) -> Iterator[Block]:
        for block in blocks:
            if self._reached < self._wanted:
                # By their indices: those that were passed over have one, and are in no block.
                begins = block.trail.place(0).sample
                self._reached = begins + len(block)
                if self._reached <= self._wanted:
                    continue
                if begins < self._wanted:
                    block = block.part(self._wanted - begins, len(block))
            yield block
