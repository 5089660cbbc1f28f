"""What a job yields arrives in order and whole, and then its end, its error, or its death."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import mmap
import os
import resource
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from waiting import AT_ONCE_S

from asyncloader.blocks.memory import borrowing, stacked
from asyncloader.errors import FormatError, WorkerDiedError
from asyncloader.flow.channel import ChannelClosed, EndOfChannel
from asyncloader.testing import check_leaks
from asyncloader.workers.lifeline import wait_ended
from asyncloader.workers.pool import WorkerPool
from asyncloader.workers.worker import Worker

from .receiving import pool_of, receive, receive_async

pytestmark = [
    pytest.mark.usefixtures("server"),
    pytest.mark.parametrize("platform", ["native", "portable"], indirect=True),
]


def one_worker(job: Callable[[], Any], prefetch: int = 2) -> WorkerPool:
    return pool_of([job], prefetch=prefetch)


def counting(stop: int, size: int = 10_000) -> Callable[[], Iterator[tuple[Any, int]]]:
    def job() -> Iterator[tuple[Any, int]]:
        for number in range(stop):
            yield {"x": torch.full((size,), number), "key": f"sample {number}"}, number

    return job


def rest(worker: Worker) -> list[int]:
    """The notes of all batches up to the job's end; the batches are checked on the way."""
    notes = []
    while True:
        try:
            batch, note = receive(worker)
        except EndOfChannel:
            return notes
        assert (batch["x"] == note).all() and batch["key"] == f"sample {note}"
        notes.append(note)


def prefix_until(worker: Worker, error: type[BaseException]) -> tuple[list[int], Any]:
    """The notes of the batches before the error, and the error."""
    notes = []
    with pytest.raises(error) as caught:
        while True:
            notes.append(receive(worker)[1])
    return notes, caught.value


# --- order and credits ---


@pytest.mark.parametrize("prefetch", [1, 2, 5])
def test_batches_come_in_order_and_then_the_end(prefetch: int) -> None:
    with check_leaks(), pool_of([counting(20), counting(3), counting(0)], prefetch=prefetch) as pool:
        assert [rest(worker) for worker in pool.workers] == [list(range(20)), list(range(3)), []]
        for worker in pool.workers:
            with pytest.raises(EndOfChannel):
                receive(worker)


def test_exactly_prefetch_batches_are_made_ahead(tmp_path: Path) -> None:
    def job() -> Iterator[tuple[int, int]]:
        for number in range(100):
            (tmp_path / str(number)).touch()
            yield number, number

    with one_worker(job, prefetch=3) as pool:
        for taken in range(1, 5):
            receive(pool.workers[0])
            # The batch last paid for was sent: so it, and all before it, were made.
            deadline = time.monotonic() + 5
            while len(list(tmp_path.iterdir())) < taken + 3 and time.monotonic() < deadline:
                time.sleep(0.005)
            assert len(list(tmp_path.iterdir())) == taken + 3


def test_more_messages_than_a_socket_holds_arrive_and_closing_meanwhile_ends_the_worker() -> None:
    with check_leaks(), one_worker(counting(400, size=300), prefetch=400) as pool:
        wait_ended([pool.workers[0].lifeline], 0.3)  # time to fill it: no end is told, for the worker waits
        assert not pool.workers[0].lifeline.ended
        assert rest(pool.workers[0]) == list(range(400))
    with check_leaks(), one_worker(counting(400, size=300), prefetch=400) as pool:
        wait_ended([pool.workers[0].lifeline], 0.3)
        began = time.monotonic()
        pool.close()
        assert time.monotonic() - began < AT_ONCE_S


def test_none_is_a_batch() -> None:
    with one_worker(lambda: iter([(None, None)])) as pool:
        assert receive(pool.workers[0]) == (None, None)


def test_a_job_larger_than_a_socket_buffer_arrives() -> None:
    captured = bytes(5_000_000)
    with one_worker(lambda: iter([(len(captured), 0)])) as pool:
        assert receive(pool.workers[0]) == (5_000_000, 0)


