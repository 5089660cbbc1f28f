"""Shards of MDS that are compressed as a whole: cut, damaged, with garbage, as bombs, not as promised."""

from __future__ import annotations

import struct
import tracemalloc
import zlib
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from feeding import cut
from hypothesis import given
from hypothesis import strategies as st
from mds_files import mds, samples, shard
from packed_files import COMPRESS, zeros_behind

from asyncloader.blocks import Ragged
from asyncloader.errors import FormatError
from asyncloader.formats import open_decoder
from asyncloader.formats import unpacking as packed
from asyncloader.types import Unpacked

COUNT = 40
SHARD = shard(COUNT)
PACKED = {family: compress(SHARD) for family, compress in COMPRESS.items()}
RIGHT = Unpacked(len(SHARD), ("crc32", zlib.crc32(SHARD).to_bytes(4, "big")))
MIB = 1 << 20
#: Whose bytes are held against a checksum of their own.
CHECKED = {"bz2", "gz"}

families = pytest.mark.parametrize("family", COMPRESS)


def plain(rows: list[Any]) -> list[Any]:
    arrays = np.ndarray | Ragged
    return [{k: v.tolist() if isinstance(v, arrays) else v for k, v in row.items()} for row in rows]


WANTED = plain(samples(COUNT))


def outcome(
    family: str, content: bytes, sizes: Sequence[int] = (), **options: Any
) -> tuple[list[Any], FormatError | None]:
    """The rows that came, and the error that ended it if there was one."""
    decoder = open_decoder(f"mds.{family}", **options)
    rows: list[Any] = []
    try:
        for chunk in cut(content, sizes or (len(content) or 1,)):
            for block in decoder.feed(chunk):
                rows += block.rows()
        for block in decoder.finish():
            rows += block.rows()
    except FormatError as error:
        return plain(rows), error
    return plain(rows), None


def fault(family: str, content: bytes, **options: Any) -> FormatError:
    """The error; what comes before it is right, and it names the sample behind that if any."""
    rows, error = outcome(family, content, **options)
    assert error is not None, "it was read without an error"
    assert rows == WANTED[: len(rows)]
    assert error.sample in (None, len(rows))
    return error


@families
@given(sizes=st.lists(st.integers(1, 300), min_size=1, max_size=4), start=st.integers(0, COUNT))
def test_any_chunking_gives_the_same_from_any_sample_on(family: str, sizes: list[int], start: int) -> None:
    found = outcome(family, PACKED[family], sizes, start_sample=start, unpacked=RIGHT)
    assert found == (WANTED[start:], None)


# --- truncated, flipped, and followed by something ---


@families
@pytest.mark.parametrize("promised", [None, RIGHT])
def test_a_shard_that_is_cut_anywhere_raises_behind_the_samples_that_are_whole(
    family: str, promised: Unpacked | None
) -> None:
    for length in range(len(PACKED[family])):
        assert "truncated" in str(fault(family, PACKED[family][:length], unpacked=promised))


@pytest.mark.parametrize("family", ["br", "bz2", "gz", "zstd"])
def test_a_cut_shard_names_the_sample_that_it_is_cut_in(family: str) -> None:
    large = shard(20_000)  # some pieces of a mebibyte
    content = COMPRESS[family](large)
    for part in (3, 4):
        rows, error = outcome(family, content[: len(content) * (part - 1) // part])
        assert error is not None and "truncated" in str(error)
        assert rows == plain(samples(len(rows)))
        assert family == "bz2" or len(rows) > 1000, "its blocks are of 900 KB"
        assert error.sample == (len(rows) or None)


@families
def test_a_shard_that_decompresses_whole_to_a_cut_one_raises(family: str) -> None:
    for length in (0, 3, 100, int.from_bytes(SHARD[4:8], "little") + 10, len(SHARD) - 1):
        content = COMPRESS[family](SHARD[:length])
        assert "truncated" in str(fault(family, content))
        assert "truncated" in str(fault(family, content, unpacked=RIGHT))


@families
def test_a_flipped_bit_is_found_where_a_digest_is_promised(family: str) -> None:
    content = PACKED[family]
    for at in range(0, len(content), 3):
        flipped = content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :]
        rows, error = outcome(family, flipped, unpacked=RIGHT)
        assert error is not None or rows == WANTED
        assert len(rows) <= COUNT


@families
def test_a_flipped_bit_without_a_digest_is_an_error_or_another_value_and_nothing_else(family: str) -> None:
    content = PACKED[family]
    for at in range(0, len(content), 3):
        flipped = content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :]
        with suppress(UnicodeDecodeError):
            rows, error = outcome(family, flipped)
            assert error is not None or len(rows) == COUNT
            assert family not in CHECKED or error is not None or rows == WANTED


@families
@pytest.mark.parametrize("garbage", [b"x", b"\0garbage" * 50, SHARD], ids=["a byte", "some", "a shard"])
def test_garbage_behind_a_shard_raises(family: str, garbage: bytes) -> None:
    fault(family, PACKED[family] + garbage)
    fault(family, PACKED[family] + garbage, unpacked=RIGHT)


