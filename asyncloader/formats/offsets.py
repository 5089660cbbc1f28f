"""Shards that begin with a table of where their samples are: MDS and LitData's chunks.

``u32 count, u32 offsets[count + 1], header, samples``, in little-endian order. A count is held against where
the first sample begins before anything of that size is waited for, and no offset is used that does not rise,
or leaves the shard. Samples are decoded many at a time; where one does not decode, the run that it is in is
halved until it stands alone: those before it are handed out, and passing over it loses no other one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Annotated, Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..blocks import Block, Column, Columns, OffsetTrail, Rows
from ..errors import FormatError
from ..types import Answer, Layout, Planning, Span
from .decoder import MAX_BLOCK_BYTES, MAX_BLOCK_SAMPLES, Decoder, PassOver, ShardSpec, describe_bytes

#: What is needed to know where the table ends: the count, and the first offset.
LEAST_BYTES = 8

_NUMBER_BYTES = 4

# Offsets of 32 bits reach 4 GiB, which are as many samples of 64 bytes; and their table takes 256 MiB.
_MOST_SAMPLES = 1 << 26

# What may be between table and samples: MDS has some hundred bytes of JSON there.
_MOST_HEADER_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class OffsetTable:
    """The beginning of a shard.

    Attributes:
        bounds: Where each sample begins, and where the last one ends: ``(samples + 1,)``.
        header: What is between the table and the first sample; its format knows what.
    """

    bounds: NDArray[np.integer[Any]]
    header: bytes

    @property
    def samples(self) -> int:
        """How many the shard has."""
        return len(self.bounds) - 1


def samples_begin(name: str, start: bytes) -> int:
    """Where the table and what is behind it end, and the first sample begins.

    Args:
        name: Of the format, for messages.
        start: The first ``LEAST_BYTES`` of the shard.

    Raises:
        FormatError: Fewer bytes, or a count that does not fit to where the first sample begins.
    """
    if len(start) < LEAST_BYTES:
        what = "the shard is empty" if not start else "the shard ends within its table"
        raise FormatError(f"{name}: truncated: {what}", offset=len(start))
    count, begin = struct.unpack_from("<II", start)
    table_stop = _NUMBER_BYTES * (count + 2)
    if count > _MOST_SAMPLES or not table_stop <= begin <= table_stop + _MOST_HEADER_BYTES:
        raise FormatError(
            f"{name}: damaged, or no {name}: a table of {count} samples ends at byte {table_stop}, but the "
            f"first sample is said to begin at byte {begin}{describe_bytes(start)}",
            offset=0,
        )
    return int(begin)


def parse_table(name: str, head: bytes) -> OffsetTable:
    """The table of a shard, and what is behind it.

    Args:
        name: Of the format, for messages.
        head: The shard up to where ``samples_begin``.

    Raises:
        FormatError: Offsets that do not rise.
    """
    count = int.from_bytes(head[:_NUMBER_BYTES], "little")
    bounds = np.frombuffer(head, "<u4", count + 1, _NUMBER_BYTES)
    falls = np.flatnonzero(bounds[1:] < bounds[:-1])
    if len(falls):
        sample = int(falls[0])
        raise FormatError(
            f"{name}: damaged: the sample is said to end at byte {bounds[sample + 1]}, before it begins, at "
            f"byte {bounds[sample]}",
            offset=_NUMBER_BYTES * (sample + 2),
            sample=sample,
        )
    return OffsetTable(bounds, head[_NUMBER_BYTES * (count + 2) :])


class TableHead:
    """The table of a shard that is read from front to back, gathered as its bytes come.

    Args:
        name: Of the format, for messages.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._content = bytearray()
        self._size_bytes = LEAST_BYTES  # how long it has to be

    @property
    def held_bytes(self) -> int:
        """How much of it has come."""
        return len(self._content)

    def take(self, chunk: bytes | memoryview) -> tuple[OffsetTable | None, bytes | memoryview]:
        """Take what belongs to the table and the header.

        Returns:
            The table, None until all of it has come, and the rest of the chunk.

        Raises:
            FormatError: As of ``samples_begin`` and ``parse_table``.
        """
        at = 0
        while len(self._content) < self._size_bytes:
            step = chunk[at : at + self._size_bytes - len(self._content)]
            self._content += step
            at += len(step)
            if len(self._content) < self._size_bytes:
                return None, b""
            self._size_bytes = samples_begin(self._name, bytes(self._content[:LEAST_BYTES]))
        head = bytes(self._content)
        self._content.clear()
        return parse_table(self._name, head), chunk[at:]

    def truncated(self) -> FormatError:
        """What to raise at the end of a shard before that of its table."""
        begin = samples_begin(self._name, bytes(self._content))
        return FormatError(
            f"{self._name}: truncated within its table, behind which the first sample should begin at byte "
            f"{begin}",
            offset=len(self._content),
        )


