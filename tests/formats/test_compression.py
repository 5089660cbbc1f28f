"""Decompression: every codec whole, cut, damaged, joined and as a bomb."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from itertools import chain

import pytest
import zstandard
from examples_drawn import examples
from feeding import assert_any_chunking_equal, blocks_of, cut, decoded, outcome, samples_of
from hypothesis import given
from hypothesis import strategies as st

from asyncloader.errors import FormatError
from asyncloader.formats.compression import CompressedDecoder, Decompressor, compression_of
from asyncloader.formats.lines import TextDecoder

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "zstd": zstandard.ZstdCompressor(write_checksum=True).compress,
    "xz": lzma.compress,
    "bzip2": bz2.compress,
}
SKIPPABLE = struct.pack("<II", 0x184D2A53, 700) + os.urandom(700)
MIB = 1 << 20


def decompress(name: str, *chunks: bytes) -> bytes:
    decompressor = Decompressor(name)
    pieces = [piece for chunk in chunks for piece in decompressor.feed(chunk)] + [*decompressor.finish()]
    assert all(0 < len(piece) <= MIB for piece in pieces)
    return b"".join(pieces)


@pytest.mark.parametrize("name", COMPRESS)
@examples(25)
@given(parts=st.lists(st.binary(max_size=300), min_size=1, max_size=4), size=st.integers(1, 200))
def test_members_in_a_row_are_one_stream_in_any_chunking(name: str, parts: list[bytes], size: int) -> None:
    packed = b"".join(COMPRESS[name](part) for part in parts)
    for chunks in ([packed], cut(packed, (size,)), cut(packed, (1,))):
        assert decompress(name, *chunks) == b"".join(parts)


@pytest.mark.parametrize("name", COMPRESS)
def test_large_streams_come_in_pieces_of_a_mebibyte(name: str) -> None:
    body = (os.urandom(300_000) + bytes(700_000)) * 5
    packed = COMPRESS[name](body)
    assert decompress(name, packed) == body
    assert decompress(name, *cut(packed, (100_001,))) == body


@pytest.mark.parametrize("level", [-5, 1, 3, 19])
@pytest.mark.parametrize("sized", [True, False])
def test_zstd_of_every_header_form_is_read(level: int, sized: bool) -> None:
    for length in (0, 1, 255, 256, 70_000, 3_000_000):
        body = (os.urandom(length // 2) + bytes(length))[:length]
        compressor = zstandard.ZstdCompressor(level, write_content_size=sized, write_checksum=length % 2 == 1)
        stream = compressor.compressobj(size=length) if sized else compressor.compressobj()
        packed = stream.compress(body) + stream.flush()
        assert decompress("zstd", packed + packed) == body + body
        assert decompress("zstd", *cut(packed, (997,))) == body


def test_skippable_zstd_frames_are_skipped() -> None:
    packed = COMPRESS["zstd"](b"body")
    for stream in (SKIPPABLE + packed, packed + SKIPPABLE, SKIPPABLE + packed + SKIPPABLE + packed):
        expected = b"body" * stream.count(packed)
        assert decompress("zstd", stream) == decompress("zstd", *cut(stream, (1,))) == expected


@pytest.mark.parametrize("name", COMPRESS)
@pytest.mark.parametrize("members", [1, 2])
def test_a_stream_cut_at_any_byte_is_truncated(name: str, members: int) -> None:
    member = COMPRESS[name](b"some text\n" * 20)
    packed = member * members
    for length in range(len(packed)):
        if length == len(member):
            continue  # a whole stream
        _, _, fault = outcome(CompressedDecoder(TextDecoder(), name), [packed[:length]])
        assert fault is not None, f"cut at {length} of {len(packed)} was read without an error"
        assert "truncated" in fault[0]


@pytest.mark.parametrize("name", COMPRESS)
def test_a_changed_byte_raises_or_changes_nothing(name: str) -> None:
    body = os.urandom(200) + bytes(200)
    packed = COMPRESS[name](body)
    for at in range(len(packed)):
        broken = bytearray(packed)
        broken[at] ^= 0x55
        try:
            assert decompress(name, bytes(broken)) == body, f"byte {at}"
        except FormatError as error:
            assert error.offset is not None
            assert name in str(error)


@pytest.mark.parametrize("name", COMPRESS)
def test_trailing_garbage_is_refused(name: str) -> None:
    packed = COMPRESS[name](b"body")
    for garbage in (b"x", b"garbage" * 20, b"\0x", packed[:1] + b"garbage" * 20):
        for chunks in ([packed + garbage], cut(packed + garbage, (1,))):
            with pytest.raises(FormatError, match=r"trailing garbage|truncated|padding"):
                decompress(name, *chunks)


def test_nothing_may_follow_a_stream_of_brotli_wherever_it_ends() -> None:
    brotli = pytest.importorskip("brotli", reason="brotli is in the extra 'mds'")
    body = os.urandom(200)
    packed = brotli.compress(body)
    assert decompress("brotli", *cut(packed, (1,))) == body
    # Of as many bytes as are decompressed at a time, so that what follows comes by itself.
    even = next(
        found for size in range(65500, 65536) if len(found := brotli.compress(os.urandom(size))) == 65536
    )
    for stream in (packed, even):
        # What is a stream by itself, and may be an empty one, too.
        for garbage in (b"x", b"\x06", b"\x3b", packed):
            for chunks in ([stream + garbage], [stream, garbage]):
                with pytest.raises(FormatError, match=r"trailing garbage"):
                    decompress("brotli", *chunks)


def test_zero_padding_is_what_each_format_allows() -> None:
    packed = {name: compress(b"body") for name, compress in COMPRESS.items()}
    assert decompress("gzip", packed["gzip"] + bytes(7)) == b"body"
    assert decompress("gzip", packed["gzip"] + bytes(7) + packed["gzip"]) == b"bodybody"
    assert decompress("xz", *cut(packed["xz"] + bytes(8) + packed["xz"] + bytes(4), (3,))) == b"bodybody"
    for bad in (packed["xz"] + bytes(3), packed["xz"] + bytes(5) + packed["xz"]):
        with pytest.raises(FormatError, match="not a multiple of 4"):
            decompress("xz", bad)
    for name in ("zstd", "bzip2"):
        with pytest.raises(FormatError, match="trailing garbage"):
            decompress(name, packed[name] + b"\0")


def rle_bomb(blocks: int) -> bytes:
    """A zstd frame of 128 KiB for every four bytes."""
    block = ((128 << 10) << 3 | 1 << 1).to_bytes(3, "little") + b"z"
    last = ((128 << 10) << 3 | 1 << 1 | 1).to_bytes(3, "little") + b"z"
    return struct.pack("<IBB", 0xFD2FB528, 0, (20 - 10) << 3) + block * (blocks - 1) + last


@pytest.mark.parametrize("name", [*COMPRESS, "zstd-rle"])
def test_a_bomb_never_makes_a_large_piece(name: str) -> None:
    size = 64 * MIB
    packed = rle_bomb(size >> 17) if name == "zstd-rle" else COMPRESS[name](bytes(size))
    decompressor = Decompressor(name.partition("-")[0])
    total = 0
    tracemalloc.start()
    for piece in chain(decompressor.feed(packed), decompressor.finish()):
        assert len(piece) <= MIB
        total += len(piece)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total == size
    assert peak < 16 * MIB  # xz has a dictionary of 8


def test_headers_that_claim_huge_windows_are_refused() -> None:
    window = struct.pack("<IBB", 0xFD2FB528, 0, (40 - 10) << 3) + b"\x01\x00\x00"
    with pytest.raises(FormatError, match="zstd: corrupt"):
        decompress("zstd", window)
    huge = bytearray(lzma.compress(b"x"))
    end = 12 + 4 * huge[12]  # of the block header, after the stream header; then its CRC
    huge[16] = 34  # a dictionary of 512 MiB
    huge[end : end + 4] = struct.pack("<I", zlib.crc32(huge[12:end]))
    with pytest.raises(FormatError, match="xz: corrupt data: Memory usage"):
        decompress("xz", bytes(huge))


@pytest.mark.parametrize("size", [3 << 19 | 1 << 1, 0x1FFFFF << 3, 6])
def test_invalid_zstd_blocks_are_refused(size: int) -> None:
    frame = struct.pack("<IBB", 0xFD2FB528, 0, 0x58) + (size & 0xFFFFFF).to_bytes(3, "little") + bytes(64)
    with pytest.raises(FormatError, match=r"zstd: (corrupt|truncated)"):
        decompress("zstd", frame)


@pytest.mark.parametrize("name", COMPRESS)
def test_positions_in_a_compressed_shard_are_sample_numbers(name: str) -> None:
    packed = COMPRESS[name](b"a\nb\nc\n")
    samples, positions, fault = assert_any_chunking_equal(
        lambda: CompressedDecoder(TextDecoder(), name), packed
    )
    assert [sample["text"] for sample in samples] == ["a", "b", "c"]
    assert positions == [{"sample": 1}, {"sample": 2}, {"sample": 3}]
    assert fault is None


def test_blocks_come_before_the_whole_chunk_is_expanded() -> None:
    packed = gzip.compress(b"line\n" * 2_000_000)
    first = next(decoded(CompressedDecoder(TextDecoder(), "gzip"), [packed]))
    assert first.rows()[0] == {"__key__": "0", "text": "line"}
    assert len(blocks_of(CompressedDecoder(TextDecoder(), "gzip"), [gzip.compress(b"line\n" * 5000)])) > 1


def test_samples_before_the_damage_are_delivered() -> None:
    packed = bytearray(gzip.compress(os.urandom(200_000).hex(" ", 32).replace(" ", "\n").encode()))
    packed[130_000] ^= 0xFF
    samples, _, fault = outcome(CompressedDecoder(TextDecoder(), "gzip"), cut(bytes(packed), (1000,)))
    assert len(samples) > 500
    assert fault is not None


@pytest.mark.parametrize("name", COMPRESS)
def test_what_comes_before_the_damage_is_the_same_in_any_chunking(name: str) -> None:
    text = "\n".join(f"{number} {number * number:x}" for number in range(60_000)).encode()
    packed = bytearray(COMPRESS[name](text))
    packed[len(packed) // 2 : len(packed) // 2 + 30] = bytes(30)
    found = [
        outcome(CompressedDecoder(TextDecoder(), name), cut(bytes(packed), (size,)))
        for size in (len(packed), 1 << 16, 9_999, 1_000, 1)
    ]
    assert found[0][2] is not None
    assert all(each == found[0] for each in found)
    assert name == "bzip2" or len(found[0][0]) > 10_000, "its blocks are of 900 KB"


@pytest.mark.parametrize("name", COMPRESS)
def test_signatures_are_known(name: str) -> None:
    packed = COMPRESS[name](b"body")
    assert compression_of(packed[:10]) == name
    assert compression_of(packed[:5]) == name
    assert compression_of(COMPRESS[name](b"")[:10]) == name


def test_what_is_not_compressed_has_no_signature() -> None:
    for start in (b"", b"B", b"BZh", b"BZhello wo", b"P*x", b"(", b'{"a": 1}\n ', bytes(10)):
        assert compression_of(start) is None
    assert compression_of(SKIPPABLE[:10]) == "zstd"


def test_an_empty_compressed_shard_is_truncated() -> None:
    with pytest.raises(FormatError, match="empty"):
        samples_of(CompressedDecoder(TextDecoder(), "xz"))