@families
def test_a_shard_behind_a_shard_raises(family: str) -> None:
    for promised in (None, RIGHT):
        fault(family, PACKED[family] * 2, unpacked=promised)
    fault(family, COMPRESS[family](SHARD + b"x"))


@families
def test_bytes_of_another_kind_raise(family: str) -> None:
    for content in (b"", b"x", b"<html>" * 100, bytes(1000), b"\xff" * 1000):
        rows, error = outcome(family, content)
        assert error is not None and not rows


# --- what an index promises ---


@families
@pytest.mark.parametrize("by", [-100, -1, 1, 1 << 40])
def test_another_length_than_promised_raises(family: str, by: int) -> None:
    error = fault(family, PACKED[family], unpacked=Unpacked(len(SHARD) + by))
    assert "index promises" in str(error) and "when it is decompressed" in str(error)
    assert error.offset == min(len(SHARD), len(SHARD) + by)


@families
def test_another_digest_than_promised_raises_behind_the_last_sample(family: str) -> None:
    rows, error = outcome(family, PACKED[family], unpacked=Unpacked(len(SHARD), ("crc32", bytes(4))))
    assert rows == WANTED and error is not None and "promises the crc32 00000000" in str(error)


def test_a_digest_that_cannot_be_computed_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "open_digest", lambda algorithm: None)
    with pytest.raises(ImportError, match=r"promises only the xxh64 .*pip install asyncloader\[mds\]"):
        open_decoder("mds.zstd", unpacked=Unpacked(9, ("xxh64", bytes(8))))


# --- bombs ---


def one_sample(size: int) -> bytes:
    """The beginning of a shard with one sample of so many bytes."""
    head = mds([("x", "bytes", None)], [struct.pack("<I", size)])
    return head[:8] + struct.pack("<I", int.from_bytes(head[4:8], "little") + 4 + size) + head[12:]


def peak_of(family: str, content: bytes) -> tuple[FormatError | None, int]:
    """The error, and how much memory was held at a time."""
    tracemalloc.start()
    decoder = open_decoder(f"mds.{family}")
    error = None
    try:
        for chunk in cut(content, (MIB,)):
            for _ in decoder.feed(chunk):
                pass
        for _ in decoder.finish():
            pass
    except FormatError as found:
        error = found
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return error, peak


def test_a_gigabyte_out_of_a_megabyte_is_refused_at_a_quarter_of_it() -> None:
    size = 1 << 30
    error, peak = peak_of("zstd", zeros_behind(one_sample(size), size))
    assert error is not None and "and a sample takes more than 268435456" in str(error)
    assert (error.sample, error.offset) == (0, len(one_sample(0)) - 4)
    assert peak < 300 * MIB


@pytest.mark.parametrize("family", ["br", "bz2", "gz", "zstd"])
def test_a_sample_that_takes_far_more_than_its_shard_is_refused(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncloader.formats.decoder._MOST_UNPACKED_BYTES", 8 * MIB)
    content = COMPRESS[family](one_sample(64 * MIB) + bytes(64 * MIB))
    error, peak = peak_of(family, content)
    assert error is not None and "made to use up memory" in str(error) and error.sample == 0
    assert peak < 24 * MIB
    # As much is read where it is a fifth of what is compressed, and where nothing of it has to be held.
    assert outcome(family, COMPRESS[family](one_sample(MIB) + bytes(MIB)))[1] is None


def test_snappy_cannot_be_a_bomb() -> None:
    claim = b"\xff\xff\xff\xff\x0f"
    assert "cannot be the 4294967295 that they claim" in str(fault("snappy", claim + bytes(1000)))


def test_a_table_of_gigabytes_is_refused_at_16_mebibytes() -> None:
    count = 1 << 26
    begin = 4 * (count + 2)
    head = struct.pack("<II", count, begin)
    error, peak = peak_of("zstd", zeros_behind(head, 4 * count // MIB * MIB))
    assert error is not None and "and the table takes more than 16777216" in str(error)
    assert (error.sample, error.offset) == (None, 0)
    assert peak < 40 * MIB


def test_a_shard_that_grows_a_thousandfold_in_small_samples_is_streamed() -> None:
    count, size = 2048, 128 << 10
    begin = struct.pack("<I", size - 4) + bytes(size - 4)
    whole = mds([("x", "bytes", None)], [begin] * count)
    content = COMPRESS["zstd"](whole)
    del whole
    assert len(content) * 1000 < count * size
    error, peak = peak_of("zstd", content)
    assert error is None and peak < 24 * MIB


def test_what_is_refused_is_the_same_in_any_chunking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncloader.formats.decoder._MOST_UNPACKED_BYTES", 8 * MIB)
    content = zeros_behind(one_sample(1 << 30), 1 << 30) + bytes(1 << 20)
    found = set()
    for size in (4096, 100_001, 2 << 20):
        _, error = outcome("zstd", content, (size,))
        found.add(str(error))
    assert len(found) == 1
