"""The limit, the floor, and disks that are full."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import pytest
from corpus import tar_of

import asyncloader as al
from asyncloader import testing
from asyncloader.cache.folder import Header
from asyncloader.cache.store import cache_setting

from .epochs import begin, read_epoch, start_program

MiB = 1 << 20
Serve = Callable[..., testing.Server]


def lengths(folder: Path) -> dict[tuple[str, int], int]:
    """The length of each file, by name and inode; some may go meanwhile."""
    found = {}
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            stat = path.stat()
            if path.is_file():
                found[str(path), stat.st_ino] = stat.st_size
    return found


def held_bytes(folder: Path) -> int:
    """The length of all files together."""
    return sum(lengths(folder).values())


class Watch:
    """The most bytes that a cache's folder had, seen by a thread that looks all the time.

    To look takes time in which files come and go. What is there in one look and still there in the next was
    there at once in between.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._end = folder, threading.Event()
        self.most_bytes = 0
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _look(self) -> None:
        before: dict[tuple[str, int], int] = {}
        while not self._end.wait(0.001):
            now = lengths(self._folder)
            at_once = sum(length for file, length in before.items() if file in now)
            self.most_bytes = max(self.most_bytes, at_once)
            before = now


@pytest.mark.parametrize("seed", range(4))
def test_the_limit_is_never_exceeded_and_every_byte_comes(
    serve: Serve, new_run: Any, tmp_path: Path, seed: int
) -> None:
    random = Random(seed)
    objects = {str(n): random.randbytes(random.randrange(1, 3 * MiB)) for n in range(12)}
    server = serve(objects)
    limit = random.randrange(_file_bytes(3 * MiB), 12 * MiB)
    with Watch(tmp_path / "cache") as watch:
        for _ in range(3):
            keys = random.sample(sorted(objects), 10)
            got = read_epoch(new_run(limit), [server.url_of(key) for key in keys])
            assert got == [objects[key] for key in keys]
    assert 0 < watch.most_bytes <= limit


def test_the_limit_holds_for_all_processes_together(serve: Serve, new_run: Any, tmp_path: Path) -> None:
    random = Random(5)
    objects = {str(n): random.randbytes(random.randrange(1, 2 * MiB)) for n in range(16)}
    server, limit = serve(objects, latency_s=0.01), 7 * MiB
    orders = [random.sample(sorted(objects), 16) * 3 for _ in range(3)]
    with Watch(tmp_path / "cache") as watch:
        programs = [start_program(new_run(limit), [server.url_of(key) for key in keys]) for keys in orders]
        begin(programs)
        for program, keys in zip(programs, orders, strict=True):
            printed, _ = program.communicate(timeout=120)
            assert printed.split()[1:] == [*(sha256(objects[key]).hexdigest() for key in keys), "end"]
    assert 0 < watch.most_bytes <= limit


def test_what_was_used_last_stays(serve: Serve, new_run: Any, kept: Any) -> None:
    objects = {key: key.encode() * MiB for key in "abcd"}
    server = serve(objects)
    setting = new_run(3 * _file_bytes(MiB))
    for key in "abcad":  # the fifth needs the place of one, and a was used after b
        assert read_epoch(setting, [server.url_of(key)]) == [objects[key]]
    before = server.counters.requests
    for key in "acd":
        assert read_epoch(setting, [server.url_of(key)]) == [objects[key]]
    assert server.counters.requests == before
    read_epoch(setting, [server.url_of("b")])
    assert server.counters.requests > before


def test_shards_without_room_are_counted(serve: Serve, tmp_path: Path) -> None:
    """As each shard may be that workers download at the same time: only more room would help them all."""
    server = serve({f"{n}.tar": tar_of(4, 100_000) for n in range(6)})
    shards = al.from_urls(f"{server.url}/{{0..5}}.tar", cache_dir=tmp_path, cache_limit="100kB")
    with al.DataLoader(shards) as loader:
        with pytest.warns(RuntimeWarning, match="there is no room for it"):
            assert len([*loader]) == 24
        network = loader.statistics.network
    assert (network.cached, network.evicting) == (0, 6)


def test_a_lower_limit_is_reached_with_the_next_download(serve: Serve, new_run: Any, kept: Any) -> None:
    objects = {str(n): bytes(MiB) for n in range(6)}
    server = serve(objects)
    urls = [server.url_of(key) for key in objects]
    read_epoch(new_run(), urls[:5])
    read_epoch(new_run(2 * _file_bytes(MiB)), urls[5:])
    assert len(kept("shards")) == 2


