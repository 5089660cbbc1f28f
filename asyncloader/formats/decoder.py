"""What every format consists of: a decoder that is fed bytes, and a plan if shards are read in parts.

``feed`` and ``finish`` return iterators. Run each to its end before the next call: what it has not decoded is
lost.
"""

from __future__ import annotations

import hashlib
import io
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ..blocks import Block
from ..errors import FormatError
from ..types import Answer, Buffer, Span, Unpacked

PassOver: TypeAlias = Callable[[FormatError], None]
"""Records a sample that cannot be decoded, and is then passed over."""


# The cost of a queue hop, and the memory budget, are counted by block: 1024 samples make the cost of the hop
# negligible for each, and 8 MiB is small compared with any useful budget.
MAX_BLOCK_SAMPLES = 1024
MAX_BLOCK_BYTES = 8 << 20


# What a piece may always become when it is decompressed; otherwise a hundred times its compressed size. No
# training sample is known to shrink by more, except small ones and masks.
_MOST_UNPACKED_BYTES = 256 << 20
_MOST_RATIO = 100


def most_unpacked(compressed_bytes: int, least: int | None = None) -> int:
    """How many bytes a piece may have when it is decompressed.

    Args:
        compressed_bytes: Of the piece, or of as much of the shard as has come.
        least: Bytes that are always allowed; None for 256 MiB.
    """
    return max(_MOST_UNPACKED_BYTES if least is None else least, _MOST_RATIO * compressed_bytes)


def check_unpacked(what: str, compressed_bytes: int, claimed_bytes: int, advice: str = "") -> None:
    """Refuse a piece that claims to become too large, before it is decompressed.

    Args:
        what: Name of the piece, for messages.
        compressed_bytes: Of the piece.
        claimed_bytes: What it should become.
        advice: A clause about what to do if it is sound, for messages.

    Raises:
        FormatError: It would become larger than ``most_unpacked`` allows.
    """
    if claimed_bytes > (most := most_unpacked(compressed_bytes)):
        raise FormatError(
            f"{what}: {compressed_bytes} bytes would become {claimed_bytes}; at most {most} are "
            f"decompressed: it is damaged, or made to use up memory{advice}"
        )


class Decoder(ABC):
    """Feed the bytes of one shard in any chunking, get blocks of samples; no I/O, no await.

    Both methods yield blocks as they come, so that a chunk which expands (decompression) is never held
    expanded as a whole. Empty blocks are not yielded. A subclass decodes the bytes. After an error it cannot
    be used any more.
    """

    def feed(self, chunk: Buffer) -> Iterator[Block]:
        """The samples that ``chunk`` completes.

        Args:
            chunk: The next bytes of the shard, any number of them. The decoder may keep views of them until
                their samples are complete. Samples do not refer to the memory, which may be used again then;
                only that of ``bytes``, which never changes.

        Returns:
            An iterator of blocks; it must be run to its end before the next call.

        Raises:
            FormatError: The bytes are not what the format promises. Samples completed before the
                fault are yielded first.
        """
        return self._decode(chunk if type(chunk) is bytes else memoryview(chunk))

    @abstractmethod
    def _decode(self, chunk: bytes | memoryview) -> Iterator[Block]: ...

    @abstractmethod
    def finish(self) -> Iterator[Block]:
        """The samples left at the end of the shard; call it once, after the last byte.

        Returns:
            An iterator of blocks.

        Raises:
            FormatError: The shard is truncated.
        """
        ...

    @property
    def sample(self) -> int | None:
        """Index in the shard of the sample that is read; None where a decoder does not say."""
        return None

    def check_room(self, compressed_bytes: int) -> None:
        """Refuse a sample that has grown too large, where the shard is compressed.

        Args:
            compressed_bytes: How much of the compressed shard has become what was fed.

        Raises:
            FormatError: The sample that is read has become larger than that allows.
        """
        return  # most formats have a bound of their own, as low as this


LFS_POINTER = b"version https://git-lfs"
"""The beginning of the file that Git keeps in place of a large one."""