async def test_coroutines_receive_the_same() -> None:
    async with check_leaks(within_s=2):
        with pool_of([counting(10), counting(10)], prefetch=2) as pool:
            for number in range(10):
                pairs = await asyncio.gather(receive_async(pool.workers[0]), receive_async(pool.workers[1]))
                assert [note for _, note in pairs] == [number, number]
            del pairs
            with pytest.raises(EndOfChannel):
                await receive_async(pool.workers[0])


async def test_a_cancelled_receive_loses_no_batch() -> None:
    def job() -> Iterator[tuple[int, int]]:
        for number in range(3):
            time.sleep(0.15)
            yield number, number

    with one_worker(job) as pool:
        got = []
        while len(got) < 3:
            try:
                async with asyncio.timeout(0.02):
                    got.append((await receive_async(pool.workers[0]))[0])
            except TimeoutError:
                pass
    assert got == [0, 1, 2]


def test_a_timeout_leaves_the_worker_usable() -> None:
    def job() -> Iterator[tuple[int, int]]:
        time.sleep(0.3)
        yield 1, 1

    with one_worker(job) as pool:
        with pytest.raises(TimeoutError):
            receive(pool.workers[0], timeout_s=0.05)
        assert receive(pool.workers[0], timeout_s=20) == (1, 1)


def test_one_receiver_at_a_time() -> None:
    def job() -> Iterator[tuple[int, int]]:
        time.sleep(60)
        yield 1, 1

    with one_worker(job) as pool:
        caught: list[BaseException] = []

        def wait() -> None:
            try:
                receive(pool.workers[0])
            except BaseException as error:
                caught.append(error)

        threads = [threading.Thread(target=wait) for _ in range(2)]
        for thread in threads:
            thread.start()
        while not caught:
            time.sleep(0.005)
        assert isinstance(caught[0], RuntimeError)
        pool.close()
        for thread in threads:
            thread.join()
        assert isinstance(caught[1], ChannelClosed)


# --- shared memory ---


def test_kept_batches_keep_their_values() -> None:
    with check_leaks(within_s=2):
        with one_worker(counting(200)) as pool:
            kept = [receive(pool.workers[0])[0]["x"] for _ in range(200)]
            with pytest.raises(EndOfChannel):
                receive(pool.workers[0])
        assert [int(tensor[0]) for tensor in kept] == list(range(200))
        assert all((tensor == number).all() for number, tensor in enumerate(kept))
        kept.clear()


def mapped_slots() -> int:
    """How many slots this process has mapped: batches outstanding, those kept, and a few free."""
    return Path("/proc/self/maps").read_text().count("asyncloader-slot")


def test_dropped_batches_need_few_slots() -> None:
    with one_worker(counting(150), prefetch=2) as pool:
        for _ in range(150):
            receive(pool.workers[0])
            # Two on their way, the one just received, the one before until its slot is told, and spares.
            assert mapped_slots() <= 2 + 1 + 1 + 3


def test_small_batches_need_no_shared_memory() -> None:
    with one_worker(counting(50, size=200)) as pool:
        for number in range(50):
            batch, _ = receive(pool.workers[0])
            assert (batch["x"] == number).all()
            assert mapped_slots() == 0


def test_few_slots_serve_all_batches_and_no_descriptor() -> None:
    def held() -> tuple[set[str], int]:
        """The slots by their inodes, and how many files are open."""
        maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
        slots = {line[4] for line in maps if "asyncloader-slot" in line[-2]}
        return slots, len(os.listdir("/proc/self/fd"))

    def job() -> Iterator[tuple[Any, Any]]:
        for number in range(200):
            yield torch.full((50_000,), number), held()

    with one_worker(job, prefetch=2) as pool:
        seen = []
        for number in range(200):
            batch, theirs = receive(pool.workers[0])
            assert (batch == number).all()
            seen.append((*held(), *theirs))
    # Two on their way, the one just received, and the one before until its slot is told; one is being filled.
    assert 0 < len(set().union(*[ours for ours, _, _, _ in seen])) <= 2 + 1 + 1 + 1
    assert 0 < len(set().union(*[theirs for _, _, theirs, _ in seen])) <= 2 + 1 + 1 + 1
    assert len({(ours, theirs) for _, ours, _, theirs in seen[20:]}) == 1


