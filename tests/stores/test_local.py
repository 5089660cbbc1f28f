# ruff: noqa: ASYNC240 - a test may hold up its own loop
from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from asyncloader.errors import StoreError
from asyncloader.stores import local
from asyncloader.stores.local import LocalStore
from asyncloader.stores.store import BUFFER_BYTES, Body

Fetch = Callable[..., Awaitable[tuple[Body, bytes]]]


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    path = tmp_path / "a shard.tar"
    path.write_bytes(bytes(range(200)))
    return path


@pytest.mark.parametrize(("start", "stop"), [(0, 200), (0, 1), (10, 20), (199, 200), (150, 10_000)])
async def test_ranges_end_where_the_file_ends(fetch: Fetch, shard: Path, start: int, stop: int) -> None:
    body, content = await fetch(LocalStore(), str(shard), start, stop)
    assert content == bytes(range(200))[start:stop]
    assert (body.start, body.stop, body.total) == (start, min(stop, 200), 200)


async def test_file_urls_are_unescaped(fetch: Fetch, shard: Path) -> None:
    _, content = await fetch(LocalStore(), shard.as_uri())
    assert "%20" in shard.as_uri()
    assert len(content) == 200


async def test_large_files_come_in_pieces(fetch: Fetch, tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(os.urandom(BUFFER_BYTES * 2 + 1))
    _, content = await fetch(LocalStore(), str(path), 0, 1 << 30)
    assert content == path.read_bytes()


async def test_an_empty_file_is_an_empty_body(fetch: Fetch, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    body, content = await fetch(LocalStore(), str(tmp_path / "empty"))
    assert (body.start, body.stop, body.total, content) == (0, 0, 0, b"")


async def test_a_missing_file_says_which(fetch: Fetch, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="No such file") as caught:
        await fetch(LocalStore(), str(tmp_path / "none"), 5)
    assert (caught.value.shard, caught.value.offset) == (str(tmp_path / "none"), 5)


async def test_what_is_no_regular_file_is_refused_at_once(fetch: Fetch, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StoreError, match="regular file, and this is none"):
        await fetch(LocalStore(), str(tmp_path / "pipe"))
    with pytest.raises(StoreError, match="this is a folder; one that is named with '/' at the end"):
        await fetch(LocalStore(), str(tmp_path))


async def test_a_changed_file_is_refused(fetch: Fetch, shard: Path) -> None:
    body, _ = await fetch(LocalStore(), str(shard), 0, 10)
    await fetch(LocalStore(), str(shard), 10, 20, etag=body.etag)
    shard.write_bytes(b"another")
    with pytest.raises(StoreError, match="was changed"):
        await fetch(LocalStore(), str(shard), 20, 30, etag=body.etag)


async def test_a_replaced_file_is_refused_though_it_has_the_same_length(fetch: Fetch, shard: Path) -> None:
    body, _ = await fetch(LocalStore(), str(shard), 0, 10)
    other = shard.with_name("other")
    other.write_bytes(shard.read_bytes())
    times = shard.stat()
    os.utime(other, ns=(times.st_atime_ns, times.st_mtime_ns))
    other.replace(shard)
    with pytest.raises(StoreError, match="was changed"):
        await fetch(LocalStore(), str(shard), 20, 30, etag=body.etag)


async def test_the_descriptor_is_closed_even_if_reading_stops_early(shard: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(LookupError):
        async with LocalStore().read(str(shard), 0, 200):
            raise LookupError
    assert len(os.listdir("/proc/self/fd")) == before


async def test_a_file_that_opens_after_the_cancellation_is_closed(
    shard: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_open, opened, real_open = threading.Event(), [], os.open

    def slow_open(*args: object) -> int:
        may_open.wait(10)
        opened.append(real_open(*args))  # type: ignore[arg-type]
        return opened[0]

    monkeypatch.setattr(local.os, "open", slow_open)

    async def read() -> None:
        async with LocalStore().read(str(shard), 0, 10):
            pass

    task = asyncio.create_task(read())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    may_open.set()
    await asyncio.get_running_loop().shutdown_default_executor()
    await asyncio.sleep(0)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[0])
