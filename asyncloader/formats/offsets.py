"""Shards that begin with a table of sample offsets: MDS and LitData's chunks.

``u32 count, u32 offsets[count + 1], header, samples``, in little-endian order. The count is checked against
the offset of the first sample before memory of that size is used. Offsets that do not rise, or that leave the
shard, are never used. Many samples are decoded at a time. If one of them cannot be decoded, its run is halved
until it stands alone: the samples before it are returned, and passing over it loses no other sample.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Annotated, Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..blocks import Block, Column, Columns, OffsetTrail
from ..errors import FormatError
from ..types import Answer, Layout, Planning, Span
from .decoder import (
    MAX_BLOCK_BYTES,
    MAX_BLOCK_SAMPLES,
    Decoder,
    PassOver,
    ShardSpec,
    bring,
    check_reached,
    describe_bytes,
    most_unpacked,
)

#: The bytes that tell where the table ends: the count, and the first offset.
LEAST_BYTES = 8

_NUMBER_BYTES = 4

# Offsets of 32 bits reach 4 GiB, which holds this many samples of 64 bytes. Their table takes 256 MiB.
_MOST_SAMPLES = 1 << 26

# What may be between table and samples: MDS has some hundred bytes of JSON there.
_MOST_HEADER_BYTES = 16 << 20

# The most that a table may take in a compressed shard: 4 million samples. There are copies of it while it is
# read.
_MOST_TABLE_BYTES = 16 << 20


class OffsetTable(NamedTuple):
    """The beginning of a shard.

    Attributes:
        bounds: Where each sample begins, and where the last one ends: ``(samples + 1,)``.
        header: The bytes between the table and the first sample; their meaning depends on the format.
    """

    bounds: NDArray[np.integer[Any]]
    header: bytes


def samples_begin(name: str, start: bytes) -> int:
    """The offset of the first sample, behind the table and the header.

    Args:
        name: Name of the format, for messages.
        start: The first ``LEAST_BYTES`` of the shard.

    Raises:
        FormatError: There are fewer bytes, or the count does not fit the offset of the first sample.
    """
    if len(start) < LEAST_BYTES:
        what = "the shard is empty" if not start else "the shard ends within its table"
        raise FormatError(f"{name}: truncated: {what}", offset=len(start))
    count, begin = struct.unpack_from("<II", start)
    table_stop = _NUMBER_BYTES * (count + 2)
    if count > _MOST_SAMPLES or not table_stop <= begin <= table_stop + _MOST_HEADER_BYTES:
        raise FormatError(
            f"{name}: damaged, or no {name}: a table of {count} samples ends at byte {table_stop}, but it "
            f"places the first sample at byte {begin}{describe_bytes(start)}",
            offset=0,
        )
    return int(begin)


def parse_table(name: str, head: bytes) -> OffsetTable:
    """The table of a shard, and the header behind it.

    Args:
        name: Name of the format, for messages.
        head: The shard up to the offset that ``samples_begin`` returns.

    Raises:
        FormatError: The offsets do not rise.
    """
    count = int.from_bytes(head[:_NUMBER_BYTES], "little")
    bounds = np.frombuffer(head, "<u4", count + 1, _NUMBER_BYTES)
    falls = np.flatnonzero(bounds[1:] < bounds[:-1])
    if len(falls):
        sample = int(falls[0])
        raise FormatError(
            f"{name}: damaged: the table says that the sample ends at byte {bounds[sample + 1]}, before it "
            f"begins at byte {bounds[sample]}",
            offset=_NUMBER_BYTES * (sample + 2),
            sample=sample,
        )
    return OffsetTable(bounds, head[_NUMBER_BYTES * (count + 2) :])


# Samples of at least this size on average are decoded where they were read. Smaller ones are copied behind
# the beginning of their first one, which came with the chunk before: that costs less than a block of its own
# for it. The same holds where no more than this was read at a time, as from a local file.
_LARGE_BYTES = 16 << 10
_COPIED_BYTES = 512 << 10

Decode: TypeAlias = "Callable[[bytes | memoryview, NDArray[np.int64]], Mapping[str, Column]]"
"""Makes the columns of some samples.

