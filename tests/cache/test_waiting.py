"""Waiting for a file that another process fills."""

from __future__ import annotations

import asyncio
import fcntl
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from asyncloader.cache.copy import Descriptor
from asyncloader.cache.waiting import Inotify, wait_filled


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """A file, and the locked descriptor that fills it, as another process has it."""
    path = tmp_path / "file"
    number = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(number, fcntl.LOCK_EX)
    yield path, number
    os.close(number)


async def wait(path: Path, patience_s: float) -> bool:
    file, inotify = Descriptor(os.open(path, os.O_RDWR)), Inotify()
    try:
        async with asyncio.timeout(20):
            return await wait_filled(file, inotify, patience_s)
    finally:
        inotify.close()
        file.close()


async def test_processes_that_look_at_the_file_do_not_prolong_the_wait(filled: tuple[Path, int]) -> None:
    path, _ = filled
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.02):
            os.close(os.open(path, os.O_RDWR))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        assert not await wait(path, 0.2)
    finally:
        ended.set()
        thread.join()


async def test_a_file_that_grows_is_waited_for(filled: tuple[Path, int]) -> None:
    path, number = filled
    waiting = asyncio.create_task(wait(path, 0.4))
    for _ in range(6):
        os.write(number, b"more")
        await asyncio.sleep(0.2)
    assert not waiting.done()
    fcntl.flock(number, fcntl.LOCK_UN)
    assert await waiting


async def test_an_unlocked_file_is_seen_without_a_report(filled: tuple[Path, int]) -> None:
    path, number = filled
    waiting = asyncio.create_task(wait(path, 0.4))
    await asyncio.sleep(0.2)
    fcntl.flock(number, fcntl.LOCK_UN)
    assert await waiting
