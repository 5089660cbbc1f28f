"""Chunks whose samples are compressed in runs: a directory, and behind it a zstd frame for each run."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ...blocks import Block
from ...errors import FormatError
from ...types import Answer, Layout, Planning, Span
from .._push import PushDecoder
from ..offsets.decoder import Samples, SamplesDecoder
from .samples import inflate

__all__ = ["MAGIC", "plan_frames"]

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


def plan_frames(head: Answer, samples: Samples, start: int, stop: int | None) -> Planning:
    """Plan what to read of such a chunk: the frames that hold wanted samples.

    Args:
        head: The beginning of the chunk, which asked for more than the prefix.
        samples: Decodes samples.
        start: Samples that were had already.
        stop: Index behind the last one that is wanted; None for all.

    Raises:
        FormatError: The directory is damaged.
    """
    content = head.content
    size = _directory_bytes(content, head.length)
    if size > len(content):
        content += (yield Span(len(content), size)).content
    directory = _parse(content[:size], size, head.length)
    count = len(directory.bounds) - 1
    stop = count if stop is None else min(stop, count)
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


class _FramesDecoder(PushDecoder):
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
