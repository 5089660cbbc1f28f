"""Runs that are killed while their cache fills and evicts, and the next run on the same folder."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from itertools import cycle, islice
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import pytest

import asyncloader as al
from asyncloader import testing
from asyncloader.cache.folder import HEADER_BYTES
from asyncloader.cache.upkeep import verify_cache

from .cached_runs import CachedRun, Victims

MiB = 1 << 20

# What all workers download at once may be more than the limit; then some of it is not kept, which is told.
pytestmark = [
    pytest.mark.usefixtures("platform", "fork_server"),
    pytest.mark.filterwarnings("ignore:reading without the disk cache where a shard cannot be kept"),
]


@dataclass(frozen=True)
class Written:
    """Shards of unequal lengths.

    Attributes:
        paths: In order.
        samples: The digest of every sample by its key.
        size_bytes: Of all shards together.
    """

    paths: list[Path]
    samples: dict[str, str]
    size_bytes: int


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    folder, random, samples = tmp_path_factory.mktemp("shards"), Random(5), {}
    paths = [folder / f"{shard:02d}.tar" for shard in range(40)]
    for path in paths:
        with al.ShardWriter(path) as writer:
            for index in range(random.randrange(1, 5)):
                content = random.randbytes(random.randrange(1, 300_000))
                samples[f"{path.stem}-{index}"] = sha256(content).hexdigest()
                writer.write({"__key__": f"{path.stem}-{index}", "bin": content})
    return Written(paths, samples, sum(path.stat().st_size for path in paths))


@pytest.fixture
def asked() -> threading.Event:
    """Set by each request that the server gets."""
    return threading.Event()


@pytest.fixture
def server(written: Written, asked: threading.Event) -> Iterator[testing.Server]:
    """Slow enough that a shard takes a while."""

    def latency_s(_: Random) -> float:
        asked.set()
        return 0.01

    with testing.serve(written.paths[0].parent, latency_s=latency_s, rate_bytes_s=20 * MiB) as server:
        yield server


def until(condition: Callable[[], Any], within_s: float = 10) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def session_of(leader: int) -> list[int]:
    """The processes in a session, those whose parents have died too."""
    members = []
    for pid in [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]:
        try:
            state, _, _, session, *_ = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        if int(session) == leader and state != "Z":
            members.append(pid)
    return members


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if not path.is_dir()]


def size_of(files: list[Path]) -> int:
    size_bytes = 0
    for path in files:
        with suppress(FileNotFoundError):  # workers outlive their parent by some milliseconds
            size_bytes += path.stat().st_size
    return size_bytes


def is_locked(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def whole_pass(run: CachedRun, workers: int, samples: dict[str, str]) -> tuple[float, list[Any]]:
    """Seconds and batches of a pass, which must deliver every sample, byte for byte, exactly once."""
    began = time.monotonic()
    batches = list(run.passes(workers, 1))
    took_s = time.monotonic() - began
    read = Counter((key, digest) for batch in batches for key, digest in batch)
    assert read == Counter(samples.items())
    return took_s, batches


def check_cache(cache: Path, limit: int) -> None:
    """Nothing but whole, right shards, no more of them than may be; nobody holds one."""
    files = files_below(cache)
    assert {path.relative_to(cache).parts[:2] for path in files} <= {("asyncloader-v1", "shards")}
    assert size_of(files) <= limit
    assert not any(map(is_locked, files))
    assert verify_cache(cache) == []


@pytest.mark.parametrize(
    "kills",
    [
        # Workers of a killed process come from a fork server of its own, which takes two seconds to start.
        # Killed without and with workers, and followed by a run without and with: all pairs in four.
        pytest.param(5, marks=pytest.mark.timeout(180)),
        pytest.param(100, marks=[pytest.mark.slow, pytest.mark.timeout(1200)]),
    ],
)
def test_the_run_after_a_killed_one_delivers_everything_without_cleaning_or_waiting(
    kills: int, server: testing.Server, asked: threading.Event, written: Written, tmp_path: Path
) -> None:
    urls, limit = [server.url_of(path.name) for path in written.paths], written.size_bytes // 2
    # The first run is not counted: it imports.
    timed = [
        whole_pass(CachedRun(urls, str(tmp_path / f"normal-{nth}"), limit), 2 * (nth % 2), written.samples)
        for nth in range(7)
    ][1:]
    normal_s, expected = median(took_s for took_s, _ in timed), timed[0][1]
    cache, temporary = tmp_path / "cache", tmp_path / "tmp"
    temporary.mkdir()
    run, random = CachedRun(urls, str(cache), limit), Random(7)
    next_s, interrupted = [], 0
    with Victims.of(run, temporary) as victims, testing.check_leaks(within_s=5):
        for nth in range(kills):
            asked.clear()
            workers = 2 * (nth % 2)
            pid = victims.start(workers)
            assert asked.wait(30)
            assert len(session_of(pid)) > workers  # with the fork server, of which the workers come
            time.sleep(random.uniform(0, 2 * normal_s))
            delivered = victims.kill()
            assert delivered == list(islice(cycle(expected), len(delivered)))
            left = files_below(cache)
            interrupted += any(path.parent.name == "filling" for path in left)
            # Each of two workers may have announced four shards more, and been told that there is no room.
            assert size_of(left) <= limit + 8 * HEADER_BYTES
            took_s, batches = whole_pass(run, 2 * (nth // 2 % 2), written.samples)
            next_s.append(took_s)
            assert batches == expected
            assert took_s < 5 * normal_s + 2  # and not the time-out of a lock
            until(lambda pid=pid: not session_of(pid))
            check_cache(cache, limit)
            assert not list(temporary.iterdir())
    assert interrupted > kills // 4, "the kills should come amid downloads"
    print(
        f"{kills} kills, {interrupted} amid downloads; normal run {normal_s:.2f} s (median of {len(timed)}), "
        f"next run {median(next_s):.2f} s (median), {max(next_s):.2f} s (most)"
    )
