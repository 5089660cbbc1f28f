"""TFRecord, read as ``tfrecord_files`` writes it."""

from __future__ import annotations

import gzip
import random
import struct
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from examples_drawn import examples
from feeding import assert_any_chunking_equal, blocks_of, comparable, cut, outcome, samples_of
from hypothesis import given
from hypothesis import strategies as st
from tfrecord_files import crc32c, example, feature, field, masked, record

import asyncloader as al
from asyncloader.errors import FormatError
from asyncloader.formats import format_of, open_decoder, tfrecord

FIELDS: list[dict[str, Sequence[Any]]] = [
    {"image": [bytes([number]) * 5], "label": [number, -number], "box": [0.5 * number, 1.5]}
    for number in range(1, 6)
]
SHARD = b"".join(record(example(each)) for each in FIELDS)


open_records = partial(open_decoder, "tfrecord")


def read(content: bytes, **spec: Any) -> list[dict[str, Any]]:
    return samples_of(open_records(**spec), content)


# --- what comes out ---


def test_the_encoder_makes_the_known_checksum() -> None:
    assert crc32c(b"123456789") == 0xE3069283


def test_names_end_with_tfrecord() -> None:
    names = ("a.tfrecord", "a.TFRecords", "s3://b/a.tfrecord.gz", "a.tfrecords.zst")
    assert {format_of(name) for name in names} == {"tfrecord"}


@pytest.mark.parametrize("packed", [True, False])
def test_features_are_lists_and_arrays(packed: bool) -> None:
    values = {"b": [b"", b"x" * 300], "f": [1.5, -2.25], "i": [0, 1, -1, 300, 2**63 - 1, -(2**63)]}
    (block,) = blocks_of(open_records(), [record(example(values, packed))])
    (sample,) = block.rows()
    assert comparable(sample) == values
    assert (sample["f"].dtype, sample["i"].dtype) == (np.float32, np.int64)
    assert sample["f"].flags.writeable and sample["i"].flags.writeable


def test_features_of_no_values_have_none() -> None:
    no_list, floats, ints = (
        field(1, field(1, field(1, b"n") + field(2, each))) for each in (b"", b"\x12\0", b"\x1a\0")
    )
    assert read(record(no_list) + record(field(1, b"")) + record(b"")) == [{"n": []}, {}, {}]
    (block,) = blocks_of(open_records(), [record(floats) + record(ints)])
    empty = [(row["n"].dtype.name, row["n"].shape) for row in block.rows()]
    assert empty == [("float32", (0,)), ("int64", (0,))]
    assert read(b"") == []


def test_the_last_of_equal_names_counts_and_lists_in_parts_are_one() -> None:
    twice = field(1, b"".join(field(1, field(1, b"n") + field(2, feature([each]))) for each in (1, 2)))
    assert read(record(twice)) == [{"n": [2]}]
    parts = field(1, field(1, field(1, b"n") + field(2, feature([1, 2]) + feature([3], packed=False))))
    assert read(record(parts)) == [{"n": [1, 2, 3]}]


@given(
    st.dictionaries(
        st.text(max_size=8),
        st.lists(st.binary(max_size=40), max_size=4)
        | st.lists(st.integers(-(2**63), 2**63 - 1), max_size=80)
        | st.lists(st.floats(width=32, allow_nan=False), max_size=20),
        max_size=5,
    ),
    st.booleans(),
)
@examples(60)
def test_whatever_is_written_is_read(fields: dict[str, list[Any]], packed: bool) -> None:
    assert read(record(example(fields, packed))) == [fields]


def test_any_chunking_gives_the_same_and_every_position_reopens() -> None:
    samples, positions, fault = assert_any_chunking_equal(open_records, SHARD, (7, 3), (100,))
    assert (samples, fault) == (FIELDS, None)
    for number, position in enumerate(positions, 1):
        spec = {"start_sample": position["sample"], "start_byte": position["byte"]}
        rest = outcome(open_records(**spec), cut(SHARD[position["byte"] :], (13,)))
        assert rest == (samples[number:], positions[number:], None)


# --- damage ---


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_a_shard_damaged_at_any_byte_is_an_error_or_right(pack: Callable[[bytes], bytes]) -> None:
    stored = pack(SHARD)
    for place in range(len(stored)):
        for flip in (0x01, 0x80, 0xFF):
            damaged = stored[:place] + bytes([stored[place] ^ flip]) + stored[place + 1 :]
            samples, _, fault = outcome(open_records(), cut(damaged, (50,)))
            assert samples == FIELDS[: len(samples)], f"byte {place}"
            # Of gzip's header some bytes say nothing of what comes out.
            assert fault is not None or (samples == FIELDS and pack is not bytes), f"byte {place}"