# Samples of so many bytes on average are decoded from where they were read. Smaller ones are copied behind
# the beginning of their first one, which the chunk before had: that costs less than a block of its own for
# it. So does it where all that was read is no more than that: of pieces of a local file.
_LARGE_BYTES = 16 << 10
_COPIED_BYTES = 512 << 10


class Samples(Protocol):
    """What the bytes of the samples of one shard mean."""

    def decode(self, run: bytes | memoryview, bounds: NDArray[np.int64]) -> Mapping[str, Column] | list[Any]:
        """The columns of some samples, or the samples themselves.

        Args:
            run: Bytes, of which what is made of them may keep hold; or a view of memory that is used again.
            bounds: Where in ``run`` each sample begins, and where the last one ends: ``(n + 1,) int64``, all
                of them within ``run``, and rising.

        Raises:
            FormatError: One of the samples cannot be read. Which one is found out by the caller.
        """
        ...


@dataclass(frozen=True)
class TableKind:
    """A format of shards with a table.

    Attributes:
        name: For messages.
        open_samples: Makes of what is between the table and the first sample, empty where there is nothing,
            what decodes the shard's samples. Raises FormatError.
        bounds_of: Where each sample begins and the last one ends, ``(n + 1,)``: the entries of the table,
            unless samples lie across them. Raises FormatError.
    """

    name: str
    open_samples: Callable[[bytes], Samples]
    bounds_of: Callable[[OffsetTable], NDArray[np.integer[Any]]] = attrgetter("bounds")