def test_slots_of_batches_kept_for_a_while_are_given_back() -> None:
    with one_worker(counting(200), prefetch=2) as pool:
        kept = [receive(pool.workers[0])[0] for _ in range(60)]
        assert mapped_slots() >= 60
        kept.clear()
        for _ in range(20):
            receive(pool.workers[0])
        assert mapped_slots() <= 8


def test_what_a_forked_process_may_still_read_is_not_written_over() -> None:
    with one_worker(counting(60, 100_000)) as pool:
        (worker,) = pool.workers
        for number in range(20):
            batch, note = receive(worker)
            go, may_go = os.pipe()
            pid = os.fork()
            if not pid:
                os.read(go, 1)
                os._exit(0 if bool((batch["x"] == note).all()) else 1)
            del batch
            for _ in range(2):
                assert receive(worker)[1] == 3 * number + 1 + _
            os.write(may_go, b".")
            assert os.waitpid(pid, 0)[1] == 0
            os.close(go)
            os.close(may_go)
        assert mapped_slots() <= 8, "such slots are given back"


def test_batches_of_changing_size_stay_whole() -> None:
    def job() -> Iterator[tuple[Any, int]]:
        for number in range(60):
            yield torch.full((1 + number * 7919 % 90_000,), number), number

    with one_worker(job, prefetch=3) as pool:
        kept = [receive(pool.workers[0]) for _ in range(60)]
        assert all((tensor == number).all() for tensor, number in kept)


# --- errors ---


def test_an_error_comes_after_the_batches_with_its_type_and_its_place() -> None:
    def job() -> Iterator[tuple[int, int]]:
        yield from ((number, number) for number in range(3))
        raise KeyError("no such field")

    with check_leaks(), one_worker(job, prefetch=5) as pool:
        notes, error = prefix_until(pool.workers[0], KeyError)
        assert notes == [0, 1, 2]
        assert error.args == ("no such field",)
        assert f"in worker 0 (pid {pool.workers[0].pid})" in error.__notes__[0]
        assert 'raise KeyError("no such field")' in error.__notes__[0]
        with pytest.raises(KeyError):  # still no end
            receive(pool.workers[0])
        del error


def test_an_error_keeps_its_attributes_and_notes() -> None:
    def job() -> Iterator[tuple[int, int]]:
        error = FormatError("cut", shard="a.tar", offset=512)
        error.add_note("while reading a.tar")
        raise error
        yield

    with one_worker(job) as pool:
        _, error = prefix_until(pool.workers[0], FormatError)
    assert (error.shard, error.offset) == ("a.tar", 512)
    assert error.__notes__[0] == "while reading a.tar"


def test_an_error_of_a_local_class_is_caught_by_it() -> None:
    class LocalError(ValueError):
        pass

    def job() -> Iterator[tuple[int, int]]:
        raise LocalError("here")
        yield

    with one_worker(job) as pool, pytest.raises(LocalError, match="here"):
        receive(pool.workers[0])


class TwoArgumentsError(Exception):
    def __init__(self, left: int, right: int) -> None:
        super().__init__(f"{left} is not {right}")


class OnlyInTheWorkerError(Exception):
    """Refuses to be rebuilt in the process named."""

    def __reduce__(self) -> Any:
        return _rebuild_unless, (int(os.environ["PARENT_OF_THE_TEST"]), str(self))


