"""The kinds of LitData's chunks: samples, compressed runs of samples, and tokens.

Tokens are documents end to end. A sample is a block of them, wherever documents begin.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..blocks import Block, Column, offsets_of
from ..errors import FormatError
from ..types import Answer, Layout, Planning, Span
from .compression import Decompressor
from .decoder import ByteQueue, Decoder, ShardSpec, bring, check_reached, check_unpacked, most_unpacked
from .litdata_values import Leaf, Tree, column_of, leaf_of
from .offsets import Decode, OffsetTable, SamplesDecoder, Values, field_edges, view_of

# The most that compressed samples may become which are decoded together.
_MOST_BYTES = 256 << 20


def samples_decoder(tree: Tree, leaves: Sequence[str], columns: tuple[str, ...] | None) -> Decode:
    """The function that decodes samples.

    Args:
        tree: How their values nest.
        leaves: The serializer of each value.
        columns: The wanted fields, in this order; None for all. Values of others are not looked at.
    """
    fields: dict[str, tuple[Tree, int, list[Leaf]]] = {}
    first = 0
    for name, inside in tree.fields:
        fields[name] = inside, first, [*map(leaf_of, leaves[first : first + inside.leaves])]
        first += inside.leaves
    return partial(_decode, len(leaves), {name: fields[name] for name in columns or fields})


def _decode(
    values: int,
    fields: Mapping[str, tuple[Tree, int, Sequence[Leaf]]],
    run: bytes | memoryview,
    bounds: NDArray[np.int64],
) -> Mapping[str, Column]:
    """The columns of samples; see ``Decode``.

    Args:
        values: How many values a sample has.
        fields: Of each wanted field its tree, the number of its first value, and what reads its values.
        run: See ``Decode``.
        bounds: See ``Decode``.
    """
    edges = field_edges("litdata", run, bounds, (None,) * values)
    columns = {}
    for name, (tree, first, readers) in fields.items():
        read = (
            reader(Values(run, edges[number], edges[number + 1]))
            for number, reader in enumerate(readers, first)
        )
        columns[name] = column_of(tree, read, len(bounds) - 1)
    return columns


def decode_compressed(
    decode: Decode, run: bytes | memoryview, bounds: NDArray[np.int64]
) -> Mapping[str, Column]:
    """The columns of samples that are a zstd frame each.

    Raises:
        FormatError: They are damaged, or become so much together that fewer should be decoded at a time.
    """
    bodies: list[bytes] = []
    size_bytes = 0
    for start, stop in itertools.pairwise(bounds.tolist()):
        bodies.append(inflate(run[start:stop]))
        size_bytes += len(bodies[-1])
        if size_bytes > _MOST_BYTES and len(bounds) > 2:
            raise FormatError(f"litdata: the samples of a block become more than {_MOST_BYTES} bytes")
    return decode(b"".join(bodies), offsets_of([*map(len, bodies)]))


def inflate(content: bytes | memoryview, size: int | None = None) -> bytes:
    """Decompress zstd frames.

    Args:
        content: The frames.
        size: How many bytes they should become; None if that is not known.

    Raises:
        FormatError: They are damaged, or become another number of bytes, or far too many.
    """
    if size is not None:
        check_unpacked("litdata: compressed samples", len(content), size)
    most = most_unpacked(len(content)) if size is None else size
    decompressor = Decompressor("zstd", "chunk")
    pieces: list[bytes] = []
    found = 0
    for piece in itertools.chain(decompressor.feed(content), decompressor.finish()):
        pieces.append(piece)
        found += len(piece)
        if found > most:
            break
    if found > most or (size is not None and found != size):
        wanted = f"at most {most}" if size is None else f"{size}"
        raise FormatError(
            f"litdata: damaged: {len(content)} bytes of zstd should become {wanted}, found {found} or more"
        )
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


#: The beginning of a chunk of compressed runs.
MAGIC = b"LDFZ01\0\0"

_VERSION = 1
_PREFIX = struct.Struct("<8sHHIII")
_FRAME = np.dtype(
    [("first", "<u4"), ("samples", "<u4"), ("begin", "<u8"), ("length", "<u4"), ("size", "<u4")]
)
_MOST_SAMPLES = 1 << 26


def plan_frames(head: Answer, decode: Decode, spec: ShardSpec) -> Planning:
    """Plan what to read of a chunk of compressed runs: the frames that hold wanted samples.

    Args:
        head: The beginning of the chunk, longer than the prefix.
        decode: Decodes samples.
        spec: What is wanted.

    Raises:
        FormatError: The directory is damaged.
    """
    size = _directory_bytes(head.content, head.length)
    content = yield from bring(head, Span(0, size))
    bounds, frames = _parse(content, size, head.length)
    count = len(bounds) - 1
    start, stop = spec.start_sample, count if spec.stop_sample is None else min(spec.stop_sample, count)
    check_reached(count, start)
    low, high = frames["first"].searchsorted(start, "right") - 1, frames["first"].searchsorted(stop)
    frames = frames[low:high] if start < stop else frames[:0]
    spans: tuple[Span, ...] = ()
    if len(frames):
        spans = (Span(int(frames["begin"][0]), int(frames["begin"][-1] + frames["length"][-1])),)
    decoder = partial(_FramesDecoder, bounds.astype(np.int64), frames, decode, start, stop)
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


def _parse(content: bytes, size: int, length: int) -> tuple[NDArray[np.uint32], NDArray[np.void]]:
    """The directory of a chunk, each number of it checked against the others.

    Returns:
        Where each sample begins in the decompressed frames, and where the last one ends; and the frames, of
        ``_FRAME``.
    """
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
            "before, or does not fit the offsets of samples, or the chunk is truncated",
            offset=size - _FRAME.itemsize * (count - wrong),
            sample=int(min(frames["first"][wrong], samples)),
        )
    return bounds, frames


class _FramesDecoder(Decoder):
    """Decompress one run of samples after another, and decode those that are wanted.

    Args:
        bounds: The bounds of all samples, in the decompressed frames.
        frames: The frames that are fed.
        decode: Decodes samples.
        start: The first sample that is wanted.
        stop: Index behind the last one.
    """

    def __init__(
        self, bounds: NDArray[np.int64], frames: NDArray[np.void], decode: Decode, start: int, stop: int
    ) -> None:
        self._bounds = bounds
        self._frames = frames
        self._decode_samples = decode
        self._wanted = range(start, stop)
        self._nth = 0
        self._held = ByteQueue()

    def _decode(self, chunk: bytes | memoryview) -> Iterator[Block]:
        self._held.put(chunk)
        for frame in self._frames[self._nth :]:
            if self._held.size_bytes < frame["length"]:
                return
            self._nth += 1
            yield from self._decode_frame(frame, b"".join(self._held.take(int(frame["length"]))))

    def finish(self) -> Iterator[Block]:
        yield from ()
        if self._nth < len(self._frames):
            frame = self._frames[self._nth]
            raise FormatError(
                f"litdata: truncated within run {self._nth} of samples",
                offset=int(frame["begin"]) + self._held.size_bytes,
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
        decoder = SamplesDecoder("litdata", self._decode_samples, bounds, low, begin=0, end=len(content))
        try:
            yield from decoder.feed(content)
            yield from decoder.finish()
        except FormatError as error:
            error.offset = begin  # of the run: samples have no offset of their own
            raise


#: The field of a block of tokens.
FIELD = "tokens"


@dataclass(frozen=True)
class Tokens:
    """How the tokens of a chunk are cut into samples, which are blocks of them.

    Attributes:
        dtype: The dtype of the tokens.
        block_size: How many tokens make a sample.
    """

    dtype: np.dtype[np.generic]
    block_size: int

    def bounds(self, table: OffsetTable) -> NDArray[np.int64]:
        """Where each block begins and the last one ends; the tokens left at the end belong to no block.

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
        """The blocks; see ``Decode``."""
        is_bool = self.dtype == np.bool_  # bytes other than 0 and 1 are true
        dtype: np.dtype[Any] = np.dtype(np.uint8) if is_bool else self.dtype
        values = view_of(run, dtype, (len(bounds) - 1) * self.block_size, int(bounds[0]))
        return {FIELD: (values != 0 if is_bool else values).reshape(-1, self.block_size)}