_SIGNATURES = (
    (b"<", "a web page or an XML listing: open the URL in a browser, and check credentials"),
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
    """A clause about what ``start`` looks like, or "" if it is not recognized."""
    text = start[:64].removeprefix(b"\xef\xbb\xbf").lstrip()
    for signature, what in _SIGNATURES:
        if text.startswith(signature):
            return f"; the bytes look like {what}"
    return ""


@dataclass(frozen=True)
class Selection:
    """What is wanted of every shard.

    Attributes:
        columns: Names, in the order of the fields of a sample; None for all.
        filters: A ``pyarrow.compute.Expression`` that a row has to meet; None for every row.
        decode: Whether images are opened, if the format does so. False leaves the bytes of their files.
    """

    columns: tuple[str, ...] | None = None
    filters: Any = field(default=None, compare=False)  # == of two expressions makes an expression
    decode: bool = True

    def describe(self) -> Mapping[str, Any]:
        """What must be equal in a saved state, as JSON values."""
        described: dict[str, Any] = {}
        if self.columns is not None:
            described["columns"] = list(self.columns)
        if self.filters is not None:
            described["filters"] = text = str(self.filters)
            if "..." in text:  # long lists of values are shortened
                content = memoryview(self.filters.__reduce__()[1][0])
                described["filters_digest"] = hashlib.blake2b(content, digest_size=16).hexdigest()
        if not self.decode:
            described["decode"] = False
        return described


EVERYTHING = Selection()


# Enough for some 3,000 shards with 20 KiB each, which is usual.
_MOST_KEPT_BYTES = 64 << 20


class FooterCache(dict[tuple[str, str, int], bytes]):
    """Footers by URL, version and length of their shards, kept from epoch to epoch. Empty in another process.

    The version alone is not enough: servers make ETags of length and time, which two shards may share.
    """

    size_bytes = 0

    def __reduce__(self) -> Any:
        return FooterCache, ()

    def keep(self, shard: tuple[str, str, int], footer: bytes) -> None:
        """Keep a footer, while there is room for it.

        Those used least recently do not make room: each epoch reads all shards, so none would be found again.
        """
        # Without a lock: threads that keep one at the same moment may exceed the bound by it.
        if shard not in self and self.size_bytes + len(footer) <= _MOST_KEPT_BYTES:
            self[shard] = footer
            self.size_bytes += len(footer)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSpec:
    """What is wanted of one shard, and what is known of it.

    Attributes:
        start_sample: Samples of the shard that were already read. Without ``start_byte`` a format that is
            read from front to back decodes and drops them.
        start_byte: Offset in the shard of the first byte that will be fed, from the position.
        skip: Samples from there on that are decoded and dropped.
        stop_sample: Index behind the last sample that is wanted, for a plan; more may be read. None for all.
        columns: Return columns, if the format can make them of samples that are alike.
        pass_over: Called for samples that cannot be decoded, if the format can continue behind them. They
            keep their indices. None to raise.
        selection: Which columns and rows are wanted, if the format has some.
        schema: What an index states of the shards, if the format is read by an index.
        unpacked: What an index promises of the decompressed shard, if it is compressed as a whole.
        compression: By the shard's name, see ``compression_named``; used if the shard has no bytes.
        delimiter: What separates the fields of CSV; None for the usual one.
        url: Of the shard, for ``footers``.
        footers: Keeps what a plan has read, for the next reader of the shard.
    """

    start_sample: int = 0
    start_byte: int = 0
    skip: int = 0
    stop_sample: int | None = None
    columns: bool = False
    pass_over: PassOver | None = None
    selection: Selection = EVERYTHING
    schema: Any = None
    unpacked: Unpacked | None = None
    compression: str | None = None
    delimiter: str | None = None
    url: str = ""
    footers: FooterCache | None = None

    @property
    def first_sample(self) -> int:
        """Index of the first sample that is wanted."""
        return self.start_sample + self.skip

    def kept(self, head: Answer) -> bytes | None:
        """The footer that was kept for this version of the shard; None if there is none."""
        if self.footers is None or head.version is None:
            return None
        return self.footers.get((self.url, head.version, head.length))

    def keep(self, head: Answer, footer: bytes) -> None:
        """Keep a footer for this version of the shard."""
        if self.footers is not None and head.version is not None:
            self.footers.keep((self.url, head.version, head.length), footer)


class SkippingDecoder(Decoder):
    """Drop the samples before the wanted ones, if a decoder cannot begin at these.

    Args:
        inner: The decoder.
        count: Samples to drop.
        first: Index in the shard of the first one.
    """

    def __init__(self, inner: Decoder, count: int, first: int = 0) -> None:
        self._inner = inner
        self._wanted = first + count
        self._reached = first

    def _decode(self, chunk: bytes | memoryview) -> Iterator[Block]:
        return self._drop(self._inner.feed(chunk))

    def finish(self) -> Iterator[Block]:
        yield from self._drop(self._inner.finish())
        check_reached(self._reached, self._wanted)

    def _drop(self, blocks: Iterator[Block]) -> Iterator[Block]:
        for block in blocks:
            if self._reached < self._wanted:
                # By index: samples that were passed over have one, and are in no block.
                begins = block.trail.place(0).sample
                self._reached = begins + len(block)
                if self._reached <= self._wanted:
                    continue
                if begins < self._wanted:
                    block = block.part(self._wanted - begins, len(block))
            yield block


def check_reached(found: int, wanted: int, what: str = "samples") -> None:
    """Refuse a shard that has fewer samples than a position or a plan says.

    Raises:
        FormatError: It has fewer.
    """
    if found < wanted:
        raise FormatError(
            f"expected at least {wanted} {what}, as a position or the plan says; found {found}: the shard "
            "has changed"
        )


# How much of the end is requested, as the footer is mostly in it: a 64th of the shard within these bounds.
# Footers of wide tables and of many row groups take a second request.
_LEAST_END_BYTES, _MOST_END_BYTES = 8 << 10, 64 << 10

# Far above the footers of tables with thousands of columns and row groups.
_MOST_FOOTER_BYTES = 256 << 20

_LENGTH_BYTES = 4


def bring(head: Answer, span: Span) -> Generator[Span, Answer, bytes]:
    """Bytes of a shard, in a plan; only those behind the ones in ``head`` are requested."""
    content = head.content[span.start : span.stop]
    begin = span.start + len(content)
    return content + (yield Span(begin, span.stop)).content if begin < span.stop else content


def bring_end(end: bytes, length: int, size: int) -> Generator[Span, Answer, bytes]:
    """The last ``size`` bytes of a shard of that length, in a plan; ``end`` has the last ones of them."""
    begin, there = max(length - size, 0), length - len(end)
    return (yield Span(begin, there)).content + end if begin < there else end[begin - there :]


def read_footer(name: str, magic: bytes, head: Answer, spec: ShardSpec) -> Generator[Span, Answer, bytes]:
    """Read the footer, which stands before its length and the magic at the very end.

    Args:
        name: Name of the format, for messages.
        magic: The magic that the shard begins and ends with.
        head: The first bytes of the shard.
        spec: Keeps the footer, and may have it already.

    Returns:
        The end of the shard, from the first byte of the footer on.

    Raises:
        FormatError: The shard is truncated or damaged.
    """
    if (kept := spec.kept(head)) is not None:
        return kept
    length = head.length
    end = head.content
    if length > len(end):
        size = min(max(length >> 6, _LEAST_END_BYTES), _MOST_END_BYTES)
        end = yield from bring_end(b"", length, size)
    tail_bytes = _LENGTH_BYTES + len(magic)
    if not end.endswith(magic) or length < tail_bytes + len(magic):
        raise FormatError(
            f"{name}: truncated or damaged: expected the magic {magic!r} at the end, found "
            f"{end[-len(magic) :]!r}",
            offset=length,
        )
    footer_bytes = int.from_bytes(end[-tail_bytes : -len(magic)], "little")
    if footer_bytes > length - tail_bytes - len(magic):
        raise FormatError(
            f"{name}: damaged: the footer claims {footer_bytes} bytes, and the whole shard has {length}",
            offset=length,
        )
    if footer_bytes > _MOST_FOOTER_BYTES:
        raise FormatError(
            f"{name}: the footer has {footer_bytes} bytes; at most {_MOST_FOOTER_BYTES} are read",
            offset=length,
        )
    footer = yield from bring_end(end, length, tail_bytes + footer_bytes)
    spec.keep(head, footer)
    return footer


# A gap up to this length is always read through.
_SMALL_GAP_BYTES = 1 << 10

# So is a gap of a quarter of what is wanted around it, up to what a connection transfers in some
# milliseconds: it costs less than another request. With few columns of many, only few more bytes are read.
_LARGEST_GAP_BYTES = 256 << 10
_GAP_SHARE = 4


def merge(groups: Iterable[Sequence[Span]]) -> tuple[list[Span], list[int]]:
    """The spans to request for groups of spans, each group needed as a whole, one after another.

    Args:
        groups: The spans of a group may be in any order, touch, and overlap.

    Returns:
        The spans to request, in order, and for each group the number of bytes after which it is complete.
    """
    merged: list[Span] = []
    complete: list[int] = []
    before = 0  # bytes of all merged spans but the last
    wanted = 0  # bytes of the last one that are no gaps
    for group in groups:
        # Bytes of an earlier group may be dropped already: bytes that both need are read twice.
        begin = merged[-1].stop if merged else 0
        for span in sorted(group):
            last = merged[-1] if merged else None
            if last is not None and begin <= span.start <= last.stop + _gap_bytes(wanted, span):
                merged[-1] = Span(last.start, max(last.stop, span.stop))
                wanted += max(0, span.stop - max(last.stop, span.start))
            else:
                before += 0 if last is None else last.stop - last.start
                merged.append(span)
                begin, wanted = span.start, span.stop - span.start
        complete.append(before + merged[-1].stop - merged[-1].start if merged else 0)
    return merged, complete


def _gap_bytes(wanted: int, span: Span) -> int:
    around = wanted + span.stop - span.start
    return max(_SMALL_GAP_BYTES, min(_LARGEST_GAP_BYTES, around // _GAP_SHARE))


class ByteQueue:
    """A queue of bytes, in the pieces in which they came."""

    def __init__(self) -> None:
        self._pieces: deque[memoryview] = deque()
        self.size_bytes = 0

    def put(self, piece: bytes | memoryview) -> None:
        """Add to the end."""
        if len(piece):
            self._pieces.append(memoryview(piece))
            self.size_bytes += len(piece)

    def take(self, size_bytes: int) -> list[memoryview]:
        """Remove so many bytes from the front; the caller has checked that they are there."""
        self.size_bytes -= size_bytes
        taken = []
        while size_bytes:
            piece = self._pieces.popleft()
            if len(piece) > size_bytes:
                self._pieces.appendleft(piece[size_bytes:])
                piece = piece[:size_bytes]
            size_bytes -= len(piece)
            taken.append(piece)
        return taken


class HeldSpans(io.RawIOBase):
    """A file that has only some of its bytes: those that were fed, until they are dropped.

    Args:
        spans: What will be fed, in this order.
        length: Length of the file.
    """

    def __init__(self, spans: Sequence[Span], length: int) -> None:
        super().__init__()
        self._to_come = deque(spans)
        self._length = length
        # Offset in the file, bytes, and how many bytes had been fed by their end.
        self._pieces: deque[tuple[int, memoryview, int]] = deque()
        self._at = 0
        self.fed = 0

    def feed(self, chunk: bytes | memoryview) -> None:
        """Take in the next bytes of the spans."""
        rest = memoryview(chunk)
        while rest:
            start, stop = self._to_come.popleft()
            here = rest[: stop - start]
            rest = rest[len(here) :]
            if start + len(here) < stop:
                self._to_come.appendleft(Span(start + len(here), stop))
            self.fed += len(here)
            self._pieces.append((start, here, self.fed))

    def drop(self, fed: int) -> None:
        """Drop what was fed up to there."""
        while self._pieces and self._pieces[0][2] <= fed:
            self._pieces.popleft()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._length}[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        """The bytes from here on; fewer than ``size`` if some are not held."""
        stop = self._length if size < 0 else self._at + size
        found: list[bytes | memoryview] = []
        for start, content, _ in self._pieces:
            if self._at < stop and start <= self._at < start + len(content):
                begin = self._at - start
                part = content[begin : begin + stop - self._at]
                found.append(part)
                self._at += len(part)
        return b"".join(found)
