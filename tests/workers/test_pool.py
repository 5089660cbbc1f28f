"""A pool starts what it was given, and whatever happens leaves nothing behind."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from waiting import AT_ONCE_S

from asyncloader.flow.channel import ChannelClosed
from asyncloader.testing import check_leaks
from asyncloader.testing.leaks import open_files
from asyncloader.workers.pool import WorkerPool

from .processes import Watch
from .receiving import pool_of, receive, receive_async

pytestmark = [
    pytest.mark.usefixtures("server"),
    pytest.mark.parametrize("platform", ["native", "portable"], indirect=True),
]

Job = Callable[[], Iterator[tuple[Any, Any]]]


def endless() -> Job:
    def job() -> Iterator[tuple[Any, Any]]:
        while True:
            yield torch.zeros(20_000), os.getpid()

    return job


def stuck(how: Callable[[], object]) -> Job:
    def job() -> Iterator[tuple[Any, Any]]:
        yield os.getpid(), 0
        how()

    return job


def test_closing_in_the_middle_ends_everything() -> None:
    with check_leaks():
        pool = pool_of([endless(), endless()], prefetch=3)
        pool.start()
        pids = [receive(worker)[1] for worker in pool.workers]
        with Watch(pids) as watch:
            began = time.monotonic()
            pool.close()
            assert time.monotonic() - began < AT_ONCE_S
            assert watch.left_after(0) == set()
        pool.close()
        with pytest.raises(ChannelClosed):
            receive(pool.workers[0])


def test_batches_made_ahead_are_bounded_in_bytes_and_one_is_always_let_in(tmp_path: Path) -> None:
    made = tmp_path / "made"

    def job() -> Iterator[tuple[Any, Any]]:
        for number in range(6):
            with made.open("a") as log:
                log.write(f"{number}\n")
            yield torch.full((250_000,), number, dtype=torch.int32), number  # 1 MB

    def count() -> int:
        return len(made.read_text().split())

    with pool_of([job], prefetch=5, prefetch_bytes=2_500_000) as pool:
        seen = [receive(pool.workers[0])[1], receive(pool.workers[0])[1]]
        # Two have been received. Ahead of them lie at most two, and the worker waits for a receiver.
        time.sleep(0.3)
        assert count() <= 4
        seen += [receive(pool.workers[0])[1] for _ in range(4)]
        assert seen == list(range(6))
    with pool_of([job], prefetch=5, prefetch_bytes=1) as pool:
        assert [receive(pool.workers[0])[1] for _ in range(6)] == list(range(6))


def hold_the_interpreter() -> None:
    import ctypes

    # Called as a Python function, libc's sleep keeps the interpreter lock: nothing else can run.
    ctypes.PyDLL(None).sleep(60)


@pytest.mark.parametrize("how", [lambda: time.sleep(60), hold_the_interpreter])
def test_a_stuck_job_is_killed_within_a_second(how: Callable[[], object]) -> None:
    with check_leaks(), pool_of([stuck(how), stuck(how)], prefetch=2) as pool:
        pids = [receive(worker)[0] for worker in pool.workers]
        with Watch(pids) as watch:
            began = time.monotonic()
            pool.close()
            assert time.monotonic() - began < AT_ONCE_S
            assert watch.left_after(0) == set()


def test_a_job_between_batches_is_closed_and_may_clean_up(tmp_path: Path) -> None:
    def job() -> Iterator[tuple[int, int]]:
        try:
            while True:
                yield 1, 1
        finally:
            (tmp_path / "cleaned").touch()

    with pool_of([job], prefetch=1) as pool:
        receive(pool.workers[0])
    assert (tmp_path / "cleaned").exists()


def test_a_job_that_has_ended_is_closed_before_its_end_is_told(tmp_path: Path) -> None:
    class Batches:
        def __iter__(self) -> Batches:
            return self

        def __next__(self) -> tuple[int, int]:
            raise StopIteration

        def close(self) -> None:
            raise OSError("could not clean up")

    with pool_of([Batches], prefetch=1) as pool, pytest.raises(OSError, match="clean up"):
        receive(pool.workers[0])


def test_what_was_received_stays_when_the_pool_is_closed() -> None:
    with check_leaks():
        pool = pool_of([endless(), endless()], prefetch=2)
        pool.start()
        kept, pid = receive(pool.workers[0])
        with Watch([pid]) as watch:
            pool.close()
            assert watch.left_after(1) == set()
        assert not kept.any()
        del kept


def test_closing_wakes_a_blocked_receiver() -> None:
    with check_leaks(), pool_of([stuck(lambda: time.sleep(60))], prefetch=2) as pool:
        receive(pool.workers[0])
        timer = threading.Timer(0.2, pool.close)
        timer.start()
        with pytest.raises(ChannelClosed):
            receive(pool.workers[0])
        timer.join()


async def test_closing_under_a_waiting_coroutine_is_clean() -> None:
    import asyncio

    async with check_leaks(within_s=2):
        with pool_of([stuck(lambda: time.sleep(60))], prefetch=2) as pool:
            await receive_async(pool.workers[0])
            async with asyncio.TaskGroup() as group:
                waiting = group.create_task(_closed(pool))
                await asyncio.sleep(0.1)
                pool.close()
            assert waiting.result()


async def _closed(pool: WorkerPool) -> bool:
    try:
        await receive_async(pool.workers[0])
    except ChannelClosed:
        return True
    return False


def test_a_negative_prefetch_is_refused() -> None:
    with pytest.raises(ValueError, match="prefetch"):
        pool_of([], prefetch=-1)


def test_workers_see_the_parents_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "made_after_the_server.py").write_text("ANSWER = 42\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SET_AFTER_THE_SERVER", "yes")
    monkeypatch.setattr(sys, "argv", ["train.py", "--lr=1"])

    def job() -> Iterator[tuple[Any, Any]]:
        import made_after_the_server  # type: ignore[import-not-found]  # written above

        yield made_after_the_server.ANSWER, (os.getcwd(), os.environ.get("SET_AFTER_THE_SERVER"), sys.argv)

    with pool_of([job], prefetch=1) as pool:
        assert receive(pool.workers[0]) == (42, (str(tmp_path), "yes", ["train.py", "--lr=1"]))


def test_workers_hold_only_what_is_theirs() -> None:
    def job() -> Iterator[tuple[Any, Any]]:
        yield [end for end in open_files().values() if end.startswith(("socket", "anon_inode"))], 0

    with pool_of([job] * 3, prefetch=1) as pool:
        assert [len(receive(worker)[0]) for worker in pool.workers] == [1, 1, 1]  # to the parent


def test_a_program_started_by_a_job_inherits_no_descriptor() -> None:
    def job() -> Iterator[tuple[Any, Any]]:
        import subprocess

        yield subprocess.run(["ls", "/proc/self/fd"], capture_output=True, close_fds=False).stdout.split(), 0

    with pool_of([job], prefetch=1) as pool:
        assert [name for name in receive(pool.workers[0])[0] if int(name) > 3] == []
