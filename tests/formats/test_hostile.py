"""Shards made to hurt: whatever a header claims, memory stays bounded, nothing loops, nothing is run."""

from __future__ import annotations

import ast
import bz2
import gzip
import lzma
import struct
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import chain
from pathlib import Path

import pytest
import zstandard
from feeding import END, blocks_of, cut, decoded, limited, pax_header, raw_header, samples_of
from waiting import AT_ONCE_S

import asyncloader.formats
from asyncloader.errors import FormatError
from asyncloader.formats import open_decoder
from asyncloader.formats.compression import CompressedDecoder, Decompressor
from asyncloader.formats.lines import JsonlDecoder
from asyncloader.formats.tar import TarDecoder

MIB = 1 << 20
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "zstd": zstandard.ZstdCompressor().compress,
    "xz": lzma.compress,
    "bzip2": bz2.compress,
}
CODECS = pytest.mark.parametrize("codec", COMPRESS)


@cache
def bomb_of(codec: str) -> bytes:
    """A stream of 96 MiB of zeros, for others to be put around it: codecs read streams in a row as one."""
    return COMPRESS[codec](bytes(96 * MIB))


@contextmanager
def peak_below(limit_bytes: int) -> Iterator[None]:
    """Fails if the objects made in the block, taken together, were ever larger."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < limit_bytes, f"{peak / MIB:.1f} MiB"


# --- compression: bounded by what comes out, not by what a frame says ---


def zstd_frame(content_size: int, *, single_segment: bool, blocks: int = 64) -> bytes:
    """A frame that states ``content_size``, of RLE blocks of 128 KiB each."""
    descriptor = 3 << 6 | single_segment << 5
    window = b"" if single_segment else bytes([(20 - 10) << 3])
    sizes = [(128 << 10) << 3 | 1 << 1 | (number == blocks - 1) for number in range(blocks)]
    body = b"".join(size.to_bytes(3, "little") + b"z" for size in sizes)
    return struct.pack("<IB", 0xFD2FB528, descriptor) + window + struct.pack("<Q", content_size) + body


@pytest.mark.parametrize("stated", [1 << 40, (1 << 63) - 1, (1 << 64) - 3, 1])
@pytest.mark.parametrize("single_segment", [False, True])
def test_a_zstd_frame_that_lies_about_its_size_costs_no_memory(stated: int, single_segment: bool) -> None:
    frame = zstd_frame(stated, single_segment=single_segment)
    with peak_below(4 * MIB), pytest.raises(FormatError, match="zstd: corrupt"):
        decompressor = Decompressor("zstd")
        for piece in chain(decompressor.feed(frame), decompressor.finish()):
            assert len(piece) <= MIB


@CODECS
def test_a_bomb_of_one_endless_line_ends_at_the_longest_line(codec: str) -> None:
    bomb = COMPRESS[codec](b'{"a": "') + bomb_of(codec)
    decoder = CompressedDecoder(limited(JsonlDecoder, most_line_bytes=4 * MIB)(), codec)
    with peak_below(24 * MIB), pytest.raises(FormatError, match="a line of more than"):  # xz has 8 of its own
        blocks_of(decoder, cut(bomb, (1 << 16,)))


@CODECS
def test_a_bomb_of_short_lines_comes_in_small_blocks(codec: str) -> None:
    bomb = COMPRESS[codec](b"{}\n" * MIB) * 32
    assert len(bomb) < 200_000
    count = 0
    with peak_below(40 * MIB):  # the lines of one piece of 1 MiB, as objects, are half of it
        for block in decoded(open_decoder("jsonl"), [bomb]):
            count += len(block)
            if count > 20_000:
                break


@CODECS
def test_a_bomb_in_a_member_of_a_tar_is_refused_at_its_header(codec: str) -> None:
    bomb = COMPRESS[codec](raw_header(b"a.txt", 96 * MIB)) + bomb_of(codec) + COMPRESS[codec](END)
    decoder = CompressedDecoder(limited(TarDecoder, most_sample_bytes=4 * MIB)(), codec)
    with peak_below(24 * MIB), pytest.raises(FormatError, match="over the most of 4194304 bytes"):
        blocks_of(decoder, [bomb])


@pytest.mark.parametrize("members", [1, 3])
def test_a_sample_that_grows_out_of_next_to_nothing_is_refused(members: int) -> None:
    zeros, size = bomb_of("zstd") * (3 // members), 288 * MIB // members
    headers = [COMPRESS["zstd"](raw_header(b"a.%d" % member, size)) for member in range(members)]
    bomb = b"".join(header + zeros for header in headers)
    assert len(bomb) < 100_000
    advice = "is damaged, or made to use up memory; if it is meant, write it without compression"
    with peak_below(400 * MIB), pytest.raises(FormatError, match=advice) as caught:
        blocks_of(open_decoder("tar"), [bomb])
    assert caught.value.sample == 0


def test_samples_that_are_large_one_by_one_come_however_little_they_were() -> None:
    headers = [COMPRESS["zstd"](raw_header(b"%d.bin" % number, 96 * MIB)) for number in range(4)]
    shard = b"".join(header + bomb_of("zstd") for header in headers) + COMPRESS["zstd"](END)
    assert len(shard) < 100_000
    with peak_below(400 * MIB):
        assert sum(map(len, decoded(open_decoder("tar"), [shard]))) == 4


@CODECS
def test_a_bomb_in_a_member_that_is_skipped_is_never_held(codec: str) -> None:
    begin, end = raw_header(b"no-field", 96 * MIB), raw_header(b"a.txt") + END
    bomb = COMPRESS[codec](begin) + bomb_of(codec) + COMPRESS[codec](end)
    with peak_below(24 * MIB):
        assert samples_of(open_decoder("tar"), bomb) == [{"__key__": "a", "txt": b""}]


def test_a_bomb_in_a_bomb_is_no_shard() -> None:
    with pytest.raises(FormatError, match="look like gzip"):
        samples_of(open_decoder("tar"), gzip.compress(gzip.compress(bytes(4 * MIB))))


# --- tar: numbers that made others loop (CVE-2025-8194) ---


def negative(length: int) -> bytes:
    """GNU's base-256 form of ``-length``."""
    return (-length).to_bytes(12, "big", signed=True)


