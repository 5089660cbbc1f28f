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
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..blocks import Block, Column, Columns, OffsetTrail, Rows
from ..errors import FormatError
from ..types import Answer, Layout, Planning, Span
from .decoder import MAX_BLOCK_BYTES, MAX_BLOCK_SAMPLES, Footers, PassOver, PushDecoder, describe_bytes

__all__ = [
    "HEAD_BYTES",
    "OffsetTable",
    "Samples",
    "SamplesDecoder",
    "TableDecoder",
    "TableHead",
    "TableKind",
    "check_end",
    "field_edges",
    "gathered",
    "joined",
    "plan_samples",
    "plan_table",
    "read_table",
    "values_of",
]


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


def check_end(name: str, table: OffsetTable, length: int) -> None:
    """Hold where the last sample ends against the end of the shard.

    Raises:
        FormatError: They differ.
    """
    end = int(table.bounds[-1])
    if end != length:
        what = "truncated" if length < end else "damaged: there are bytes behind the last sample"
        raise FormatError(
            f"{name}: {what}: the table ends the last sample at byte {end}, the shard has {length}",
            offset=min(end, length),
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
    """

    name: str
    open_samples: Callable[[bytes], Samples]


class SamplesDecoder(PushDecoder):
    """Decode samples whose places are known; fed the bytes from the first one to the last one.

    Args:
        name: Of the format, for messages.
        samples: Decodes them.
        bounds: Where in the shard each of them begins, and where the last one ends: ``(n + 1,) int64``.
        first: Index in the shard of the first one.
        pass_over: Called for samples that do not decode; None to raise.
    """

    def __init__(
        self,
        name: str,
        samples: Samples,
        bounds: NDArray[np.int64],
        first: int,
        *,
        pass_over: PassOver | None = None,
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
            raise FormatError(
                f"{self._name}: damaged: there are bytes behind the last sample, which the table ends at "
                f"byte {bounds[-1]}",
                offset=int(bounds[-1]),
            )
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


class TableDecoder(PushDecoder):
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
        bounds = table.bounds
        self._to_pass = int(bounds[min(self._start, table.samples)]) - int(bounds[0])
        return open_samples(self._kind, table, self._start, table.samples, self._pass_over)


def open_samples(
    kind: TableKind, table: OffsetTable, first: int, stop: int, pass_over: PassOver | None = None
) -> SamplesDecoder:
    """The decoder of samples ``first`` up to ``stop`` of a shard.

    Raises:
        FormatError: The shard has fewer, or its header is not sound.
    """
    if first > table.samples:
        raise FormatError(
            f"expected at least {first} samples, as many come before those to read or were read from it "
            f"before; found {table.samples}: the shard has changed"
        )
    bounds = table.bounds[first : stop + 1].astype(np.int64)
    return SamplesDecoder(kind.name, kind.open_samples(table.header), bounds, first, pass_over=pass_over)


#: The table of 4,000 samples. Of 4 KiB each they are 16 MiB; where there are more, the rest takes another
# request.
HEAD_BYTES = 16 << 10


def plan_samples(
    kind: TableKind, *, start_sample: int = 0, stop_sample: int | None = None, footers: Footers | None = None
) -> Planning | None:
    """Plan what to read of a shard; None where all of it is wanted, which needs no plan.

    Args:
        kind: Of the shard.
        start_sample: Samples that were had already.
        stop_sample: Index behind the last one that is wanted; None for all.
        footers: Keeps the table, and may have it already.
    """
    if not start_sample and stop_sample is None:
        return None
    return _plan(kind, start_sample, stop_sample, footers)


def _plan(kind: TableKind, start: int, stop: int | None, footers: Footers | None) -> Planning:
    answer = yield Span(0, HEAD_BYTES)
    return (yield from plan_table(kind, answer, start, stop, footers))


def plan_table(
    kind: TableKind, answer: Answer, start: int, stop: int | None, footers: Footers | None
) -> Planning:
    """The rest of a plan, where the first ``HEAD_BYTES`` of the shard are known; see ``plan_samples``."""
    table = yield from read_table(kind.name, answer, footers)
    check_end(kind.name, table, answer.length)
    end = table.samples if stop is None else max(min(stop, table.samples), start)
    decoder = partial(open_samples, kind, table, start, end)
    if start >= end:
        return Layout((), decoder, table.samples, passes_over=True)
    span = Span(int(table.bounds[start]), int(table.bounds[end]))
    spans = (span,) if span.start < span.stop else ()
    return Layout(spans, decoder, table.samples, passes_over=True)


def read_table(name: str, answer: Answer, footers: Footers | None) -> Generator[Span, Answer, OffsetTable]:
    """The table of the shard whose beginning ``answer`` has, read to its end where that is not all."""
    content, length, version = answer
    begin = samples_begin(name, content[:LEAST_BYTES])
    if begin <= len(content):
        return parse_table(name, content[:begin])
    if footers is not None and version is not None and (kept := footers.find(version, length)) is not None:
        return parse_table(name, kept)
    if begin > length:
        raise FormatError(
            f"{name}: truncated: the first sample should begin at byte {begin}, the shard has {length}",
            offset=length,
        )
    content += (yield Span(len(content), begin)).content
    if footers is not None and version is not None:
        footers.keep(version, length, content)
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
