"""Bytes of local files that whoever decodes them reads himself."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import sleep
from typing import Any

import pytest

from asyncloader.errors import StoreError
from asyncloader.stores import local as file_span
from asyncloader.stores.local import (
    PIECE_BYTES,
    FileSpan,
    is_cached,
    piece_bytes_of,
    version_of,
)
from asyncloader.types import Span

MiB = 1 << 20


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    path = tmp_path / "x"
    path.write_bytes(os.urandom(3 * PIECE_BYTES + 5))
    return path


@contextmanager
def opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY)
    try:
        yield fd
    finally:
        os.close(fd)


def span_of(path: Path, *edges: int) -> FileSpan:
    spans = [Span(start, stop) for start, stop in zip(edges[::2], edges[1::2], strict=True)]
    return FileSpan(str(path), spans, version_of(path.stat()))


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize(
    ("start", "stop"), [(0, 3 * PIECE_BYTES + 5), (7, 8), (PIECE_BYTES, 2 * PIECE_BYTES + 1)]
)
def test_it_gives_its_bytes_in_pieces_and_then_lets_go_of_the_file(
    shard: Path, start: int, stop: int
) -> None:
    before = descriptors()
    span, found = span_of(shard, start, stop), []
    while span:
        piece = span.read(PIECE_BYTES)
        assert 0 < len(piece) <= PIECE_BYTES
        found.append(bytes(piece))
    assert b"".join(found) == shard.read_bytes()[start:stop]
    assert descriptors() == before


def test_several_spans_come_in_their_order(shard: Path) -> None:
    content = shard.read_bytes()
    span, found = span_of(shard, 100, 200, 7, 8, 150, 160), []
    while span:
        before = len(span)
        found.append(bytes(span.read(64)))
        assert len(span) == before - len(found[-1])
    assert found == [content[100:164], content[164:200], content[7:8], content[150:160]]


@pytest.mark.parametrize(("most_bytes", "most"), [(0, 64 << 10), (MiB, MiB // 4), (8 * MiB, PIECE_BYTES)])
def test_no_more_is_read_at_a_time_than_the_reader_may_have(shard: Path, most_bytes: int, most: int) -> None:
    assert piece_bytes_of(most_bytes) == most
    piece = span_of(shard, 0, 3 * PIECE_BYTES).read(most)
    assert bytes(piece) == shard.read_bytes()[:most]


def test_one_that_is_dropped_or_closed_lets_go_of_the_file(shard: Path) -> None:
    before = descriptors()
    span, other = span_of(shard, 0, 10), span_of(shard, 0, 10)
    assert descriptors() == before, "many may wait for their turn"
    span.read(5)
    other.read(5)
    assert descriptors() == before + 2
    span.close()
    span.close()
    assert descriptors() == before + 1
    del other
    gc.collect()
    assert descriptors() == before


def cut(path: Path) -> None:
    os.truncate(path, PIECE_BYTES)


def overwrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"other")
    os.utime(path, ns=(1, 1))  # the clock of a file system may stand still for some milliseconds


def replace(path: Path) -> None:
    """By another file of the same length and time."""
    found, other = path.stat(), path.with_suffix(".new")
    other.write_bytes(path.read_bytes())
    os.utime(other, ns=(found.st_atime_ns, found.st_mtime_ns))
    other.replace(path)


def test_a_file_that_was_replaced_is_refused_until_it_is_open(shard: Path) -> None:
    opened, waiting = span_of(shard, 0, 10), span_of(shard, 0, 10)
    first = bytes(opened.read(5))
    replace(shard)
    assert first + bytes(opened.read(5)) == shard.read_bytes()[:10]
    with pytest.raises(StoreError, match="changed while it was being read"):
        waiting.read(5)
    shard.unlink()
    with pytest.raises(StoreError, match="No such file or directory; check the path"):
        span_of_missing(shard).read(5)


def span_of_missing(path: Path) -> FileSpan:
    return FileSpan(str(path), [Span(0, 5)], "")


def test_the_program_may_change_its_folder(
    shard: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    span = FileSpan(shard.name, [Span(0, 5)], version_of(shard.stat()))
    monkeypatch.chdir("/")
    assert bytes(span.read(5)) == shard.read_bytes()[:5]


@pytest.mark.parametrize("change", [cut, overwrite])
def test_a_file_that_was_changed_meanwhile_is_refused(shard: Path, change: Any) -> None:
    span = span_of(shard, 0, shard.stat().st_size)
    untouched = span_of(shard, 0, shard.stat().st_size)
    span.read(PIECE_BYTES)
    change(shard)
    for changed, offset in ((span, PIECE_BYTES), (span, PIECE_BYTES), (untouched, 0)):
        with pytest.raises(StoreError, match="changed while it was being read") as caught:
            changed.read(PIECE_BYTES)
        assert (caught.value.shard, caught.value.offset) == (str(shard), offset)


def test_a_disk_that_fails_says_which_shard(shard: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    span = span_of(shard, 3, 10)

    def fail(*_: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(file_span.os, "preadv", fail)
    with pytest.raises(StoreError, match="Input/output error") as caught:
        span.read(PIECE_BYTES)
    assert (caught.value.shard, caught.value.offset) == (str(shard), 3)


def test_what_is_not_in_memory_is_seen(shard: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size, real, missing = shard.stat().st_size, os.preadv, 2 * PIECE_BYTES
    with opened(shard) as fd:
        assert is_cached(fd, [Span(0, size)])

        def preadv(fd: int, buffers: list[bytearray], offset: int, flags: int) -> int:
            assert flags == os.RWF_NOWAIT
            if offset >= missing:
                raise BlockingIOError
            return real(fd, buffers, offset, flags)

        monkeypatch.setattr(file_span.os, "preadv", preadv)
        assert not is_cached(fd, [Span(0, size)])
        assert not is_cached(fd, [Span(0, missing), Span(missing, size)])
        assert is_cached(fd, [Span(0, missing)])
        for columns in range(17, 50):  # of which every second one is missing
            both = [Span(0, 10), Span(missing, missing + 10)] * columns
            assert not is_cached(fd, both[:columns])


# --- as shards are read ---


@pytest.fixture
def uncollected() -> Iterator[None]:
    """What is freed is freed by its last reference, not by a collection that happens to come in time."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def held_below(folder: Path) -> list[str]:
    """The files there that this process has open."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of the listing itself
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
    return [name for name in found if name.startswith(str(folder))]


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("start", [0, 5, 20 * MiB, 20 * MiB + 1])
def test_files_are_read_to_their_end_wherever_their_bytes_lie(
    reading: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cached: bool, start: int
) -> None:
    content = os.urandom(20 * MiB + 1)
    path = tmp_path / "x"
    path.write_bytes(content)
    if not cached:
        monkeypatch.setattr("asyncloader.stores.local.is_cached", lambda *_: False)
    with reading([(str(path), start)]) as run:
        assert run.all_shards() == [content[start:]]
    assert not held_below(tmp_path)


@pytest.mark.parametrize("pause_s", [0.0, 0.0005, 0.001, 0.002, 0.004])
def test_a_shard_that_is_left_early_lets_go_of_its_file(
    reading: Any, tmp_path: Path, uncollected: None, pause_s: float
) -> None:
    for name in "xy":
        (tmp_path / name).write_bytes(bytes(8 * MiB))
    with reading([str(tmp_path / "x"), str(tmp_path / "y")]) as run:
        chunks = run.out.receive()
        chunks.receive()
        chunks.close()
        sleep(pause_s)  # while the next file is opened, looked at, and handed on
        run.out.close()
    assert not held_below(tmp_path)
