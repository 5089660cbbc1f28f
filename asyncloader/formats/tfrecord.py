"""TFRecord: records between checksums, each a ``tf.train.Example`` of bytes, floats and integers.

A record is ``u64 length, u32 crc(length), bytes, u32 crc(bytes)`` in little-endian order. The checksums are
masked CRC-32C (``tensorflow/core/lib/io/record_writer.h``, ``core/lib/hash/crc32c.h``), the messages those of
``tensorflow/core/example/example.proto``. Nothing is used before its checksum was verified. A shard that was
cut between two records looks whole here; the store checks that it had its full length.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..blocks import Block, OffsetTrail, Rows
from ..errors import FormatError
from ..types import Sample
from .compression import open_stream
from .decoder import MAX_BLOCK_BYTES, MAX_BLOCK_SAMPLES, Decoder, PassOver, ShardSpec, describe_bytes
from .digest import crc32c_in_c

_HEAD_BYTES = 12  # a record's length, and the checksum of that
_FRAME_BYTES = 16  # and the checksum behind its bytes
_LENGTH, _CRC = struct.Struct("<Q"), struct.Struct("<I")


class TfRecordDecoder(Decoder):
    """Decode a shard into samples ``{name: values, ...}``, a field for each feature.

    Values are always ``list[bytes]``, ``(n,) float32`` or ``(n,) int64``, so a feature has the same type in
    all samples; a feature without a list is an empty ``list``.

    Args:
        start_sample: Index in the shard of the first sample to come.
        start_byte: Offset of the first byte that will be fed, taken from a trail together with
            ``start_sample``.
        max_record_bytes: The longest record; 256 MiB, as for lines.
        pass_over: Called for each record whose bytes are damaged or no Example, with the error that would be
            raised; the record keeps its index. None: the error is raised. A damaged length always raises,
            since nothing can be found behind it.
    """

    def __init__(
        self,
        *,
        start_sample: int = 0,
        start_byte: int = 0,
        max_record_bytes: int = 256 << 20,
        pass_over: PassOver | None = None,
    ) -> None:
        self._index = start_sample
        self._at = start_byte  # offset of the record that is open
        self._max_record_bytes = max_record_bytes
        self._pass_over = pass_over
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
        starts, lengths, fault = self._records(run)
        whole = len(starts)
        if whole and starts[-1] + _FRAME_BYTES + lengths[-1] > len(run):
            whole -= 1
        begin, used = self._at, starts[whole - 1] + _FRAME_BYTES + lengths[whole - 1] if whole else 0
        yield from self._decode_records(run, starts[:whole], lengths[:whole])
        self._at = begin + used
        if fault is not None:
            fault.offset, fault.sample = self._at, self._index
            raise fault
        self._held, self._held_bytes = [run[used:]], len(run) - used
        self._wanted_bytes = _FRAME_BYTES + lengths[-1] if whole < len(starts) else _HEAD_BYTES

    def _decode_end(self) -> Iterator[Block]:
        yield from ()
        if self._held_bytes:
            start = b"".join(self._held)[:64]
            hint = "" if self._at else describe_bytes(start)
            what = f"tfrecord: truncated: the shard ends within a record{hint}"
            raise FormatError(what, offset=self._at, sample=self._index)

    def _records(self, run: bytes) -> tuple[list[int], list[int], FormatError | None]:
        """Where records with a valid length begin, these lengths, and what is wrong with the next one."""
        starts, lengths = [], []
        at = 0
        while at + _HEAD_BYTES <= len(run):
            starts.append(at)
            lengths.append(_LENGTH.unpack_from(run, at)[0])
            at += _FRAME_BYTES + lengths[-1]
        if not starts:
            return starts, lengths, None
        right = _stored(run, np.array(starts) + 8) == _masked(_crc_of_lengths(run, np.array(starts)))
        long = np.array(lengths, np.uint64) > self._max_record_bytes
        bad = int((~right | long).argmax())
        if right[bad] and not long[bad]:
            return starts, lengths, None
        if right[bad]:
            what = f"a record of {lengths[bad]} bytes; at most max_record_bytes={self._max_record_bytes}"
        else:
            hint = "" if self._at or bad else describe_bytes(run[:64])
            what = f"damaged: the length of a record has another checksum{hint}"
        return starts[:bad], lengths[:bad], FormatError(f"tfrecord: {what}")

    def _decode_records(self, run: bytes, starts: list[int], lengths: list[int]) -> Iterator[Block]:
        """The blocks of complete records with valid lengths."""
        if not starts:
            return
        begins = np.array(starts, np.int64) + _HEAD_BYTES
        right = _stored(run, begins + np.array(lengths, np.int64)) == _masked(
            _crcs(run, begins.tolist(), lengths)
        )
        offset, block_bytes = self._at, 0
        for start, length, is_right in zip(starts, lengths, right.tolist(), strict=True):
            try:
                if not is_right:
                    raise ValueError("damaged: the bytes of the record have another checksum")
                content = run[start + _HEAD_BYTES : start + _HEAD_BYTES + length]
                self._samples.append(_example_of(content))
            except (ValueError, IndexError, OverflowError) as error:
                fault = FormatError(
                    f"tfrecord: {error if type(error) is ValueError else 'no tf.train.Example'}",
                    offset=offset + start,
                    sample=self._index + len(self._samples),
                )
                yield from self._take()
                if self._pass_over is None:
                    raise fault from error
                self._pass_over(fault)
                self._index += 1
                continue
            self._ends.append(offset + start + _FRAME_BYTES + length)
            block_bytes += length
            if len(self._samples) >= MAX_BLOCK_SAMPLES or block_bytes >= MAX_BLOCK_BYTES:
                yield from self._take()
                block_bytes = 0
        yield from self._take()

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

_POLYNOMIAL = 0x82F63B78  # Castagnoli's, reflected
_MASK = 0xA282EAD8

# In NumPy, bytes are looked up in pairs, in all stripes of a run at once. A run of 1 MiB has too few longer
# stripes, and combining shorter ones takes more lookups.
_STRIPE_BYTES = 128


def _masked(crcs: NDArray[np.uint32]) -> NDArray[np.uint32]:
    return (crcs >> np.uint32(15) | crcs << np.uint32(17)) + np.uint32(_MASK)


def _stored(run: bytes, places: NDArray[np.int64]) -> NDArray[np.uint32]:
    """The checksums at these places."""
    octets: NDArray[np.uint8] = np.frombuffer(run, np.uint8)[places[:, None] + np.arange(4)]
    return octets.view("<u4")[:, 0]


@cache
def _pair_table() -> NDArray[np.uint32]:
    """What 16 bits become in the register, ``(65536,) uint32``."""
    table = np.arange(1 << 16, dtype=np.uint32)
    for _ in range(16):
        table = table >> np.uint32(1) ^ (table & np.uint32(1)) * np.uint32(_POLYNOMIAL)
    return table


@cache
def _length_tables() -> NDArray[np.uint32]:
    """What each byte of a length adds to its checksum, ``(8, 256) uint32``."""
    octets = np.zeros((8, 256, 8), np.uint8)
    for place in range(8):
        octets[place, :, place] = np.arange(256)
    return _registers(octets.reshape(-1, 8)).reshape(8, 256)


def _crc_of_lengths(run: bytes, starts: NDArray[np.int64]) -> NDArray[np.uint32]:
    octets = np.frombuffer(run, np.uint8)[starts[:, None] + np.arange(8)]
    octets[:, :4] ^= 0xFF  # the register begins with ones
    crcs: NDArray[np.uint32] = np.bitwise_xor.reduce(_length_tables()[np.arange(8), octets], axis=1)
    return ~crcs


def _registers(stripes: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """The register behind each of ``(n, bytes)`` stripes, if it was 0 before."""
    table = _pair_table()
    crcs = np.zeros(len(stripes), np.uint32)
    for pairs in np.ascontiguousarray(stripes.view("<u2").T):
        crcs = table[(crcs ^ pairs) & np.uint32(0xFFFF)] ^ crcs >> np.uint32(16)
    return crcs


def _crcs(run: bytes, begins: list[int], lengths: list[int]) -> NDArray[np.uint32]:
    """The CRC-32C of each record, by google-crc32c if its C version is installed."""
    if (module := crc32c_in_c()) is None:
        return _crcs_by_numpy(run, begins, lengths)
    of, pieces = module.value, zip(begins, lengths, strict=True)
    return np.array([of(run[begin : begin + length]) for begin, length in pieces], np.uint32)


def _crcs_by_numpy(run: bytes, begins: list[int], lengths: list[int]) -> NDArray[np.uint32]:
    """The same in NumPy: stripes of all records at once, which are then combined.

    Zeros in front of a record do not change a register of 0. A register that begins with ones is the same as
    inverting the first four bytes.
    """
    size = _STRIPE_BYTES
    view, zeros = memoryview(run), bytes(size)
    pieces: list[bytes | memoryview] = []
    for begin, length in zip(begins, lengths, strict=True):
        pieces += (zeros[: -length % size if length else size], view[begin : begin + length])
    octets = np.frombuffer(bytearray().join(pieces), np.uint8)
    counts = np.maximum(-(-np.array(lengths) // size), 1)
    stops = np.cumsum(counts)
    inverted = (stops * size - lengths)[:, None] + np.arange(4)
    octets[inverted[inverted < (stops * size)[:, None]]] ^= 0xFF
    crcs = _registers(octets.reshape(-1, size))
    behind = np.repeat(stops, counts) - 1 - np.arange(len(crcs))  # stripes of the record that follow
    step = _shift_of(size)
    while behind.any():
        (odd,) = np.nonzero(behind & 1)
        crcs[odd] = _shifted(crcs[odd], step)
        behind >>= 1
        step = _shifted(step, step)
    joined: NDArray[np.uint32] = np.bitwise_xor.reduceat(crcs, stops - counts)
    # A record of fewer than four bytes leaves ones in the register.
    ones = np.uint64(0xFFFF_FFFF) >> (8 * np.minimum(lengths, 4)).astype(np.uint64)
    return ~(joined ^ ones.astype(np.uint32))


def _shift_of(size: int) -> NDArray[np.uint32]:
    """What each bit of the register becomes behind so many zeros, ``(32,) uint32``."""
    bits = np.uint32(1) << np.arange(32, dtype=np.uint32)
    octets = np.zeros((32, size), np.uint8)
    octets[:, :4] = bits.astype("<u4").view(np.uint8).reshape(32, 4)
    return _registers(octets)


def _shifted(crcs: NDArray[np.uint32], step: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Registers behind the zeros of ``step``, by a table of 256 entries for each of their bytes."""
    shifted = np.zeros(len(crcs), np.uint32)
    octets = crcs.astype("<u4").view(np.uint8).reshape(-1, 4)
    bits = (np.arange(256)[:, None] >> np.arange(8) & 1).astype(bool)
    for place in range(4):
        table = np.bitwise_xor.reduce(np.where(bits, step[8 * place : 8 * place + 8], np.uint32(0)), axis=1)
        shifted ^= table[octets[:, place]]
    return shifted


def _is_record(start: bytes) -> bool:
    """Whether a shard begins with a length and its checksum: one of 559,903 bytes looks like gzip."""
    return len(start) >= _HEAD_BYTES and bool(
        _stored(start, np.array([8])) == _masked(_crc_of_lengths(start, np.array([0])))
    )


def open_tfrecord(spec: ShardSpec) -> Decoder:
    """The decoder of a shard, compressed as a whole or not."""
    return open_stream(spec, partial(TfRecordDecoder, pass_over=spec.pass_over), _is_record)
