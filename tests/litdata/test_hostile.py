"""Chunks that are truncated, flipped, wrong or made to do harm: an error with byte and sample."""

from __future__ import annotations

import struct
import tracemalloc
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pytest
import zstandard
from examples_drawn import examples
from hypothesis import given
from hypothesis import strategies as st

from asyncloader.errors import FormatError
from asyncloader.formats.litdata import ChunkSchema

from .making import blocks, framed, items, read, schema, table

SAMPLES = [
    [struct.pack("<q", number), b"x" * number, struct.pack("<3f", 1, 2, number)] for number in range(9)
]
LEAVES = ("int", "file", "no_header_numpy:9")
PLAIN = table(items(SAMPLES))
RUNS = framed(items(SAMPLES), 4)
EACH = table([zstandard.compress(body) for body in items(SAMPLES)])
WHOLE = zstandard.compress(PLAIN)


def rows() -> bytes:
    sink = pa.BufferOutputStream()
    batch = pa.table({"a": [*range(9)], "b": ["x" * number for number in range(9)]})
    with pyarrow.ipc.new_file(sink, batch.schema) as writer:
        writer.write_table(batch)
    file = sink.getvalue().to_pybytes()
    return table([b""] * 9) + file + struct.pack("<I", len(file)) + b"LDARW01\0"