def test_an_error_says_where() -> None:
    starts = [0]
    for each in FIELDS:
        starts.append(starts[-1] + 16 + len(example(each)))
    for number, start in enumerate(starts[:-1]):
        stop = starts[number + 1]
        for place, what in (
            (start, "length"),
            (start + 9, "length"),
            (start + 20, "bytes"),
            (stop - 1, "bytes"),
        ):
            damaged = SHARD[:place] + bytes([SHARD[place] ^ 4]) + SHARD[place + 1 :]
            samples, _, fault = outcome(open_records(), [damaged])
            assert samples == FIELDS[:number] and fault is not None
            assert what in fault[0] and fault[1:] == (start, number)


def test_a_shard_cut_within_a_record_is_truncated() -> None:
    ends = {0}
    for each in FIELDS:
        ends.add(max(ends) + 16 + len(example(each)))
    for length in range(len(SHARD)):
        samples, _, fault = outcome(open_records(), cut(SHARD[:length], (11,)))
        whole = sum(0 < end <= length for end in ends)
        assert samples == FIELDS[:whole]
        if length not in ends:
            assert fault is not None and "truncated" in fault[0]
            assert fault[1:] == (max(end for end in ends if end <= length), whole)


def test_damaged_bytes_are_passed_over_and_damaged_lengths_raise() -> None:
    noted: list[FormatError] = []
    first = 16 + len(example(FIELDS[0]))
    damaged = SHARD[: first + 20] + bytes([SHARD[first + 20] ^ 1]) + SHARD[first + 21 :] + record(b"\xff\xff")
    assert read(damaged, pass_over=noted.append) == [FIELDS[0], *FIELDS[2:]]
    assert [(error.sample, error.offset) for error in noted] == [(1, first), (5, len(SHARD))]
    with pytest.raises(FormatError, match="length of a record"):
        read(SHARD[:first] + b"\x01" + SHARD[first + 1 :], pass_over=noted.append)


@pytest.mark.parametrize(
    "content",
    [
        b"\x0a", b"\x0a\x05\x0a", b"\x0b", b"\x12\x00", b"\x08\x01", b"\xff" * 12, b"\x80" * 3,
        field(1, field(1, field(1, b"\xff") + field(2, feature([1])))),  # no name
        field(1, field(1, field(1, b"n") + field(2, field(2, field(1, b"123"))))),  # no whole float
        field(1, field(1, field(1, b"n") + field(2, field(3, field(1, b"\x80"))))),  # no whole integer
        field(1, field(1, field(1, b"n") + field(2, field(3, field(1, b"\x80" * 60))))),
        field(1, field(1, field(1, b"n") + field(2, field(3, field(1, b"\x80" * 70 + b"\x01"))))),
        field(1, field(1, field(1, b"n") + field(2, field(4, b"")))),
        field(2, b""),  # SequenceExample has its lists there
    ],
)  # fmt: skip
def test_what_is_no_example_is_an_error(content: bytes) -> None:
    samples, _, fault = outcome(open_records(), [record(example(FIELDS[0])) + record(content)])
    assert samples == FIELDS[:1] and fault is not None
    assert "tf.train.Example" in fault[0]
    assert fault[1:] == (16 + len(example(FIELDS[0])), 1)


def test_a_record_is_not_held_that_is_too_long() -> None:
    length = struct.pack("<Q", 257 << 20)
    with pytest.raises(FormatError, match="at most 268435456 are read"):
        read(length + masked(length))


def test_other_files_are_told_by_their_first_bytes() -> None:
    with pytest.raises(FormatError, match="a web page"):
        read(b"<!doctype html><html></html>")
    with pytest.raises(FormatError, match=r"truncated.*JSON"):
        read(b'{"a": 1}')


def test_a_record_whose_length_looks_like_gzip_is_read() -> None:
    # 559,903 is 1f 8b 08 in bytes: the magic of gzip and its only method.
    value = random.Random(0).randbytes(559_903 - 23)
    content = example({"n": [value]})
    assert len(content) == 0x088B1F
    assert read(framed_fast(content)) == [{"n": [value]}]


def framed_fast(content: bytes) -> bytes:
    """As ``record``; the checksum of half a megabyte by a program in C."""
    length = struct.pack("<Q", len(content))
    return length + masked(length) + content + struct.pack("<I", tfrecord.masked_crc32c()(content))


# --- checksums ---


@given(st.binary(max_size=3000))
@examples(60)
def test_the_checksum_in_c_is_that_of_the_definition(content: bytes) -> None:
    assert struct.pack("<I", tfrecord.masked_crc32c()(content)) == masked(content)


def test_without_its_package_the_dataset_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    with pytest.raises(ImportError, match=r"pip install asyncloader\[checksums\]"):
        al.from_urls("https://localhost:1/a.tfrecord", index=None)
