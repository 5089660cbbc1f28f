"""The kinds of LitData's chunks: samples, runs of them that are compressed, and tokens.

Tokens are documents end to end, of which each sample is a block, wherever documents begin.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from ..blocks import Block, Column, offsets_of
from ..errors import FormatError
from ..types import Answer, Layout, Planning, Span
from .compression import Decompressor
from .decoder import Decoder, ShardSpec
from .litdata_values import Leaf, Tree, Values, column_of, leaf_of
from .offsets import OffsetTable, Samples, SamplesDecoder, field_edges

# As of a page of Parquet.
_MOST_BYTES = 256 << 20
_MOST_RATIO = 100


@dataclass(frozen=True)
class LitDataSamples:
    """Makes the columns of samples; see ``offsets.decoder.Samples``.

    Args:
        tree: How their values nest.
        leaves: The serializer of each value.
        columns: The fields that are wanted, in this order; None for all. Values of others are not looked at.
    """

    tree: Tree
    leaves: tuple[str, ...]
    columns: tuple[str, ...] | None = None

    def decode(self, run: bytes | memoryview, bounds: NDArray[np.int64]) -> Mapping[str, Column]:
        """The columns."""
        edges = field_edges("litdata", run, bounds, (None,) * len(self.leaves))
        lengths = edges[1:] - edges[:-1]
        fields: dict[str, Column] = {}
        for name, tree, first, readers in self._wanted:
            numbers = range(first, first + len(readers))
            values = [
                read(Values(run, edges[number], lengths[number]))
                for number, read in zip(numbers, readers, strict=True)
            ]
            fields[name] = column_of(tree, values, len(bounds) - 1)
        return fields

    @cached_property
    def _wanted(self) -> list[tuple[str, Tree, int, list[Leaf]]]:
        """Of each field that is wanted its tree, the number of its first value, and what reads its values."""
        known: dict[str, tuple[str, Tree, int, list[Leaf]]] = {}
        first = 0
        for name, tree in self.tree.fields:
            leaves = self.leaves[first : first + tree.leaves]
            known[name] = name, tree, first, [*map(leaf_of, leaves)]
            first += tree.leaves
        return [known[name] for name in self.columns or known]


@dataclass(frozen=True)
class CompressedSamples:
    """Samples each of which is a zstd frame by itself."""

    inner: LitDataSamples

    def decode(self, run: bytes | memoryview, bounds: NDArray[np.int64]) -> Mapping[str, Column]:
        """The columns of what they become; of fewer samples at a time where that is much."""
        bodies: list[bytes] = []
        size_bytes = 0
        for start, stop in itertools.pairwise(bounds.tolist()):
            bodies.append(inflate(run[start:stop]))
            size_bytes += len(bodies[-1])
            if size_bytes > _MOST_BYTES and len(bounds) > 2:
                raise FormatError(f"litdata: the samples of a block become more than {_MOST_BYTES} bytes")
        return self.inner.decode(b"".join(bodies), offsets_of([*map(len, bodies)]))


def inflate(content: bytes | memoryview, size: int | None = None) -> bytes:
    """What zstd frames become.

    Args:
        content: The frames.
        size: How many bytes they should become; None if that is not known.

    Raises:
        FormatError: They are damaged, become something of another length, or far too much.
    """
    most = max(_MOST_BYTES, _MOST_RATIO * len(content))
    if size is not None and size > most:
        raise FormatError(
            f"litdata: {len(content)} bytes are to become {size}; at most {most} are decompressed: the chunk "
            "is damaged, or made to use up memory"
        )
    decompressor = Decompressor("zstd")
    pieces: list[bytes] = []
    found = 0
    for piece in _fed(decompressor, content):
        pieces.append(piece)
        found += len(piece)
        if found > (most if size is None else size):
            break
    if found > most or (size is not None and found != size):
        wanted = f"at most {most}" if size is None else f"{size}"
        raise FormatError(
            f"litdata: damaged: {len(content)} bytes of zstd should become {wanted}, found {found} or more"
        )
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _fed(decompressor: Decompressor, content: bytes | memoryview) -> Iterable[bytes]:
    yield from decompressor.feed(content)
    yield from decompressor.finish()


#: What such a chunk begins with.
MAGIC = b"LDFZ01\0\0"

_VERSION = 1
_PREFIX = struct.Struct("<8sHHIII")
_FRAME = np.dtype(
    [("first", "<u4"), ("samples", "<u4"), ("begin", "<u8"), ("length", "<u4"), ("size", "<u4")]
)
_MOST_SAMPLES = 1 << 26


@dataclass(frozen=True)
class Directory:
    """What such a chunk says of itself.

    Attributes:
        bounds: Where each sample begins in what the frames become, and where the last one ends.
        frames: A row each, of ``_FRAME``.
    """

    bounds: NDArray[np.uint32]
    frames: NDArray[np.void]


def plan_frames(head: Answer, samples: Samples, spec: ShardSpec) -> Planning:
    """Plan what to read of such a chunk: the frames that hold wanted samples.

    Args:
        head: The beginning of the chunk, which asked for more than the prefix.
        samples: Decodes samples.
        spec: Which are wanted.

    Raises:
        FormatError: The directory is damaged.
    """
    content = head.content
    size = _directory_bytes(content, head.length)
    if size > len(content):
        content += (yield Span(len(content), size)).content
    directory = _parse(content[:size], size, head.length)
    count = len(directory.bounds) - 1
    start, stop = spec.start_sample, count if spec.stop_sample is None else min(spec.stop_sample, count)
    if start > count:
        raise FormatError(
            f"litdata: expected at least {start} samples, as many were read from this chunk before; found "
            f"{count}: the chunk has changed"
        )
    firsts = directory.frames["first"]
    low, high = (int(np.searchsorted(firsts, start, "right")) - 1, int(np.searchsorted(firsts, stop, "left")))
    frames = directory.frames[low:high] if start < stop else directory.frames[:0]
    spans = (
        (Span(int(frames["begin"][0]), int(frames["begin"][-1] + frames["length"][-1])),)
        if len(frames)
        else ()
    )
    decoder = partial(_FramesDecoder, directory.bounds.astype(np.int64), frames, samples, start, stop)
    return Layout(spans, decoder, count)


def _directory_bytes(content: bytes, length: int) -> int:
    if len(content) < _PREFIX.size:
        raise FormatError("litdata: truncated: the chunk ends within its directory", offset=len(content))
    _, version, _, samples, _, frames = _PREFIX.unpack_from(content)
    size = _PREFIX.size + 4 * (samples + 1) + _FRAME.itemsize * frames
    if version != _VERSION:
        raise FormatError(
            f"litdata: expected compressed runs of version {_VERSION}, found {version}", offset=8
        )
    if not 0 < frames <= samples <= _MOST_SAMPLES or size > length:
        raise FormatError(
            f"litdata: damaged: a directory of {samples} samples in {frames} runs, in a chunk of {length} "
            "bytes",
            offset=12,
        )
    return int(size)


def _parse(content: bytes, size: int, length: int) -> Directory:
    """The directory, each number of it held against the others."""
    if len(content) < size:
        raise FormatError("litdata: truncated: the chunk ends within its directory", offset=len(content))
    samples, _, count = struct.unpack_from("<III", content, 12)
    bounds = np.frombuffer(content, "<u4", samples + 1, _PREFIX.size)
    frames = np.frombuffer(content, _FRAME, count, _PREFIX.size + 4 * (samples + 1))
    falls = np.flatnonzero(bounds[1:] < bounds[:-1])
    if len(falls) or bounds[0]:
        sample = int(falls[0]) if len(falls) else 0
        raise FormatError(
            "litdata: damaged: the offsets of samples do not rise from 0",
            offset=_PREFIX.size + 4 * (sample + 1),
            sample=sample,
        )
    stops = frames["first"].astype(np.int64) + frames["samples"]
    right = (frames["first"] == np.append(0, stops[:-1])) & (stops <= samples)
    right[-1] &= stops[-1] == samples
    ends = frames["begin"] + frames["length"]
    right &= (frames["begin"] == np.append(np.uint64(size), ends[:-1])) & (ends <= length)
    right[-1] &= ends[-1] == length
    reached = np.minimum(stops, samples)
    right &= frames["size"] == bounds[reached] - bounds[np.minimum(frames["first"], samples)]
    if not right.all():
        wrong = int(right.argmin())
        raise FormatError(
            f"litdata: damaged: run {wrong} of samples, {frames[wrong].tolist()}, does not follow the one "
            "before, or does not fit to the offsets of samples, or the chunk is truncated",
            offset=size - _FRAME.itemsize * (count - wrong),
            sample=int(min(frames["first"][wrong], samples)),
        )
    return Directory(bounds, frames)


class _FramesDecoder(Decoder):
    """Decompress one run of samples after another, and decode those that are wanted.

    Args:
        bounds: Of all samples, in what the frames become.
        frames: Those that are fed.
        samples: Decodes samples.
        start: The first that is wanted.
        stop: Index behind the last one.
    """

    def __init__(
        self, bounds: NDArray[np.int64], frames: NDArray[np.void], samples: Samples, start: int, stop: int
    ) -> None:
        super().__init__()
        self._bounds = bounds
        self._frames = frames
        self._samples = samples
        self._wanted = range(start, stop)
        self._nth = 0
        self._held = bytearray()

    def _decode(self, chunk: bytes | memoryview) -> Iterator[Block]:
        at = 0
        while at < len(chunk) and self._nth < len(self._frames):
            frame = self._frames[self._nth]
            step = chunk[at : at + int(frame["length"]) - len(self._held)]
            at += len(step)
            self._held += step
            if len(self._held) < frame["length"]:
                return
            body, self._held = bytes(self._held), bytearray()
            yield from self._decode_frame(frame, body)
            self._nth += 1

    def _decode_end(self) -> Iterator[Block]:
        yield from ()
        if self._nth < len(self._frames):
            frame = self._frames[self._nth]
            raise FormatError(
                f"litdata: truncated within run {self._nth} of samples",
                offset=int(frame["begin"]) + len(self._held),
                sample=int(frame["first"]),
            )

    def _decode_frame(self, frame: np.void, body: bytes) -> Iterator[Block]:
        first, count, begin = int(frame["first"]), int(frame["samples"]), int(frame["begin"])
        try:
            content = inflate(body, int(frame["size"]))
        except FormatError as error:
            error.offset, error.sample = begin, first
            raise
        low, high = max(first, self._wanted.start), min(first + count, self._wanted.stop)
        bounds = self._bounds[low : high + 1] - self._bounds[first]
        decoder = SamplesDecoder("litdata", self._samples, bounds, low)
        try:
            yield from decoder.feed(content[int(bounds[0]) : int(bounds[-1])])
            yield from decoder.finish()
        except FormatError as error:
            error.offset = begin  # of the run: samples have none of their own
            raise


#: The field that a block of tokens is.
FIELD = "tokens"


@dataclass(frozen=True)
class Tokens:
    """How the tokens of a chunk are cut; its samples are blocks of them, see ``offsets.Samples``.

    Attributes:
        dtype: Of the tokens.
        block_size: How many make a sample.
    """

    dtype: np.dtype[np.generic]
    block_size: int

    def bounds(self, table: OffsetTable) -> NDArray[np.int64]:
        """Where each block begins and the last one ends; what is left at the end of a chunk belongs to none.

        Raises:
            FormatError: The documents are no whole tokens.
        """
        begin, end = int(table.bounds[0]), int(table.bounds[-1])
        if (end - begin) % self.dtype.itemsize:
            raise FormatError(
                f"litdata: damaged: {end - begin} bytes are no whole tokens of {self.dtype}", offset=begin
            )
        size = self.dtype.itemsize * self.block_size
        return begin + size * np.arange((end - begin) // size + 1, dtype=np.int64)

    def decode(self, run: bytes | memoryview, bounds: NDArray[np.int64]) -> Mapping[str, Column]:
        begin, end = int(bounds[0]), int(bounds[-1])
        flat = np.frombuffer(run, np.uint8, end - begin, begin).copy()
        values = flat != 0 if self.dtype == np.bool_ else flat.view(self.dtype)
        return {FIELD: values.reshape(-1, self.block_size)}