def _rebuild_unless(pid: int, text: str) -> OnlyInTheWorkerError:
    if os.getpid() == pid:
        raise ImportError("not here")
    return OnlyInTheWorkerError(text)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: OnlyInTheWorkerError("not in the parent"),
            "test_worker.OnlyInTheWorkerError: not in the parent",
        ),
        (lambda: StopIteration("5 samples"), "5 samples"),
        (lambda: SystemExit(3), "SystemExit: 3"),
        (lambda: KeyboardInterrupt("own"), "own"),
        (lambda: asyncio.CancelledError("own"), "own"),
        (lambda: EndOfChannel("leaked"), "leaked"),
        (lambda: ChannelClosed("leaked"), "leaked"),
    ],
)
def test_an_error_that_cannot_be_raised_here_is_a_runtime_error(
    make: Callable[[], BaseException], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARENT_OF_THE_TEST", str(os.getpid()))

    def job() -> Any:
        raise make()

    with one_worker(job) as pool:
        with pytest.raises(RuntimeError, match=text) as caught:
            receive(pool.workers[0])
        assert type(caught.value) is RuntimeError
        assert "in worker 0" in caught.value.__notes__[0] and "raise make()" in caught.value.__notes__[0]


def test_a_batch_that_cannot_be_pickled_is_an_error_and_no_hang() -> None:
    def job() -> Iterator[tuple[Any, int]]:
        yield 1, 1
        yield {"lock": threading.Lock()}, 2

    with one_worker(job) as pool:
        assert receive(pool.workers[0]) == (1, 1)
        with pytest.raises(TypeError, match="lock") as caught:
            receive(pool.workers[0])
    assert "while pickling a batch of type builtins.dict" in "".join(caught.value.__notes__)


class FailsToLoad:
    def __reduce__(self) -> Any:
        return int, ("no number",)


def test_a_batch_that_cannot_be_rebuilt_is_an_error_and_the_next_one_comes() -> None:
    def job() -> Iterator[tuple[Any, int]]:
        yield FailsToLoad(), 1
        yield 2, 2

    with one_worker(job, prefetch=1) as pool:
        with pytest.raises(ValueError, match="no number") as caught:
            receive(pool.workers[0])
        assert "rebuilding a batch from worker 0" in caught.value.__notes__[0]
        assert receive(pool.workers[0]) == (2, 2)


# --- death ---


def test_a_killed_worker_is_seen_at_once_after_what_it_sent() -> None:
    def job() -> Iterator[tuple[int, int]]:
        yield from ((number, number) for number in range(4))
        time.sleep(60)
        yield 4, 4

    with check_leaks(), one_worker(job, prefetch=8) as pool:
        assert receive(pool.workers[0]) == (0, 0)
        pid = pool.workers[0].pid
        assert pid is not None
        assert receive(pool.workers[0]) == (1, 1) and receive(pool.workers[0]) == (2, 2)
        with pytest.raises(TimeoutError):  # the fourth lies in the socket, once this has passed
            receive(pool.workers[0], 0.2) and receive(pool.workers[0], 0.2)
        os.kill(pid, signal.SIGKILL)
        began = time.monotonic()
        notes, error = prefix_until(pool.workers[0], WorkerDiedError)
        assert time.monotonic() - began < AT_ONCE_S
        assert notes == []
        assert (error.worker, error.pid, error.exitcode) == (0, pid, -signal.SIGKILL)
        assert "SIGKILL" in str(error) and "out-of-memory killer" in str(error)
        with pytest.raises(WorkerDiedError):  # never an end
            receive(pool.workers[0])
        del error


def test_batches_sent_before_the_death_are_delivered(tmp_path: Path) -> None:
    def job() -> Iterator[tuple[Any, int]]:
        for number in range(5):
            yield torch.full((30_000,), number), number
        os._exit(7)

    with one_worker(job, prefetch=8) as pool:
        time.sleep(0.5)  # it has died by now, and nothing was received
        kept = [receive(pool.workers[0]) for _ in range(5)]
        assert all((tensor == number).all() for tensor, number in kept)
        _, error = prefix_until(pool.workers[0], WorkerDiedError)
    assert error.exitcode == 7 and "exit status 7" in str(error)


@pytest.mark.parametrize("fails", [False, True])
def test_an_end_is_told_though_the_worker_left_grants_unread(fails: bool, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)

    def job() -> Iterator[tuple[int, int]]:
        yield 0, 0
        gate.read_bytes()
        if fails:
            raise KeyError("ours")

    with one_worker(job) as pool:
        with gate.open("wb"):  # the worker looks for grants no more
            assert receive(pool.workers[0]) == (0, 0)
        wait_ended([pool.workers[0].lifeline], 5)
        for _ in range(2):
            with pytest.raises(KeyError if fails else EndOfChannel):
                receive(pool.workers[0], 5)


def test_a_blocked_receiver_is_woken_by_the_death() -> None:
    def job() -> Iterator[tuple[int, int]]:
        yield os.getpid(), 0
        time.sleep(60)

    with one_worker(job) as pool:
        pid, _ = receive(pool.workers[0])
        timer = threading.Timer(0.3, os.kill, (pid, signal.SIGTERM))
        timer.start()
        with pytest.raises(WorkerDiedError, match="SIGTERM"):
            receive(pool.workers[0])
        timer.join()


async def test_a_waiting_coroutine_is_woken_by_the_death() -> None:
    def job() -> Iterator[tuple[int, int]]:
        yield os.getpid(), 0
        time.sleep(60)

    with one_worker(job) as pool:
        pid, _ = await receive_async(pool.workers[0])
        asyncio.get_running_loop().call_later(0.2, os.kill, pid, signal.SIGKILL)
        async with asyncio.timeout(5):
            with pytest.raises(WorkerDiedError):
                await receive_async(pool.workers[0])


def test_a_crash_in_native_code_is_named() -> None:
    def job() -> Iterator[tuple[int, int]]:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        yield 1, 1
        ctypes.string_at(0)

    with one_worker(job, prefetch=1) as pool:
        assert receive(pool.workers[0]) == (1, 1)
        with pytest.raises(WorkerDiedError, match="SIGSEGV"):
            receive(pool.workers[0])


def test_a_quiet_exit_is_not_an_end() -> None:
    def job() -> Iterator[tuple[int, int]]:
        yield 1, 1
        os._exit(0)

    with one_worker(job) as pool:
        assert receive(pool.workers[0]) == (1, 1)
        with pytest.raises(WorkerDiedError, match="exit status 0"):
            receive(pool.workers[0])


def test_a_child_that_the_job_left_behind_does_not_hide_its_death() -> None:
    def job() -> Iterator[tuple[int, int]]:
        child = os.fork()
        if child == 0:
            time.sleep(30)
            os._exit(0)
        yield child, 0
        os._exit(1)

    with one_worker(job, prefetch=1) as pool:
        child, _ = receive(pool.workers[0])
        try:
            with pytest.raises(WorkerDiedError):
                receive(pool.workers[0], timeout_s=5)
        finally:
            os.kill(child, signal.SIGKILL)


def test_an_error_leaves_no_cycle_behind() -> None:
    def job() -> Iterator[tuple[int, int]]:
        raise KeyError("a")
        yield

    gc.collect()
    gc.disable()
    try:
        pool = one_worker(job)
        pool.start()
        with suppress(KeyError):
            receive(pool.workers[0])
        pool.close()
        gone = weakref.ref(pool)
        del pool
        assert gone() is None
    finally:
        gc.enable()


def test_batches_take_no_new_memory_after_the_first_ones() -> None:
    """No shared memory, no descriptor, and no page: of a worker and of its parent."""

    def job() -> Iterator[tuple[Any, tuple[int, int]]]:
        images = [np.full((100, 1000), value, np.uint8) for value in range(8)]

        def collate() -> dict[str, Any]:
            with borrowing():
                return {"x": stacked(images), "y": np.arange(8)}

        for _ in range(60):
            faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            yield collate(), (faults, len(os.listdir("/proc/self/fd")))

    with one_worker(job) as pool:
        (worker,) = pool.workers
        told, faults, slots = [], [], set()
        for number in range(60):
            batch, note = receive(worker)
            assert int(batch["x"].sum()) == 28 * 100_000
            told.append(note)
            faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
            if number >= 20:
                slots.add(batch["x"].__array_interface__["data"][0])
            del batch
    pages_a_batch = 800_000 // mmap.PAGESIZE
    (first_made, first_descriptors), (last_made, last_descriptors) = told[20], told[-1]
    assert last_made - first_made < pages_a_batch  # of 40 batches together
    assert faults[-1] - faults[20] < pages_a_batch
    assert first_descriptors == last_descriptors
    assert len(slots) <= 3