@pytest.mark.parametrize("kind", [b"%c" % code for code in (0, *b"01234567SLKxXgM", 0xFF)])
@pytest.mark.parametrize("size", [negative(512), negative(1), negative(1024), negative(1 << 62)])
def test_a_negative_size_ends_any_member_at_once(kind: bytes, size: bytes) -> None:
    archive = raw_header(b"good.txt") + raw_header(b"a.txt", size, kind) + END
    began = time.monotonic()
    for chunks in ([archive], cut(archive, (100,))):
        with pytest.raises(FormatError, match="size of 0 or more") as caught:
            samples_of(open_decoder("tar"), *chunks)
        assert caught.value.offset == 512
    assert time.monotonic() - began < AT_ONCE_S


@pytest.mark.parametrize("value", [b"-512", b"-1", b"0x200", b"1e9", b"512 ", b"9" * 4000])
def test_an_odd_size_in_a_pax_header_ends_its_member_at_once(value: bytes) -> None:
    archive = pax_header((b"size", value)) + raw_header(b"a.txt", 512) + bytes(512) + END
    with pytest.raises(FormatError, match="PAX size: expected a decimal number"):
        samples_of(open_decoder("tar"), archive)


# --- nothing that a shard holds is run ---


def test_no_format_knows_a_way_to_unpickle() -> None:
    forbidden = {"pickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "yaml"}
    for path in Path(asyncloader.formats.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert not {alias.name.partition(".")[0] for alias in node.names} & forbidden, path
            elif isinstance(node, ast.ImportFrom):
                assert (node.module or "").partition(".")[0] not in forbidden, path
            elif isinstance(node, ast.Call):
                assert ast.unparse(node.func) not in {"eval", "exec", "numpy.load", "torch.load"}, path
                for word in node.keywords:
                    assert word.arg != "allow_pickle" or ast.unparse(word.value) == "False", path