It gets a run of bytes, which columns may refer to only where ``view_of`` does, and the bounds of the samples
in it, ``(n + 1,) int64``, rising. It raises FormatError if a sample cannot be read; the caller finds out
which one."""


@dataclass(frozen=True)
class TableKind:
    """A format of shards with a table.

    Attributes:
        name: For messages.
        open_samples: Makes the function that decodes the samples, from the header between the table and the
            first sample. Raises FormatError.
        bounds_of: Where each sample begins and the last one ends, ``(n + 1,)``. By default the entries of the
            table. Raises FormatError.
    """

    name: str
    open_samples: Callable[[bytes], Decode]
    bounds_of: Callable[[OffsetTable], NDArray[np.integer[Any]]] = attrgetter("bounds")


class SamplesDecoder(Decoder):
    """Decode samples whose places are known.

    Args:
        name: Name of the format, for messages.
        decode: Decodes them.
        bounds: Where in the shard each of them begins, and where the last one ends: ``(n + 1,) int64``.
        first: Index in the shard of the first one.
        pass_over: Called for samples that do not decode; None to raise.
        begin: Offset in the shard of the first byte that will be fed. Bytes before the first sample are
            ignored. None: that of the first sample.
        end: Offset in the shard behind the last byte that will be fed. Bytes behind the last sample are
            ignored. None: where that sample ends.
    """

    def __init__(
        self,
        name: str,
        decode: Decode,
        bounds: NDArray[np.int64],
        first: int,
        *,
        pass_over: PassOver | None = None,
        begin: int | None = None,
        end: int | None = None,
    ) -> None:
        self._name = name
        self._decode_samples = decode
        self._bounds = bounds
        self._first = first
        self._pass_over = pass_over
        self._done = 0  # samples that were decoded
        self._fed = int(bounds[0]) if begin is None else begin  # offset in the shard of the next byte
        self._end = int(bounds[-1]) if end is None else end
        self._held: list[bytes | memoryview] = []  # the beginning of the next sample

    @property
    def sample(self) -> int | None:
        """Index in the shard of the sample that is read; None before the first one and behind the last."""
        is_within = self._done + 1 < len(self._bounds) and self._fed >= self._bounds[0]
        return self._first + self._done if is_within else None

    def check_room(self, compressed_bytes: int) -> None:
        begin = int(self._bounds[self._done])
        _check_held(
            self._name, "a sample", begin, self._fed, compressed_bytes, most_unpacked(compressed_bytes)
        )

    def _decode(self, chunk: bytes | memoryview) -> Iterator[Block]:
        begin, bounds = self._fed, self._bounds
        self._fed += len(chunk)
        first, stop = self._done, int(bounds.searchsorted(self._fed, "right")) - 1
        if stop > first:
            if self._held:
                # How much of the chunk is joined with what is held.
                is_large = len(chunk) > max(_COPIED_BYTES, _LARGE_BYTES * (stop - first))
                joined = first + 1 if is_large else stop
                held = b"".join((*self._held, chunk[: int(bounds[joined]) - begin]))
                self._held.clear()
                # As a view: keeping one of several large samples must not keep the others too.
                yield from self._decode_run(memoryview(held), int(bounds[first]), first, joined)
                first = joined
            yield from self._decode_run(chunk, begin, first, stop)
            self._done = stop
        if self._bounds[self._done] < self._fed and self._done + 1 < len(bounds):
            self._hold(chunk[max(int(bounds[self._done]) - begin, 0) :])
        if self._fed > self._end:
            raise FormatError(
                f"{self._name}: damaged: there are bytes behind the last sample, where the table ends",
                offset=self._end,
            )

    def finish(self) -> Iterator[Block]:
        yield from self._decode(b"")  # samples without a byte
        if self._done + 1 < len(self._bounds):
            raise FormatError(
                f"{self._name}: truncated within a sample, which should end at "
                f"byte {self._bounds[self._done + 1]}",
                offset=self._fed,
                sample=self._first + self._done,
            )
        if self._fed < self._end:
            raise FormatError(
                f"{self._name}: truncated: {self._end - self._fed} bytes are missing", offset=self._fed
            )

    def _hold(self, piece: bytes | memoryview) -> None:
        # A large view pins what it was cut from, instead of being copied now and again in the join. A small
        # one is copied at once, so that it does not keep a buffer of megabytes.
        self._held.append(piece if len(piece) >= _LARGE_BYTES else bytes(piece))

    def _decode_run(self, run: bytes | memoryview, begin: int, first: int, stop: int) -> Iterator[Block]:
        """The blocks of samples ``first`` up to ``stop``, from bytes that begin at ``begin`` in the shard."""
        while first < stop:
            most = int(self._bounds.searchsorted(self._bounds[first] + MAX_BLOCK_BYTES, "right")) - 1
            end = min(max(most, first + 1), first + MAX_BLOCK_SAMPLES, stop)
            yield from self._decode_block(run, begin, first, end)
            first = end

    def _decode_block(self, run: bytes | memoryview, begin: int, first: int, stop: int) -> Iterator[Block]:
        try:
            columns = self._decode_samples(run, self._bounds[first : stop + 1] - begin)
        except FormatError as error:
            if stop - first == 1:
                error.sample, error.offset = self._first + first, int(self._bounds[first])
                if self._pass_over is None:
                    raise
                self._pass_over(error)
                return
        else:
            yield Columns(columns, OffsetTrail(self._first + first, None))
            return
        middle = (first + stop) // 2
        yield from self._decode_block(run, begin, first, middle)
        yield from self._decode_block(run, begin, middle, stop)


class TableDecoder(Decoder):
    """Decode a shard from front to back.

    Args:
        kind: The format of the shard.
        start_sample: Samples before the first one that is wanted, which are not decoded.
        pass_over: Called for samples that do not decode; None to raise.
    """

    def __init__(self, kind: TableKind, *, start_sample: int = 0, pass_over: PassOver | None = None) -> None:
        self._kind = kind
        self._start = start_sample
        self._pass_over = pass_over
        self._head = bytearray()
        self._inner: SamplesDecoder | None = None

    @property
    def sample(self) -> int | None:
        """See ``SamplesDecoder``; None while the table is read."""
        return None if self._inner is None else self._inner.sample

    def check_room(self, compressed_bytes: int) -> None:
        if self._inner is not None:
            self._inner.check_room(compressed_bytes)
            return
        most = most_unpacked(compressed_bytes, _MOST_TABLE_BYTES)
        _check_held(self._kind.name, "the table", 0, len(self._head), compressed_bytes, most)

    def _decode(self, chunk: bytes | memoryview) -> Iterator[Block]:
        if self._inner is None:
            begin = len(self._head)
            self._head += chunk
            if len(self._head) < LEAST_BYTES:
                return
            stop = samples_begin(self._kind.name, bytes(self._head[:LEAST_BYTES]))
            if len(self._head) < stop:
                return
            table = parse_table(self._kind.name, bytes(self._head[:stop]))
            self._head.clear()
            self._inner = open_samples(
                self._kind,
                table,
                self._start,
                pass_over=self._pass_over,
                begin=begin,
                end=int(table.bounds[-1]),
            )
        yield from self._inner.feed(chunk)

    def finish(self) -> Iterator[Block]:
        if self._inner is None:
            begin = samples_begin(self._kind.name, bytes(self._head))
            raise FormatError(
                f"{self._kind.name}: truncated within its table, behind which the first sample should begin "
                f"at byte {begin}",
                offset=len(self._head),
            )
        yield from self._inner.finish()


def _check_held(name: str, what: str, begin: int, fed: int, compressed_bytes: int, most: int) -> None:
    """Refuse to hold more in one piece than a compressed shard may become."""
    if fed - begin > most:
        raise FormatError(
            f"{name}: {compressed_bytes} compressed bytes have become {fed}, and {what} takes more than "
            f"{most} of them: the shard is damaged, or made to use up memory",
            offset=begin,
        )


def open_samples(
    kind: TableKind, table: OffsetTable, first: int, stop: int | None = None, **options: Any
) -> SamplesDecoder:
    """The decoder of samples ``first`` up to ``stop`` of a shard, with options of ``SamplesDecoder``.

    Raises:
        FormatError: The shard has fewer samples, or its header is damaged.
    """
    bounds = kind.bounds_of(table)
    check_reached(len(bounds) - 1, first)
    wanted = bounds[first : None if stop is None else stop + 1].astype(np.int64)
    return SamplesDecoder(kind.name, kind.open_samples(table.header), wanted, first, **options)


#: The table of 4,000 samples, which are 16 MiB if each has 4 KiB. Larger tables take another request.
HEAD_BYTES = 16 << 10


def plan_table(kind: TableKind, spec: ShardSpec, head: Answer | None = None) -> Planning:
    """Plan what to read of a shard: its table, and the bytes of the samples that are wanted.

    Args:
        kind: The format of the shard.
        spec: What is wanted. It keeps the table, and may have it already.
        head: The first ``HEAD_BYTES`` of the shard, if they are known.
    """
    if head is None:
        head = yield Span(0, HEAD_BYTES)
    table = yield from _read_table(kind.name, head, spec)
    end = int(table.bounds[-1])
    if end != head.length:
        what = "truncated" if head.length < end else "damaged: there are bytes behind the last sample"
        raise FormatError(
            f"{kind.name}: {what}: the table ends at byte {end}, the shard has {head.length}",
            offset=min(end, head.length),
        )
    bounds, start = kind.bounds_of(table), spec.start_sample
    count = len(bounds) - 1
    stop = count if spec.stop_sample is None else max(min(spec.stop_sample, count), start)
    decoder = partial(open_samples, kind, table, start, stop)
    spans: tuple[Span, ...] = ()
    if start < stop and bounds[start] < bounds[stop]:
        spans = (Span(int(bounds[start]), int(bounds[stop])),)
    return Layout(spans, decoder, count, passes_over=True)


def _read_table(name: str, head: Answer, spec: ShardSpec) -> Generator[Span, Answer, OffsetTable]:
    """The table of the shard that begins with ``head``; the rest of it is read if it is longer."""
    content = head.content
    begin = samples_begin(name, content[:LEAST_BYTES])
    if begin <= len(content):
        return parse_table(name, content[:begin])
    if (kept := spec.kept(head)) is not None:
        return parse_table(name, kept)
    if begin > head.length:
        raise FormatError(
            f"{name}: truncated: the first sample should begin at byte {begin}, the shard has {head.length}",
            offset=head.length,
        )
    content = yield from bring(head, Span(0, begin))
    spec.keep(head, content)
    return parse_table(name, content)


_LENGTH_BYTES = 4


def field_edges(
    name: str, run: bytes | memoryview, bounds: NDArray[np.int64], sizes: Sequence[int | None]
) -> NDArray[np.int64]:
    """Where in ``run`` the fields of samples begin, and where the last one ends.

    Args:
        name: Name of the format, for messages.
        run: The bytes of the samples.
        bounds: Where each begins and the last one ends, ``(n + 1,) int64``.
        sizes: How many bytes each field has; None if each sample states it.

    Returns:
        ``(fields + 1, n) int64``: field ``f`` of sample ``i`` is from ``[f, i]`` up to ``[f + 1, i]``.

    Raises:
        FormatError: The lengths of a sample's fields do not add up to its own.
    """
    begins, stops = bounds[:-1], bounds[1:]
    told_bytes = _LENGTH_BYTES * sum(size is None for size in sizes)
    # Checked first: so the bytes of the samples bound the memory that many fields of many samples take here.
    least = told_bytes + sum(size for size in sizes if size is not None)
    if (stops - begins < least).any():
        raise _damaged(name, stops - begins, np.full(len(begins), least), "at least ")
    edges = np.empty((len(sizes) + 1, len(begins)), np.int64)
    edges[0] = begins + told_bytes
    if told_bytes:
        places = begins[:, None] + np.arange(told_bytes)
        told = iter(np.frombuffer(run, np.uint8)[places].view("<u4").T)
    for number, size in enumerate(sizes, 1):
        edges[number] = next(told) if size is None else size
    edges = edges.cumsum(axis=0)
    if (edges[-1] != stops).any():
        raise _damaged(name, stops - begins, edges[-1] - begins)
    return edges


def _damaged(name: str, found: NDArray[np.int64], told: NDArray[np.int64], least: str = "") -> FormatError:
    wrong = (found < told if least else found != told).argmax()
    return FormatError(
        f"{name}: damaged: the fields of the sample take {least}{told[wrong]} bytes with their "
        f"lengths, but the table gives it {found[wrong]}"
    )


# Larger values are copied one by one: an index for each byte of them takes eight times their memory, and from
# here on more time too (1,000 values of 200 bytes: 0.37 ms against 0.22; of 8 kB: 16 against 0.6; Python
# 3.11, NumPy 2.4, one core of an AMD EPYC).
_LONG_BYTES = 128


@dataclass(frozen=True, slots=True)
class Values:
    """One value of each sample.

    Attributes:
        run: Bytes of the samples. Its memory may be used again: copy what is kept, see ``view_of``.
        starts: Where each value begins in it, ``(n,) int64``, rising.
        stops: Where each value ends, likewise.
    """

    run: bytes | memoryview
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """How many bytes each value has, ``(n,) int64``."""
        return self.stops - self.starts

    @property
    def edges(self) -> Iterator[tuple[int, int]]:
        """Where each value begins and ends."""
        return zip(self.starts.tolist(), self.stops.tolist(), strict=True)

    def bytes(self) -> list[bytes]:
        """Each value as it is stored."""
        run = self.run
        if type(run) is bytes:
            return [run[start:stop] for start, stop in self.edges]
        return [bytes(run[start:stop]) for start, stop in self.edges]

    def joined(self) -> NDArray[np.uint8]:
        """The values end to end, ``(bytes of all,) uint8``; a copy that may be written to."""
        view = memoryview(self.run)
        return np.frombuffer(bytearray().join([view[start:stop] for start, stop in self.edges]), np.uint8)

    def gathered(self, size: int, skip: int = 0) -> NDArray[np.uint8]:
        """``(n, size) uint8``: this many bytes of each value, behind its first ``skip``.

        A copy that may be written to. The caller has checked that the values are long enough.
        """
        starts, count = self.starts + skip, len(self)
        if not count or not size:
            return np.zeros((count, size), np.uint8)
        steps = starts[1:] - starts[:-1]
        if (steps == steps[:1]).all():
            step = int(steps[0]) if len(steps) else size
            rows: NDArray[np.uint8] = np.ndarray((count, size), np.uint8, self.run, int(starts[0]), (step, 1))
            return rows.copy()
        if size <= _LONG_BYTES:
            picked: NDArray[np.uint8] = np.frombuffer(self.run, np.uint8)[starts[:, None] + np.arange(size)]
            return picked
        return Values(self.run, starts, starts + size).joined().reshape(count, size)


def view_of(run: bytes | memoryview, dtype: np.dtype[Any], count: int, begin: int) -> NDArray[Any]:
    """Numbers that lie side by side in a run, ``(count,)``: over its memory if that is safe, else a copy.

    Nothing writes to the memory of ``bytes`` again; other memory is used again. Few numbers that lie across
    the places for them in memory are like that by chance, and are slower to work with.
    """
    there: NDArray[Any] = np.frombuffer(run, dtype, count, begin)
    lasts = type(run if isinstance(run, bytes) else run.obj) is bytes
    return there if lasts and there.flags.aligned else there.copy()


# --- the index ---


class IndexedFile(msgspec.Struct, rename={"size_bytes": "bytes"}):
    """A file of a shard.

    Attributes:
        basename: Its name in the folder.
        size_bytes: Its length; None if the index does not state it.
        hashes: Digests of its bytes in hexadecimal digits, by algorithm.
    """

    basename: str
    # Lengths are kept in 64 bits.
    size_bytes: Annotated[int, msgspec.Meta(ge=0, le=1 << 62)] | None
    hashes: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class IndexedShard:
    """A shard.

    Attributes:
        file: The file to read.
        format: Its format, a name in ``formats``.
        samples: How many samples it has.
        raw: The decompressed file, if ``file`` is compressed and the index describes both.
    """

    file: IndexedFile
    format: str
    samples: int
    raw: IndexedFile | None = None
