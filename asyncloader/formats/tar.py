"""Tar shards in the WebDataset layout: ``key.field`` members, adjacent ones with one key a sample.

Laws:

- A wrong header never ends the shard quietly and never yields wrong bytes: it raises.
- A shard without an end marker is truncated, even if it stops just between two members: that is
  what a cut download looks like, and readers that took it for the end have lost samples silently.
- A body is copied once, from the chunk into its own ``bytes``; a large one as its chunks come, so that it
  is never held twice.
"""

from __future__ import annotations

import io
from collections.abc import Iterator

from ..blocks import Block
from ..errors import FormatError
from ._push import PushDecoder, describe_bytes, most_unpacked
from ._tar_header import BLOCK
from ._tar_members import read_members
from ._tar_samples import SampleGroups

__all__ = ["TarDecoder"]

# Pieces of less than this wait for the last one and are joined, which is faster than to grow a buffer.
_GATHER_BYTES = 8 << 20


class TarDecoder(PushDecoder):
    """Decode a tar shard into samples ``{"__key__": key, field: bytes, ...}``.

    The key is the directory and the base name up to its first dot, the field the rest in lower case:
    ``a/b.seg.PNG`` is field ``seg.png`` of sample ``a/b``. Names without a field and names that start
    with a dot are skipped, and so is all that is no regular file: directories, devices, links (a
    hard link holds no bytes of its own; write such shards with ``tar --hard-dereference``).
    V7, ustar, GNU and PAX headers are read; sparse members are expanded, by at most 256 MiB of zeros
    a sample.

    The end of a tar is two zero blocks. One zero block at the end of the input is accepted, as by GNU
    tar, because it proves that the writer had finished; none is a truncated shard.

    Args:
        start_sample: Index in the shard of the first sample to come.
        start_byte: Offset of the first byte that will be fed, taken from a trail together with
            ``start_sample``; offsets in trails and errors stay those of the whole shard.
        max_member_bytes: Most bytes that a member, and a sample with its headers, may have. The
            default of 4 GiB is above any sample that fits a batch, and low enough that a header which
            claims more is caught before memory is filled.

    Raises:
        ValueError: A negative argument.
    """

    def __init__(
        self, *, start_sample: int = 0, start_byte: int = 0, max_member_bytes: int = 4 << 30
    ) -> None:
        super().__init__()
        if min(start_sample, start_byte, max_member_bytes) < 0:
            raise ValueError("start_sample, start_byte and max_member_bytes must be 0 or more")
        self._samples = SampleGroups(start_sample, max_member_bytes)
        self._parser = read_members(self._samples, start_byte)
        self._need = next(self._parser)
        self._skip = 0  # bytes to drop before the needed ones
        self._pieces: list[bytes | memoryview] = []
        self._large: io.BytesIO | None = None  # in place of the pieces
        self._held = 0  # bytes of the needed ones that are there
        self._start = start_byte
        self._fed = start_byte

    def check_room(self, compressed_bytes: int) -> None:
        # Of the member that is being read the sample counts what its header claims.
        held = self._samples.sample_bytes - max(self._need - self._held, 0)
        if held <= (most := most_unpacked(compressed_bytes)):
            return
        error = FormatError(
            f"tar: {compressed_bytes} bytes of the compressed shard have become a sample of more than {most} "
            "bytes: it is damaged, or made to use up memory; if it is meant, write it without compression"
        )
        self._locate(error)
        raise error

    def _decode(self, chunk: bytes | memoryview) -> Iterator[Block]:
        samples = self._samples
        send = self._parser.send
        size = len(chunk)
        self._fed += size
        try:
            at = self._complete_pending(chunk)
            need = self._need
            while (end := at + need) <= size:
                if need >= 0:
                    piece = bytes(chunk[at:end])
                    at = end + (-need & 511)
                    need = send(piece)
                else:
                    at += -need + (need & 511)
                    need = send(b"")
                if samples.full:
                    yield from self._take()
            self._need = need
        except FormatError as error:
            yield from self._take()
            self._locate(error)
            raise
        self._skip = max(at - size, 0)
        if at < size:
            # A view pins the chunk instead of copying the piece now and again in the join.
            self._hold(memoryview(chunk)[at:] if size - at > BLOCK else bytes(chunk[at:]))
        yield from self._take()

    def _complete_pending(self, chunk: bytes | memoryview) -> int:
        """Drop what is to be skipped, finish the piece begun before; where to go on in ``chunk``."""
        if self._skip >= len(chunk):
            return self._skip
        at = self._skip
        if not self._held:
            return at
        end = at + self._need - self._held
        if end > len(chunk):
            return at
        self._hold(memoryview(chunk)[at:end])
        # Not copied: the buffer is a ``bytes`` of its own, handed out by whoever lets go of it.
        whole = b"".join(self._pieces) if self._large is None else self._large.getvalue()
        self._pieces = []
        self._large = None
        self._held = 0
        at = end + (-self._need & 511)
        self._need = self._parser.send(whole)
        return at

    def _hold(self, piece: bytes | memoryview) -> None:
        self._held += len(piece)
        if self._large is not None:
            self._large.write(piece)
            return
        self._pieces.append(piece)
        if self._held >= _GATHER_BYTES:
            # Grows with what comes, not to the length that a header claims.
            self._large = io.BytesIO()
            self._large.writelines(self._pieces)
            self._pieces = []

    def _decode_end(self) -> Iterator[Block]:
        samples = self._samples
        yield from self._take()
        rest = b"".join(self._pieces) if self._need == BLOCK else b""
        if samples.ended and not rest.strip(b"\0"):
            return
        if samples.ended:
            error = FormatError("tar: trailing garbage: expected zeros up to the end, found other bytes")
        elif self._fed == 0:
            error = FormatError("tar: truncated: the shard is empty")
        else:
            place = "within a member" if self._held or self._skip else "before its end marker"
            hint = describe_bytes(rest) if self._fed < BLOCK else ""
            error = FormatError(f"tar: truncated: the shard ends {place}{hint}")
            error.offset = self._fed
        self._locate(error)
        raise error

    def _take(self) -> Iterator[Block]:
        if (block := self._samples.take_block()) is not None:
            yield block

    def _locate(self, error: FormatError) -> None:
        if error.offset is None:
            error.offset = self._samples.header_offset
        if error.sample is None:
            error.sample = self._samples.index
