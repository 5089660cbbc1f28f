"""The leak check: each kind of leak is found and named, and what is clean passes."""

from __future__ import annotations

import asyncio
import gc
import mmap
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import shared_memory
from pathlib import Path

import pytest
from waiting import AT_ONCE_S

from asyncloader.testing import check_leaks

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

_SLEEPER = [sys.executable, "-c", "import sys; sys.stdin.read()"]


@contextmanager
def finds(pattern: str) -> Iterator[None]:
    with pytest.raises(AssertionError, match=pattern), check_leaks(within_s=0.05):
        yield


def test_a_clean_block_passes_quickly() -> None:
    begun = time.monotonic()
    with check_leaks(within_s=30):
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()
        subprocess.run([sys.executable, "-c", ""], check=True)
        one, other = socket.socketpair()
        one.close()
        other.close()
    assert time.monotonic() - begun < 10


def test_a_leaked_thread_is_named() -> None:
    release = threading.Event()
    with finds("thread 'left-over'"):
        thread = threading.Thread(target=release.wait, name="left-over")
        thread.start()
    release.set()
    thread.join()


def test_what_vanishes_within_the_time_is_no_leak() -> None:
    with check_leaks(within_s=60):
        threading.Timer(0.1, int).start()
        begun = time.monotonic()
    assert time.monotonic() - begun < AT_ONCE_S


def test_a_time_that_is_up_is_not_waited_for_longer() -> None:
    release = threading.Event()
    begun = time.monotonic()
    with pytest.raises(AssertionError, match=r"0\.1 s after"), check_leaks(within_s=0.1):
        threading.Thread(target=release.wait).start()
    assert 0.1 <= time.monotonic() - begun < AT_ONCE_S
    release.set()


async def test_a_leaked_task_is_named_with_its_coroutine() -> None:
    with pytest.raises(AssertionError, match=r"task 'left-over'.*sleep"):
        async with check_leaks(within_s=0.05):
            task = asyncio.create_task(asyncio.sleep(60), name="left-over")
    with pytest.raises(AssertionError, match="task"), check_leaks(within_s=0):
        other = asyncio.create_task(asyncio.sleep(60))
    task.cancel()
    other.cancel()


async def test_tasks_can_finish_while_an_async_check_waits() -> None:
    async with check_leaks(within_s=60):
        tasks = [asyncio.create_task(asyncio.sleep(0.05)) for _ in range(3)]
        begun = time.monotonic()
    assert all(task.done() for task in tasks) and time.monotonic() - begun < AT_ONCE_S


@linux_only
def test_what_uvloop_keeps_for_itself_is_no_leak() -> None:
    uvloop = pytest.importorskip("uvloop")

    async def connect_once(address: tuple[str, int]) -> None:
        async with check_leaks(within_s=0.5):
            _, writer = await asyncio.open_connection(*address)
            writer.close()
            await writer.wait_closed()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        uvloop.run(connect_once(listener.getsockname()))


@linux_only
def test_leaked_descriptors_are_named_by_kind() -> None:
    opened: list[int] = []

    def leak(make: Callable[[], tuple[int, ...]], kind: str) -> None:
        with finds(rf"file descriptor \d+ \({kind}\)"):
            opened.extend(make())

    leak(os.pipe, "pipe")
    leak(lambda: (socket.socket().detach(),), "socket")
    leak(lambda: (os.open(__file__, os.O_RDONLY),), "file")
    leak(lambda: (os.memfd_create("slot"),), "memfd")
    leak(lambda: (os.pidfd_open(os.getpid()),), "pidfd")
    for fd in opened:
        os.close(fd)


@linux_only
def test_a_reopened_file_is_no_leak(tmp_path: Path) -> None:
    before = open(tmp_path / "one.log", "w")  # noqa: SIM115 - closed inside the checked block
    with check_leaks():
        before.close()
        after = open(tmp_path / "two.log", "w")  # noqa: SIM115 - outlives the block, as a log does
    after.close()


def _mapped_memfd() -> mmap.mmap:
    fd = os.memfd_create("slot")
    try:
        os.ftruncate(fd, 4096)
        return mmap.mmap(fd, 4096)
    finally:
        os.close(fd)


@linux_only
def test_a_mapping_is_found_though_its_descriptor_was_closed() -> None:
    with finds("shared mapping of inode .*/memfd:slot"):
        mapped = _mapped_memfd()
    mapped.close()


@linux_only
def test_what_only_a_garbage_cycle_holds_is_no_leak() -> None:
    gc.disable()
    try:
        with check_leaks():
            held: list[object] = [_mapped_memfd()]
            held.append(held)
            del held
    finally:
        gc.enable()


