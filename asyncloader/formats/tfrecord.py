"""TFRecord: records between checksums, each a ``tf.train.Example`` of bytes, floats and integers.

A record is ``u64 length, u32 crc(length), bytes, u32 crc(bytes)`` in little-endian order. The checksums are
masked CRC-32C (``tensorflow/core/lib/io/record_writer.h``, ``core/lib/hash/crc32c.h``), the messages those of
``tensorflow/core/example/example.proto``. Nothing is used before its checksum was verified. A shard that was
cut between two records looks whole here; the store checks that it had its full length.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..blocks import Block, OffsetTrail, Rows
from ..errors import FormatError
from ..types import Sample
from .compression import open_stream
from .decoder import MAX_BLOCK_BYTES, MAX_BLOCK_SAMPLES, Decoder, PassOver, ShardSpec, describe_bytes

_HEAD_BYTES = 12  # a record's length, and the checksum of that
_FRAME_BYTES = 16  # and the checksum behind its bytes
_HEAD, _CRC = struct.Struct("<QI"), struct.Struct("<I")


class TfRecordDecoder(Decoder):
    """Decode a shard into samples ``{name: values, ...}``, a field for each feature.

    Values are always ``list[bytes]``, ``(n,) float32`` or ``(n,) int64``, so a feature has the same type in
    all samples; a feature without a list is an empty ``list``.

    Args:
        start_sample: Index in the shard of the first sample to come.
        start_byte: Offset of the first byte that will be fed, taken from a trail together with
            ``start_sample``.
        pass_over: Called for each record whose bytes are damaged or no Example, with the error that would be
            raised; the record keeps its index. None: the error is raised. A damaged length always raises,
            since nothing can be found behind it.
    """

    #: As for lines.
    most_record_bytes: ClassVar[int] = 256 << 20

    def __init__(
        self, *, start_sample: int = 0, start_byte: int = 0, pass_over: PassOver | None = None
    ) -> None:
        self._index = start_sample
        self._at = start_byte  # offset of the record that is open
        self._pass_over = pass_over
        self._masked_crc = masked_crc32c()
        self._held: list[bytes] = []  # of that record
        self._held_bytes = 0
        self._wanted_bytes = _HEAD_BYTES
        self._samples: list[Sample] = []
        self._ends: list[int] = []

    def _decode(self, chunk: bytes | memoryview) -> Iterator[Block]:
        self._held.append(bytes(chunk))
        self._held_bytes += len(chunk)
        if self._held_bytes < self._wanted_bytes:
            return
        run, self._held = b"".join(self._held), []
        size, begin, at, block_bytes = len(run), self._at, 0, 0
        masked_crc, most_bytes = self._masked_crc, self.most_record_bytes
        self._wanted_bytes = _HEAD_BYTES
        while at + _HEAD_BYTES <= size:
            length, crc = _HEAD.unpack_from(run, at)
            is_right = masked_crc(run[at : at + 8]) == crc
            if not is_right or length > most_bytes:
                self._at = begin + at
                yield from self._take()
                raise self._wrong_length(run, length, is_right)
            stop = at + _HEAD_BYTES + length
            if stop + _CRC.size > size:
                self._wanted_bytes = _FRAME_BYTES + length
                break
            content = run[at + _HEAD_BYTES : stop]
            try:
                if masked_crc(content) != _CRC.unpack_from(run, stop)[0]:
                    raise ValueError("damaged: the bytes of the record have another checksum")
                sample = _example_of(content)
            except (ValueError, IndexError, OverflowError) as error:
                self._at = begin + at
                yield from self._take()
                self._refuse(error)
            else:
                self._samples.append(sample)
                self._ends.append(begin + stop + _CRC.size)
                block_bytes += length
            at = stop + _CRC.size
            if len(self._samples) >= MAX_BLOCK_SAMPLES or block_bytes >= MAX_BLOCK_BYTES:
                yield from self._take()
                block_bytes = 0
        yield from self._take()
        self._at = begin + at
        self._held, self._held_bytes = [run[at:]], size - at

    def finish(self) -> Iterator[Block]:
        yield from ()
        if self._held_bytes:
            start = b"".join(self._held)[:64]
            hint = "" if self._at else describe_bytes(start)
            what = f"tfrecord: truncated: the shard ends within a record{hint}"
            raise FormatError(what, offset=self._at, sample=self._index)

    def _wrong_length(self, run: bytes, length: int, is_right: bool) -> FormatError:
        """The error for the length of the open record; ``is_right``: it has its checksum."""
        if is_right:
            what = f"a record of {length} bytes; at most {self.most_record_bytes} are read"
        else:
            hint = "" if self._at else describe_bytes(run[:64])
            what = f"damaged: the length of a record has another checksum{hint}"
        return FormatError(f"tfrecord: {what}", offset=self._at, sample=self._index)

    def _refuse(self, error: Exception) -> None:
        """Raise for the open record, or pass over it."""
        what = error if type(error) is ValueError else "no tf.train.Example"
        fault = FormatError(f"tfrecord: {what}", offset=self._at, sample=self._index)
        if self._pass_over is None:
            raise fault from error
        self._pass_over(fault)
        self._index += 1

    def _take(self) -> Iterator[Block]:
        if self._samples:
            samples, ends, first = self._samples, self._ends, self._index
            self._samples, self._ends, self._index = [], [], first + len(samples)
            yield Rows([*samples], OffsetTrail(first, ends))


# --- tf.train.Example, in protocol buffers' wire format ---

_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5
_FIRST, _SECOND, _THIRD = (number << 3 | _BYTES for number in (1, 2, 3))
_MOST_SHIFT = 63

# Integers of fewer bytes are read one by one: that takes less time than the calls into NumPy.
_FEW_BYTES = 48


def _example_of(content: bytes) -> Sample:
    """The fields of ``Example { Features { map<string, Feature> } }``."""
    sample: Sample = {}
    for _, features, end in _fields(content, 0, len(content), _FIRST):
        for _, entry, stop in _fields(content, features, end, _FIRST):
            name, values = "", (0, 0)
            for tag, begin, behind in _fields(content, entry, stop, _FIRST, _SECOND):
                if tag == _FIRST:
                    name = str(content[begin:behind], "utf-8")
                else:
                    values = begin, behind
            sample[name] = _feature_of(content, *values)
    return sample


def _feature_of(content: bytes, at: int, stop: int) -> Any:
    """The values of ``Feature``: the last one of its BytesList, FloatList and Int64List."""
    kind = 0
    parts: list[tuple[int, int]] = []
    for tag, begin, end in _fields(content, at, stop, _FIRST, _SECOND, _THIRD):
        parts = [*(parts if tag == kind else ()), (begin, end)]
        kind = tag
    if kind in (0, _FIRST):
        return [content[b:e] for part in parts for _, b, e in _fields(content, *part, _FIRST)]
    # Packed or not, values are the same bytes.
    alone = 1 << 3 | (_FIXED_32 if kind == _SECOND else _VARINT)
    raw = b"".join(content[b:e] for part in parts for _, b, e in _fields(content, *part, _FIRST, alone))
    if kind == _THIRD:
        return _integers(raw)
    if len(raw) % 4:
        raise ValueError("no tf.train.Example: floats of other than 4 bytes")
    return np.frombuffer(bytearray(raw), "<f4")


def _fields(content: bytes, at: int, stop: int, *known: int) -> Iterator[tuple[int, int, int]]:
    """The tag of each field of a message, and where its value begins and ends."""
    while at < stop:
        tag, at = _varint(content, at)
        if tag not in known:
            raise ValueError(
                f"no tf.train.Example: expected one of the tags {known} in a message, found {tag}; "
                "SequenceExample and other records are not read"
            )
        kind = tag & 7
        if kind == _BYTES:
            size, at = _varint(content, at)
            end = at + size
        else:
            end = at + 4 if kind == _FIXED_32 else _varint(content, at)[1]
        if end > stop:
            raise ValueError("no tf.train.Example: a value ends behind its message")
        yield tag, at, end
        at = end


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """A number of at most 64 bits, and where it ends."""
    byte = content[at]
    if byte < 0x80:
        return byte, at + 1
    value = shift = 0
    while byte >= 0x80:
        value |= (byte & 0x7F) << shift
        shift += 7
        at += 1
        if shift > _MOST_SHIFT or at == len(content):
            raise ValueError("no tf.train.Example: a number that does not end")
        byte = content[at]
    return (value | byte << shift) & 0xFFFF_FFFF_FFFF_FFFF, at + 1


def _integers(raw: bytes) -> NDArray[np.int64]:
    """The numbers of varints end to end; negative ones have ten bytes."""
    if raw.isascii():  # a byte each
        return np.frombuffer(raw, np.uint8).astype(np.int64)
    if len(raw) < _FEW_BYTES:
        values, at = [], 0
        while at < len(raw):
            value, at = _varint(raw, at)
            values.append(value)
        return np.array(values, np.uint64).view(np.int64)
    octets = np.frombuffer(raw, np.uint8)
    ends = np.flatnonzero(octets < 0x80)
    begins = np.append(0, ends[:-1] + 1)
    widths = ends - begins + 1
    if not len(ends) or ends[-1] + 1 < len(raw) or widths.max() > 10:
        raise ValueError("no tf.train.Example: a number that does not end")
    numbers = np.zeros(len(ends), np.uint64)
    for place in range(int(widths.max())):
        (which,) = np.nonzero(widths > place)
        part = (octets[begins[which] + place] & 0x7F).astype(np.uint64)
        numbers[which] |= part << np.uint64(7 * place)
    return numbers.view(np.int64)


# --- masked CRC-32C ---

_MASK = 0xA282EAD8


def masked_crc32c() -> Callable[[bytes], int]:
    """The function that computes a checksum as it is stored.

    Raises:
        ImportError: google-crc32c is not installed.
    """
    try:
        import google_crc32c
    except ImportError as error:
        raise ImportError("reading TFRecord needs a package: pip install asyncloader[checksums]") from error

    crc_of = google_crc32c.value

    def compute(content: bytes) -> int:
        crc: int = crc_of(content)
        return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFF_FFFF

    return compute


def _is_record(start: bytes) -> bool:
    """Whether a shard begins with a length and its checksum: one of 559,903 bytes looks like gzip."""
    return len(start) >= _HEAD_BYTES and masked_crc32c()(start[:8]) == _CRC.unpack_from(start, 8)[0]


def open_tfrecord(spec: ShardSpec) -> Decoder:
    """The decoder of a shard, compressed as a whole or not."""
    return open_stream(spec, partial(TfRecordDecoder, pass_over=spec.pass_over), _is_record)