def test_a_shard_above_the_limit_is_read_and_not_kept(serve: Serve, new_run: Any, kept: Any) -> None:
    objects = {"small": bytes(MiB), "large": os.urandom(9 * MiB)}
    server, setting = serve(objects), new_run(4 * MiB)
    read_epoch(setting, [server.url_of("small")])
    with pytest.warns(RuntimeWarning, match="no room"):
        assert read_epoch(setting, [server.url_of("large")]) == [objects["large"]]
    assert len(kept("shards")) == 1 and not kept("filling")  # nothing was evicted in vain
    # The bytes came once, apart from the part that told the length.
    assert server.counters.bytes_sent <= MiB + 9 * MiB + 2 * MiB


def test_what_a_killed_process_left_is_no_space_lost(
    serve: Serve, new_run: Any, kept: Any, tmp_path: Path
) -> None:
    server, setting = serve({"x": bytes(MiB)}), new_run(_file_bytes(MiB))
    left = tmp_path / "cache" / "asyncloader-v1" / "filling" / ("0" * 64)
    left.write_bytes(bytes(MiB))
    assert read_epoch(setting, [server.url_of("x")]) == [bytes(MiB)]
    assert len(kept("shards")) == 1 and not left.exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 32 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    command = [str(mount), "-t", "tmpfs", "-o", "size=32m,mode=0700", "tmpfs", str(folder)]
    if mount is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("only who may mount file systems can fill one")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_small_disk_keeps_its_floor(serve: Serve, small_disk: Path) -> None:
    objects = {str(n): os.urandom(5 * MiB) for n in range(10)}
    server = serve(objects)
    setting = cache_setting(small_disk, None)
    assert setting is not None
    for _ in range(2):
        assert read_epoch(setting, [server.url_of(key) for key in objects]) == list(objects.values())
        found = os.statvfs(small_disk)
        assert found.f_bavail * found.f_frsize >= 32 * MiB // 20
    assert held_bytes(small_disk) > 15 * MiB


def test_a_disk_that_is_full_of_other_things_means_uncached(serve: Serve, small_disk: Path) -> None:
    content = os.urandom(5 * MiB)
    server = serve({"x": content})
    setting = cache_setting(small_disk, None)
    assert setting is not None
    (small_disk / "other").write_bytes(bytes(30 * MiB))
    with pytest.warns(RuntimeWarning, match="no room"):
        assert read_epoch(setting, [server.url_of("x")]) == [content]


def test_a_disk_that_fills_up_in_the_middle_means_uncached(serve: Serve, small_disk: Path) -> None:
    content = os.urandom(20 * MiB)
    server = serve({"x": content}, rate_bytes_s=10 * MiB)
    setting = cache_setting(small_disk, None)
    assert setting is not None
    filler = threading.Thread(target=_fill_soon, args=[small_disk])
    filler.start()
    with pytest.warns(RuntimeWarning, match="No space left"):
        assert read_epoch(setting, [server.url_of("x")]) == [content]
    filler.join()
    assert held_bytes(small_disk / "asyncloader-v1") == 0
    (small_disk / "other").unlink()
    assert read_epoch(setting, [server.url_of("x")]) == [content]
    assert held_bytes(small_disk) == _file_bytes(20 * MiB)


def _file_bytes(size: int) -> int:
    """How long the file of so long a shard is."""
    return Header("", size).file_bytes


def _fill_soon(folder: Path) -> None:
    while held_bytes(folder) < 2 * MiB:
        time.sleep(0.001)
    with pytest.raises(OSError, match="No space"), (folder / "other").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(MiB))
            os.fsync(file.fileno())


def test_a_file_that_may_not_grow_means_uncached(serve: Serve, new_run: Any, kept: Any) -> None:
    content = os.urandom(12 * MiB)
    server = serve({"x": content})
    program = start_program(new_run(), [server.url_of("x")], longest_file=5 * MiB)
    printed, complaints = program.communicate("\n", timeout=30)
    assert printed.split()[1:] == [sha256(content).hexdigest(), "end"]
    assert complaints.count("RuntimeWarning: reading without the disk cache") == 1
    assert "File too large" in complaints
    assert not kept("shards") and not kept("filling")
