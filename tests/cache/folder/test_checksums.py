"""Checksums of stretches: whatever is read was compared, and whatever differs is not read."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncloader.cache.copy import DamagedCopyError, Sums, has_crc32c, read_stretches
from asyncloader.cache.folder import HEADER_BYTES, STRETCH_BYTES, SUMS_BYTES, Header

SIZE = 3 * STRETCH_BYTES + 777
CONTENT = Random(0).randbytes(SIZE)
HEADER = Header('"v"', SIZE, crc32c=has_crc32c())


def fill(path: Path, header: Header = HEADER, chunk_bytes: int = 300_001) -> int:
    """A file of ``CONTENT``, open."""
    number = os.open(path, os.O_RDWR | os.O_CREAT)
    sums = Sums(header)
    for offset in range(0, SIZE, chunk_bytes):
        chunk = CONTENT[offset : offset + chunk_bytes]
        sums.add(number, chunk)
        os.pwrite(number, chunk, header.begin + offset)
    return number


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    number = fill(tmp_path_factory.mktemp("stretches") / "file")
    yield number
    os.close(number)


@given(st.integers(0, SIZE - 1), st.integers(1, SIZE))
def test_any_range_of_a_sound_file_is_read_as_it_is(filled: int, start: int, length: int) -> None:
    stop = min(start + length, SIZE)
    assert b"".join(read_stretches(filled, HEADER, start, stop)) == CONTENT[start:stop]


@pytest.mark.parametrize("chunk_bytes", [STRETCH_BYTES - 1, STRETCH_BYTES, 2 * STRETCH_BYTES + 1, SIZE])
def test_how_the_bytes_come_does_not_matter(tmp_path: Path, chunk_bytes: int) -> None:
    number = fill(tmp_path / "file", HEADER, chunk_bytes)
    assert b"".join(read_stretches(number, HEADER, 0, SIZE)) == CONTENT
    os.close(number)


@pytest.mark.parametrize(
    "at", [0, STRETCH_BYTES - 1, STRETCH_BYTES, SIZE - 1], ids=["first", "end", "second", "last"]
)
def test_one_flipped_bit_is_seen_by_who_reads_its_stretch_and_by_nobody_else(tmp_path: Path, at: int) -> None:
    number = fill(tmp_path / "file")
    os.pwrite(number, bytes([CONTENT[at] ^ 1]), HEADER.begin + at)
    for begin in range(0, SIZE, STRETCH_BYTES):
        stop = min(begin + STRETCH_BYTES, SIZE)
        if begin <= at < stop:
            with pytest.raises(DamagedCopyError):
                read_stretches(number, HEADER, begin, begin + 1)
            with pytest.raises(DamagedCopyError):
                read_stretches(number, HEADER, 0, SIZE)
        else:
            assert b"".join(read_stretches(number, HEADER, begin, stop)) == CONTENT[begin:stop]
    os.close(number)


def test_a_file_that_ends_before_and_a_lost_table_are_damage(tmp_path: Path) -> None:
    number = fill(tmp_path / "file")
    os.truncate(number, HEADER.file_bytes - 1)
    with pytest.raises(DamagedCopyError):
        read_stretches(number, HEADER, SIZE - 2, SIZE - 1)
    os.pwrite(number, bytes(HEADER_BYTES), HEADER_BYTES)
    with pytest.raises(DamagedCopyError):
        read_stretches(number, HEADER, 0, 1)
    os.close(number)


def test_who_lacks_crc32c_reads_what_others_fill_and_the_other_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = fill(tmp_path / "both")
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    assert not has_crc32c()
    one_header = replace(HEADER, crc32c=has_crc32c())
    one = fill(tmp_path / "one", one_header)
    files = ((both, HEADER), (one, one_header))
    for number, header in files:
        assert b"".join(read_stretches(number, header, 5, SIZE)) == CONTENT[5:]
    monkeypatch.undo()
    assert b"".join(read_stretches(one, one_header, 5, SIZE)) == CONTENT[5:]
    for number, header in files:
        os.pwrite(number, b"?", header.begin + 9)
        with pytest.raises(DamagedCopyError):
            read_stretches(number, header, 9, 10)
        os.close(number)


@given(st.integers(1, 1 << 50))
def test_the_table_has_room_for_all_and_what_follows_is_aligned(size: int) -> None:
    header = Header("", size)
    assert HEADER_BYTES + -(-size // STRETCH_BYTES) * SUMS_BYTES <= header.begin
    assert header.begin % HEADER_BYTES == 0