@linux_only
def test_named_shared_memory_is_found_and_the_resource_tracker_is_not() -> None:
    with finds("shared memory /dev/shm/"):
        segment = shared_memory.SharedMemory(create=True, size=4096)
    segment.close()
    segment.unlink()
    with check_leaks():
        segment = shared_memory.SharedMemory(create=True, size=4096)
        segment.close()
        segment.unlink()


@linux_only
def test_named_shared_memory_that_a_child_holds_is_found() -> None:
    script = (
        "from multiprocessing.shared_memory import SharedMemory\n"
        "held = SharedMemory(create=True, size=4096)\nprint(flush=True)\ninput()\nheld.close()\nheld.unlink()"
    )
    with finds(r"shared memory /dev/shm/"):
        child = subprocess.Popen(
            [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None and child.stdout.readline() == "\n"
    child.communicate("\n", timeout=60)
    assert child.returncode == 0


@linux_only
def test_what_another_program_puts_into_shared_memory_is_none_of_the_blocks(tmp_path: Path) -> None:
    # A process that is no child of this one: its parent has ended.
    name = f"/dev/shm/sem.asyncloader-test-{os.getpid()}"
    go, done = tmp_path / "go", tmp_path / "done"
    os.mkfifo(go), os.mkfifo(done)
    script = f"open({str(go)!r}).read(); open({name!r}, 'x').close(); open({str(done)!r}, 'w').close()"
    subprocess.run(["sh", "-c", '"$@" &', "sh", sys.executable, "-c", script], check=True)
    try:
        with check_leaks():
            go.open("w").close()
            done.open().close()
            assert Path(name).exists()
    finally:
        Path(name).unlink()


@linux_only
def test_a_child_is_found_running_and_as_a_zombie() -> None:
    with finds(r"child process \d+ \(running\): .*sys\.stdin\.read"):
        child = subprocess.Popen(_SLEEPER, stdin=subprocess.PIPE)
    assert child.stdin is not None
    with finds(r"child process \d+ \(zombie\)"):
        zombie = subprocess.Popen([sys.executable, "-c", ""])
        os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
    zombie.wait()
    child.stdin.close()
    child.wait()


_PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], stdout=subprocess.DEVNULL)
print(child.pid, flush=True)
sys.stdin.read()
"""


@linux_only
@pytest.mark.parametrize("orphaned", [False, True])
def test_a_grandchild_is_found_also_when_its_parent_was_killed(orphaned: bool) -> None:
    with finds(r"child process \d+ \(running\): .*time\.sleep"):
        parent = subprocess.Popen(
            [sys.executable, "-c", _PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert parent.stdin is not None and parent.stdout is not None
        grandchild = int(parent.stdout.readline())
        if orphaned:
            parent.kill()
            parent.communicate()
    os.kill(grandchild, signal.SIGKILL)
    parent.kill()
    parent.communicate()


@linux_only
def test_children_that_were_there_before_may_stay() -> None:
    child = subprocess.Popen(_SLEEPER, stdin=subprocess.PIPE)
    with check_leaks():
        worker = multiprocessing.get_context("spawn").Process(target=int)
        worker.start()
        worker.join()
        worker.close()
    child.communicate()
    assert not any(name.startswith("ASYNCLOADER_LEAK_CHECK") for name in os.environ)


def test_allow_lets_things_stay_by_description() -> None:
    release = threading.Event()
    with check_leaks(within_s=0, allow=lambda description: "pool-1" in description):
        thread = threading.Thread(target=release.wait, name="pool-1")
        thread.start()
    release.set()
    thread.join()


def test_all_that_is_left_is_listed_at_once() -> None:
    release = threading.Event()
    with finds("'one'[^@]*'two'|'two'[^@]*'one'"):
        threads = [threading.Thread(target=release.wait, name=name) for name in ("one", "two")]
        for thread in threads:
            thread.start()
    release.set()
    for thread in threads:
        thread.join()


def test_an_error_of_the_block_is_not_replaced_by_a_leak() -> None:
    release = threading.Event()
    with pytest.raises(KeyError), check_leaks(within_s=0):
        threading.Thread(target=release.wait).start()
        raise KeyError
    release.set()


def test_checks_can_be_nested() -> None:
    release = threading.Event()
    with finds("'outer'"):
        with check_leaks():
            pass
        thread = threading.Thread(target=release.wait, name="outer")
        thread.start()
        with check_leaks():
            pass
    release.set()
    thread.join()
