"""Several processes over one cache, some of which are killed or stopped."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from itertools import cycle, islice
from pathlib import Path
from random import Random
from typing import Any

import pytest
from waiting import until

from asyncloader import testing
from asyncloader.cache.folder import Header
from asyncloader.cache.upkeep import verify_cache
from asyncloader.stores.store import CacheSetting

from .epochs import Epoch, begin, read_epoch, start_program

MiB = 1 << 20
Serve = Callable[..., testing.Server]


@contextmanager
def running(setting: CacheSetting, urls: list[str], **kwargs: Any) -> Iterator[tuple[Any, Callable[[], int]]]:
    """A program, and how to start its next process."""
    program = start_program(setting, urls, **kwargs)
    assert program.stdin is not None and program.stdout is not None
    stdin, stdout = program.stdin, program.stdout

    def start() -> int:
        stdin.write("\n")
        stdin.flush()
        return int(stdout.readline())

    try:
        yield program, start
    finally:
        program.kill()
        program.communicate()


def size_of(paths: list[Path]) -> int:
    """Their bytes; a file that was renamed since it was listed, as a filler does, counts as none."""
    sizes = 0
    for path in paths:
        with suppress(FileNotFoundError):
            sizes += path.stat().st_size
    return sizes


def digest(content: bytes) -> str:
    return sha256(content).hexdigest()


def test_processes_that_read_the_same_shards_at_once_download_each_once(
    serve: Serve, new_run: Any, shards: dict[str, bytes]
) -> None:
    server, setting = serve(shards, rate_bytes_s=20 * MiB), new_run()
    urls = [server.url_of(key) for key in shards]
    # Each with shards of its own to begin with, so that each waits for the other.
    orders = [list(shards), list(reversed(shards))]
    programs = [start_program(setting, [server.url_of(key) for key in order]) for order in orders]
    begin(programs)
    for program, order in zip(programs, orders, strict=True):
        printed, complaints = program.communicate(timeout=40)
        assert printed.split()[1:] == [*(digest(shards[key]) for key in order), "end"]
        assert complaints == ""
    assert server.counters.bytes_sent == sum(map(len, shards.values()))
    before = server.counters.requests
    assert read_epoch(setting, urls) == list(shards.values())
    assert server.counters.requests == before


def test_a_reader_waits_for_another_processes_download(serve: Serve, new_run: Any, kept: Any) -> None:
    content = os.urandom(6 * MiB)
    server, setting = serve({"x": content}, rate_bytes_s=2 * MiB), new_run()
    with running(setting, [server.url_of("x")]) as (_, start), testing.check_leaks(within_s=8):
        start()
        until(lambda: size_of(kept("filling")) > MiB)
        assert read_epoch(setting, [server.url_of("x")]) == [content]
        assert len(kept("shards")) == 1
        assert server.counters.bytes_sent == len(content)


def test_a_reader_goes_on_at_once_when_the_downloading_process_is_killed(
    serve: Serve, new_run: Any, kept: Any
) -> None:
    content = os.urandom(12 * MiB)
    server, setting = serve({"x": content}, rate_bytes_s=4 * MiB), new_run()
    with running(setting, [server.url_of("x")]) as (_, start):
        pid = start()
        until(lambda: size_of(kept("filling")) > 2 * MiB)
        with Epoch(setting, [server.url_of("x")]) as epoch:
            chunks, got = epoch.out.receive(10), bytearray()
            until(lambda: size_of(kept("filling")) > 4 * MiB)  # meanwhile it waits for the other process
            assert not len(chunks)
            os.kill(pid, signal.SIGKILL)
            began = time.monotonic()
            while len(got) < len(content):
                got += chunks.receive(10)
            assert time.monotonic() - began < 20  # 12 MiB at 4 MiB/s and more; its patience would be 30 s
        assert got == content
    before = len(kept("shards"))
    assert before == 0
    assert read_epoch(setting, [server.url_of("x")]) == [content]  # no cleaning
    assert len(kept("shards")) == 1 and not kept("filling")


def test_a_stopped_process_goes_on_as_if_nothing_had_been(serve: Serve, new_run: Any, kept: Any) -> None:
    content = os.urandom(6 * MiB)
    server, setting = serve({"x": content}, rate_bytes_s=2 * MiB), new_run()
    url = server.url_of("x")
    with running(setting, [url]) as (_, start):
        pid = start()
        until(lambda: size_of(kept("filling")) > MiB)
        os.kill(pid, signal.SIGSTOP)
        try:
            assert read_epoch(setting, [url], stall_s=0.3) == [content]
        finally:
            os.kill(pid, signal.SIGCONT)
        until(lambda: kept("shards"))
    before = server.counters.requests
    assert read_epoch(setting, [url]) == [content]
    assert server.counters.requests == before


def test_a_stopped_process_makes_the_others_wait_once(serve: Serve, new_run: Any, kept: Any) -> None:
    content = os.urandom(9 * MiB)
    server, setting = serve({"x": content}, [testing.Stall(100, 30, after=1, times=1)]), new_run()
    url, stall_s = server.url_of("x"), 2.0
    with running(setting, [url]) as (_, start):
        pid = start()
        until(lambda: server.counters.requests >= 2 and size_of(kept("filling")) > 0)
        os.kill(pid, signal.SIGSTOP)
        began = time.monotonic()
        with Epoch(setting, [url] * 8, stall_s=stall_s) as epoch:
            assert epoch.all_shards() == [content] * 8
        # Once, and not for each of the eight.
        assert 2 * stall_s - 0.5 < time.monotonic() - began < 6 * 2 * stall_s
        ended = os.pidfd_open(pid)
        os.kill(pid, signal.SIGKILL)
        assert select.select([ended], [], [], 10)[0]  # till then it holds its lock
        os.close(ended)
    assert read_epoch(setting, [url]) == [content]
    assert len(kept("shards")) == 1


@pytest.mark.timeout(240)
@pytest.mark.parametrize("kills", [12, pytest.param(200, marks=pytest.mark.slow)])
def test_processes_killed_at_random_moments_leave_nothing_to_clean(
    kills: int, serve: Serve, new_run: Any, kept: Any, tmp_path: Path
) -> None:
    random = Random(7)
    objects = {str(n): random.randbytes(random.randrange(1, 4 * MiB)) for n in range(16)}
    server = serve(objects, latency_s=0.005)
    urls = [server.url_of(key) for key in objects]
    limit = sum(map(len, objects.values())) // 2
    began = time.monotonic()
    assert read_epoch(new_run(limit), urls) == list(objects.values())
    normal_s = time.monotonic() - began
    expected = [digest(content) for content in objects.values()]
    with running(new_run(limit), urls, forever=True) as (program, start):
        for _ in range(kills):
            pid = start()
            time.sleep(random.uniform(0, 3 * normal_s))
            os.kill(pid, signal.SIGKILL)
            printed = []
            while (line := program.stdout.readline().strip()) != "end":
                printed.append(line)
            assert printed == list(islice(cycle(expected), len(printed)))
            files = [*kept("shards"), *kept("filling"), *kept("quarantine")]
            assert size_of(files) <= limit + 4 * Header("", 4 * MiB).file_bytes
        assert not kept("quarantine")
    began = time.monotonic()
    with testing.check_leaks():
        assert read_epoch(new_run(limit), urls) == list(objects.values())
    assert time.monotonic() - began < 5 * normal_s + 2  # and not the time-out of a lock
    assert not kept("filling") and not kept("quarantine")
    assert size_of(kept("shards")) <= limit
    assert verify_cache(tmp_path / "cache") == []