KINDS: dict[str, tuple[bytes, ChunkSchema]] = {
    "plain": (PLAIN, schema(*LEAVES)),
    "runs": (RUNS, schema(*LEAVES, compression="zstd", compression_level="batch")),
    "each": (EACH, schema(*LEAVES, compression="zstd", compression_level="sample")),
    "whole": (WHOLE, schema(*LEAVES, compression="zstd")),
    "rows": (rows(), schema("int", "str")),
    "tokens": (
        table([b"abcdefgh", b"ijkl"]),
        schema("no_header_numpy:4", block_size=5, item_loader="TokensLoader"),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_chunk_that_is_whole_is_read(kind: str) -> None:
    content, known = KINDS[kind]
    assert len(read(content, known)) == (2 if kind == "tokens" else 9)


@pytest.mark.parametrize("kind", KINDS)
def test_a_truncated_chunk_raises_wherever_it_ends(kind: str) -> None:
    content, known = KINDS[kind]
    for length in range(0, len(content), 1 if len(content) < 500 else 7):
        with pytest.raises(FormatError):
            read(content[:length], known)


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_raises_or_changes_no_more_than_values(kind: str) -> None:
    """Values themselves have no checksum. None of it may end in another error, a crash or a lost sample."""
    content, known = KINDS[kind]
    count = len(read(content, known))
    for at in range(0, len(content), 1 if len(content) < 500 else 5):
        for bit in (at % 8,):
            flipped = bytearray(content)
            flipped[at] ^= 1 << bit
            try:
                found = read(bytes(flipped), known, chunk_bytes=1 << 20)
            except FormatError as error:
                assert error.sample is None or 0 <= error.sample <= count
                assert error.offset is None or 0 <= error.offset <= max(len(content), len(PLAIN)) + 1
            else:
                assert len(found) == count


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("start", "stop"), [(0, None), (3, 7)])
@examples(20)
@given(content=st.binary(max_size=200))
def test_bytes_of_any_kind_raise_nothing_but_a_format_error(
    kind: str, start: int, stop: int | None, content: bytes
) -> None:
    for begin in (0, 8, 24):
        try:
            read(KINDS[kind][0][:begin] + content, KINDS[kind][1], start=start, stop=stop)
        except FormatError:
            continue


def with_number(content: bytes, at: int, number: int) -> bytes:
    return content[:at] + struct.pack("<I", number) + content[at + 4 :]


BEGIN = 4 * 11
# What is wrong, and the sample and the byte that the error names.
WRONG: dict[str, tuple[bytes, int | None, int | None]] = {
    "a count of billions": (with_number(PLAIN, 0, 4_000_000_000), None, 0),
    "a count of one more": (with_number(PLAIN, 0, 10), None, 0),
    "an offset that falls": (with_number(PLAIN, 4 * 4, 5), 2, 16),
    "an offset beyond the end": (with_number(PLAIN, 4 * 10, 1 << 30), None, None),
    "an offset within the sample": (with_number(PLAIN, 4 * 3, BEGIN + 60), 1, None),
    "lengths beyond the sample": (with_number(PLAIN, BEGIN + 4, 70_000), 0, BEGIN),
    "lengths that end before": (with_number(PLAIN, BEGIN + 8, 8), 0, BEGIN),
    "an int of 9 bytes": (table(items([*SAMPLES[:3], [b"123456789", b"", b""]])), 3, None),
    "floats of 5 bytes": (table(items([*SAMPLES[:3], [bytes(8), b"", b"12345"]])), 3, None),
    "bytes behind the end": (PLAIN + b"more", None, None),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("stop", [None, 4])
def test_what_is_wrong_is_named_with_sample_and_byte(wrong: str, stop: int | None) -> None:
    content, sample, offset = WRONG[wrong]
    with pytest.raises(FormatError, match="litdata") as raised:
        read(content, KINDS["plain"][1], stop=stop)
    assert sample is None or raised.value.sample == sample
    assert offset is None or raised.value.offset == offset
    assert raised.value.offset is not None


def frame(at: int, form: str, value: int) -> bytes:
    begin = 24 + 4 * 10 + at
    return RUNS[:begin] + struct.pack(form, value) + RUNS[begin + struct.calcsize(form) :]


@pytest.mark.parametrize(
    "content",
    [
        frame(0, "<I", 1),
        frame(4, "<I", 5),
        frame(4, "<I", 0),
        frame(8, "<Q", 1 << 60),
        frame(8, "<Q", 24),
        frame(16, "<I", 1 << 31),
        frame(20, "<I", (1 << 32) - 1),
        with_number(RUNS, 12, 1 << 31),
        with_number(RUNS, 20, 0),
        with_number(RUNS, 20, 1 << 31),
        with_number(RUNS, 24, 3),
        with_number(RUNS, 28, 1 << 31),
    ],
)
def test_a_directory_of_runs_that_lies_raises(content: bytes) -> None:
    with pytest.raises(FormatError, match=r"litdata: (damaged|truncated)") as raised:
        read(content, KINDS["runs"][1])
    assert raised.value.offset is not None


def test_a_run_that_would_become_gigabytes_is_refused_before() -> None:
    bomb = zstandard.compress(bytes(300 << 20))
    content = framed([b""], 1)[:-9]
    head = struct.pack(
        "<8sHHIII2IIIQII", b"LDFZ01\0\0", 1, 0, 1, 1, 1, 0, 300 << 20, 0, 1, 56, len(bomb), 300 << 20
    )
    assert len(content) and len(head) == 56
    with pytest.raises(FormatError, match="at most 268435456 are decompressed") as raised:
        read(head + bomb, KINDS["runs"][1], chunk_bytes=1 << 20)
    assert (raised.value.sample, raised.value.offset) == (0, 56)
    with pytest.raises(FormatError, match="should become at most") as raised:
        read(table([bomb]), KINDS["each"][1], chunk_bytes=1 << 20)
    assert (raised.value.sample, raised.value.offset) == (0, 12)


def test_samples_that_become_much_together_are_decoded_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of them becomes what one may; a block of a thousand would take hundreds of gigabytes."""
    monkeypatch.setattr("asyncloader.formats.litdata_chunks._MOST_BYTES", 1 << 20)
    bodies = items([[bytes(600 << 10)]] * 9)
    content = table([zstandard.compress(body) for body in bodies])
    known = schema("bytes", compression="zstd", compression_level="sample")
    tracemalloc.start()
    found = sum(len(row["a"]) for block in blocks(content, known) for row in block.rows())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == 9 * (600 << 10)
    assert peak < 4 << 20


def test_no_count_of_samples_is_taken_for_the_beginning_of_gzip() -> None:
    content = table([b"\0\0\0\0"] * 559_903)
    assert content.startswith(b"\x1f\x8b\x08")
    assert len(read(content, schema("bytes"), start=559_900, chunk_bytes=1 << 20)) == 3
    tokens = schema("no_header_numpy:4", block_size=50_000, item_loader="TokensLoader")
    for start in (0, 40):
        assert len(read(content, tokens, start=start, chunk_bytes=1 << 20)) == 44 - start


HEADERS: dict[str, tuple[str, bytes]] = {
    "no header": ("numpy", b"1234"),
    "a dtype of objects": ("numpy", struct.pack("<3I", 14, 1, 0)),
    "a dtype of bfloat16": ("tensor", struct.pack(">3I", 10, 1, 0)),
    "dimensions that are missing": ("numpy", struct.pack("<3I", 3, 2, 0)),
    "a billion dimensions": ("numpy", struct.pack("<3I", 3, 1 << 30, 0)),
    "more values than there are": ("tensor", struct.pack(">4I", 17, 2, 1 << 31, 1 << 31)),
    "no value of a shape without end": ("numpy", struct.pack("<10I", 3, 8, 0, *[(1 << 32) - 1] * 7)),
    "no value in a shape that one array may have": (
        "numpy",
        struct.pack("<6I", 3, 4, 0, *[1 << 17] * 3),
    ),
    "text that is none": ("text", b"\xff\xfe"),
    "records that do not fit": (
        "json",
        b"\x06" + struct.pack("<II", 1 << 30, 1) + struct.pack("<I", 1) + b"a",
    ),
    "records without a field": ("json", b"\x06" + struct.pack("<II", 1 << 30, 0)),
    "strings that do not fit": ("json", b"\x01" + struct.pack("<I", 1 << 31)),
    "numbers that do not fit": ("json", b"\x02" + struct.pack("<I", 1 << 28)),
    "dicts within dicts": ("json", (b"\x05" + struct.pack("<II", 1, 0)) * 5000),
    "lists within lists": ("json", b"[" * 100_000),
    "an unknown kind": ("json", b"\x0f"),
    "bytes behind a value": ("json", b"\x0b\x0b"),
    "pixels that do not fit": ("pil", struct.pack("<3I", 1 << 20, 1 << 20, 3) + b"RGB" + bytes(9)),
    "no pixel in billions of rows": ("pil", struct.pack("<3I", 0, (1 << 31) - 1, 3) + b"RGB"),
    "more columns than there are": ("pil", struct.pack("<3I", (1 << 32) - 1, 0, 1) + b"L"),
}


@pytest.mark.parametrize("wrong", HEADERS)
def test_a_value_that_is_wrong_is_named_and_those_before_it_come(wrong: str) -> None:
    leaf, value = HEADERS[wrong]
    good = {
        "numpy": struct.pack("<3I", 3, 1, 1) + bytes(8),
        "tensor": struct.pack(">3I", 17, 1, 1) + bytes(8),
        "json": b"[1]",
        "pil": struct.pack("<3I", 1, 1, 1) + b"L" + b"x",
    }
    content = table(items([[good.get(leaf, b"a")]] * 3 + [[value]]))
    known = schema(leaf, "file")
    known = schema(leaf)
    with pytest.raises(FormatError, match="litdata") as raised:
        read(content, known)
    assert raised.value.sample == 3
    assert raised.value.offset == len(content) - len(value) - 4


def test_a_rows_file_that_claims_to_be_longer_than_its_chunk_raises() -> None:
    content, known = KINDS["rows"]
    with pytest.raises(FormatError, match=r"claims rows of .* bytes, and has"):
        read(content[:-12] + struct.pack("<I", 1 << 30) + content[-8:], known)


def test_headers_of_older_tensors_are_in_the_other_byte_order() -> None:
    values = np.arange(6, dtype="<f4").tobytes()
    for order in "<>":
        # All of one shape, which are one array, and of several.
        for shapes in ([(2, 3)] * 3, [(2, 3), (3, 2), (6,)]):
            heads = [struct.pack(f"{order}{2 + len(shape)}I", 0, len(shape), *shape) for shape in shapes]
            found = read(table(items([[head + values] for head in heads])), schema("tensor"))
            assert [sample["a"].shape for sample in found] == shapes
            assert all(sample["a"].ravel().tolist() == [0, 1, 2, 3, 4, 5] for sample in found)


def test_bools_are_bools_whatever_their_bytes(request: Any) -> None:
    (sample,) = read(table(items([[b"\x02", b"\x00\x07"]])), schema("bool", "no_header_numpy:13"))
    assert sample["a"] == np.True_ and sample["b"].tolist() == [False, True]