class SamplesDecoder(Decoder):
    """Decode samples whose places are known; fed the bytes from the first one to the last one.

    Args:
        name: Of the format, for messages.
        samples: Decodes them.
        bounds: Where in the shard each of them begins, and where the last one ends: ``(n + 1,) int64``.
        first: Index in the shard of the first one.
        pass_over: Called for samples that do not decode; None to raise.
        rest_bytes: Bytes that follow the last one and belong to none.
    """

    def __init__(
        self,
        name: str,
        samples: Samples,
        bounds: NDArray[np.int64],
        first: int,
        *,
        pass_over: PassOver | None = None,
        rest_bytes: int = 0,
    ) -> None:
        super().__init__()
        self._name = name
        self._samples = samples
        self._bounds = bounds
        self._first = first
        self._pass_over = pass_over
        self._done = 0  # samples that were decoded
        self._fed = int(bounds[0])  # offset in the shard of the next byte
        self._held: list[bytes | memoryview] = []  # the beginning of the next sample
        self._rest = rest_bytes  # still to come
        self._end = int(bounds[-1]) + rest_bytes

    @property
    def sample(self) -> int | None:
        """Index in the shard of the sample that is read next; None behind the last one."""
        return self._first + self._done if self._done + 1 < len(self._bounds) else None

    @property
    def held_bytes(self) -> int:
        """How much of that sample has come."""
        return self._fed - int(self._bounds[self._done])

    def _decode(self, chunk: bytes | memoryview) -> Iterator[Block]:
        begin, bounds = self._fed, self._bounds
        if len(chunk) > (left := int(bounds[-1]) - begin):
            yield from self._decode(chunk[:left])
            self._rest -= len(chunk) - left
            if self._rest < 0:
                raise FormatError(
                    f"{self._name}: damaged: there are bytes behind the last sample, where the table ends",
                    offset=self._end,
                )
            return
        self._fed += len(chunk)
        first, stop = self._done, int(bounds.searchsorted(self._fed, "right")) - 1
        if stop == first:
            self._hold(chunk)
            return
        behind = int(bounds[stop]) - begin
        if self._held:
            # How much of the chunk belongs to those that are put together with what is held.
            is_large = len(chunk) > max(_COPIED_BYTES, _LARGE_BYTES * (stop - first))
            joined = first + 1 if is_large else stop
            held = b"".join((*self._held, chunk[: int(bounds[joined]) - begin]))
            self._held.clear()
            # As a view: who keeps one of several large samples is not to keep the others too.
            yield from self._decode_run(memoryview(held), int(bounds[first]), first, joined)
            first = joined
        yield from self._decode_run(chunk, begin, first, stop)
        self._done = stop
        if behind < len(chunk):
            self._hold(chunk[behind:])

    def _decode_end(self) -> Iterator[Block]:
        yield from self._decode(b"")  # samples without a byte
        if self._done + 1 < len(self._bounds):
            raise FormatError(
                f"{self._name}: truncated within a sample, which should end at "
                f"byte {self._bounds[self._done + 1]}",
                offset=self._fed,
                sample=self._first + self._done,
            )
        if self._rest:
            raise FormatError(
                f"{self._name}: truncated: {self._rest} bytes are missing", offset=self._end - self._rest
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
            decoded = self._samples.decode(run, self._bounds[first : stop + 1] - begin)
        except FormatError as error:
            if stop - first == 1:
                error.sample, error.offset = self._first + first, int(self._bounds[first])
                if self._pass_over is None:
                    raise
                self._pass_over(error)
                return
        else:
            trail = OffsetTrail(self._first + first, None)
            yield Rows(decoded, trail) if isinstance(decoded, list) else Columns(decoded, trail)
            return
        middle = (first + stop) // 2
        yield from self._decode_block(run, begin, first, middle)
        yield from self._decode_block(run, begin, middle, stop)


class TableDecoder(Decoder):
    """Decode a shard from front to back.

    Args:
        kind: Of the shard.
        start_sample: Samples before the first one that is wanted, which are not decoded.
        pass_over: Called for samples that do not decode; None to raise.
    """

    def __init__(self, kind: TableKind, *, start_sample: int = 0, pass_over: PassOver | None = None) -> None:
        super().__init__()
        self._kind = kind
        self._start = start_sample
        self._pass_over = pass_over
        self._head = TableHead(kind.name)
        self._to_pass = 0  # bytes of the samples before
        self._inner: SamplesDecoder | None = None

    @property
    def has_table(self) -> bool:
        """Whether the table has come."""
        return self._inner is not None

    @property
    def held_bytes(self) -> int:
        """How much has come of the table, or of the sample that is read next."""
        return self._head.held_bytes if self._inner is None else self._inner.held_bytes

    @property
    def sample(self) -> int | None:
        """Index in the shard of the sample that is read next; None before all that are wanted, and behind."""
        return None if self._inner is None or self._to_pass else self._inner.sample

    def _decode(self, chunk: bytes | memoryview) -> Iterator[Block]:
        if self._inner is None:
            table, chunk = self._head.take(chunk)
            if table is None:
                return
            self._inner = self._open(table)
        passed = min(self._to_pass, len(chunk))
        self._to_pass -= passed
        if passed < len(chunk):
            yield from self._inner.feed(chunk[passed:] if passed else chunk)

    def _decode_end(self) -> Iterator[Block]:
        if self._inner is None:
            raise self._head.truncated()
        yield from self._inner.finish()

    def _open(self, table: OffsetTable) -> SamplesDecoder:
        bounds, begin, end = self._kind.bounds_of(table), int(table.bounds[0]), int(table.bounds[-1])
        self._to_pass = int(bounds[min(self._start, len(bounds) - 1)]) - begin
        return open_samples(
            self._kind, table, self._start, pass_over=self._pass_over, rest_bytes=end - int(bounds[-1])
        )


def open_samples(
    kind: TableKind, table: OffsetTable, first: int, stop: int | None = None, **options: Any
) -> SamplesDecoder:
    """The decoder of samples ``first`` up to ``stop`` of a shard, with options of ``SamplesDecoder``.

    Raises:
        FormatError: The shard has fewer, or its header is not sound.
    """
    bounds = kind.bounds_of(table)
    count = len(bounds) - 1
    if first > count:
        raise FormatError(
            f"{kind.name}: expected at least {first} samples, as a position or the plan says; found {count}: "
            "the shard has changed"
        )
    wanted = bounds[first : count + 1 if stop is None else stop + 1].astype(np.int64)
    return SamplesDecoder(kind.name, kind.open_samples(table.header), wanted, first, **options)


#: The table of 4,000 samples. Of 4 KiB each they are 16 MiB; where there are more, the rest takes another
# request.
HEAD_BYTES = 16 << 10


def plan_samples(kind: TableKind, spec: ShardSpec) -> Planning | None:
    """Plan what to read of a shard; None where all of it is wanted, which needs no plan."""
    return plan_table(kind, spec) if spec.start_sample or spec.stop_sample is not None else None


def plan_table(kind: TableKind, spec: ShardSpec, head: Answer | None = None) -> Planning:
    """Plan what to read of a shard: its table, and the bytes of the samples that are wanted.

    Args:
        kind: Of the shard.
        spec: What is wanted; keeps the table, and may have it already.
        head: The first ``HEAD_BYTES`` of the shard, where they are known.
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
    """The table of the shard that begins with ``head``, read to its end where that is not all."""
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
    content += (yield Span(len(content), begin)).content
    spec.keep(head, content)
    return parse_table(name, content)


_LENGTH_BYTES = 4


def field_edges(
    name: str, run: bytes | memoryview, bounds: NDArray[np.int64], sizes: Sequence[int | None]
) -> NDArray[np.int64]:
    """Where in ``run`` the fields of samples begin, and where the last one ends.

    Args:
        name: Of the format, for messages.
        run: The bytes of the samples.
        bounds: Where each begins and the last one ends, ``(n + 1,) int64``.
        sizes: How many bytes each field has; None for those whose samples tell it.

    Returns:
        ``(fields + 1, n) int64``: field ``f`` of sample ``i`` is from ``[f, i]`` up to ``[f + 1, i]``.

    Raises:
        FormatError: The lengths of a sample's fields do not add up to its own.
    """
    begins, stops = bounds[:-1], bounds[1:]
    told_bytes = _LENGTH_BYTES * sum(size is None for size in sizes)
    # First: with it the bytes of the samples bound what many fields of many samples take here.
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


def values_of(run: bytes | memoryview, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> list[bytes]:
    """Each value by itself.

    Args:
        run: Memory that may be used again.
        starts: Where each begins in it, ``(n,) int64``.
        stops: Where each ends, likewise.
    """
    edges = zip(starts.tolist(), stops.tolist(), strict=True)
    if type(run) is bytes:
        return [run[start:stop] for start, stop in edges]
    return [bytes(run[start:stop]) for start, stop in edges]


def joined(run: bytes | memoryview, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> NDArray[np.uint8]:
    """The values end to end, ``(bytes of all,) uint8``; a copy that may be written to."""
    view = memoryview(run)
    edges = zip(starts.tolist(), stops.tolist(), strict=True)
    return np.frombuffer(bytearray().join([view[start:stop] for start, stop in edges]), np.uint8)


def gathered(run: bytes | memoryview, starts: NDArray[np.int64], size: int) -> NDArray[np.uint8]:
    """As many bytes from each place on: ``(n, size) uint8``, a copy that may be written to.

    Args:
        run: Has so many behind each place.
        starts: The places, ``(n,) int64``, rising.
        size: How many bytes.
    """
    count = len(starts)
    if not count or not size:
        return np.zeros((count, size), np.uint8)
    steps = starts[1:] - starts[:-1]
    if (steps == steps[:1]).all():
        step = int(steps[0]) if len(steps) else size
        rows: NDArray[np.uint8] = np.ndarray((count, size), np.uint8, run, int(starts[0]), (step, 1))
        return rows.copy()
    if size <= _LONG_BYTES:
        picked: NDArray[np.uint8] = np.frombuffer(run, np.uint8)[starts[:, None] + np.arange(size)]
        return picked
    return joined(run, starts, starts + size).reshape(count, size)


# --- what an index says of them ---


class IndexedFile(msgspec.Struct, rename={"size_bytes": "bytes"}):
    """A file of a shard.

    Attributes:
        basename: Its name in the folder.
        size_bytes: Its length; None if the index does not say it.
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
        file: Which of its files is to be read.
        format: That file's, a name in ``formats``.
        samples: How many it has.
        raw: What that file is when it is decompressed, where it is compressed and the index says so.
    """

    file: IndexedFile
    format: str
    samples: int
    raw: IndexedFile | None = None
