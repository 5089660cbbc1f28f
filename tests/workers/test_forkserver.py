"""The fork server starts clean, serves whoever asks, and goes with its process, however that goes."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from programs import Program, Programs
from waiting import AT_ONCE_S

from asyncloader.errors import WorkerDiedError
from asyncloader.testing import check_leaks
from asyncloader.workers import forkserver
from asyncloader.workers.forkserver import ForkServer
from asyncloader.workers.link import socketpair

from .processes import Watch, finish, start_script
from .receiving import RECEIVE, pool_of, receive

pytestmark = pytest.mark.usefixtures("platform")


def answers() -> Iterator[tuple[int, int]]:
    yield 42, os.getpid()


SCRIPT = (
    RECEIVE
    + """
import itertools, os, time
import numpy as np
from asyncloader.workers.forkserver import ForkServer
from asyncloader.workers.pool import WorkerPool

print("main runs", flush=True)

class Sample:
    def __init__(self, number):
        self.pixels = np.full(20_000, number)

def count(first):
    for number in itertools.count(first):
        yield Sample(number), os.getpid()

pool = pool_of([lambda: count(0), lambda: count(100)], prefetch=2)
pool.start()
first = [receive(worker) for worker in pool.workers]
print(ForkServer.shared().pid, *[pid for _, pid in first], flush=True)
"""
)


@pytest.mark.parametrize("way", ["stdin", "file"])
def test_a_script_without_a_main_guard_works(way: str, tmp_path: Path) -> None:
    ending = """
second = [receive(worker)[0] for worker in pool.workers]
assert all(isinstance(sample, Sample) for sample in second)
print([int(sample.pixels[-1]) for sample in second])
"""
    script = start_script(SCRIPT + ending, by_name=tmp_path / "train.py" if way == "file" else None)
    status, output, errors = finish(script)
    assert (status, errors) == (0, "")
    assert output.count("main runs") == 1
    assert output.splitlines()[-1] == "[1, 101]"


Start = Callable[[str], AbstractContextManager[Program]]


@pytest.fixture
def start(programs: Programs, tmp_path: Path) -> Start:
    """Start a script in a session of its own."""

    def start(text: str) -> AbstractContextManager[Program]:
        script = tmp_path / "train.py"
        script.write_text(text)
        return programs.started(script, new_session=True, strict=False)

    return start


def pids_of(line: str) -> list[int]:
    return [int(word) for word in line.split()]


def test_a_killed_parent_takes_all_with_it_though_its_child_lives(start: Start) -> None:
    ending = """
child = os.fork()
if child == 0:
    time.sleep(60)
print(child, flush=True)
time.sleep(60)
"""
    with start(SCRIPT + ending) as script:
        assert script.read_line() == "main runs\n"
        with Watch(pids_of(script.read_line())) as watch:
            (child,) = pids_of(script.read_line())
            script.kill()
            assert watch.left_after(1) == set()
            os.kill(child, signal.SIGKILL)


def test_ctrl_c_reaches_the_parent_alone(start: Start) -> None:
    ending = """
try:
    print("waiting", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    print([int(receive(worker)[0].pixels[0]) for worker in pool.workers for _ in range(5)][-1], flush=True)
    raise SystemExit(3)
"""
    with start(SCRIPT + ending) as script:
        assert script.read_line() == "main runs\n"
        with Watch(pids_of(script.read_line())) as watch:
            assert script.read_line() == "waiting\n"
            os.killpg(script.pid, signal.SIGINT)
            assert (*script.communicate(), script.returncode) == ("105\n", "", 3)
            assert watch.left_after(1) == set()


def test_ctrl_c_while_the_server_starts_does_not_stop_it() -> None:
    text = """
import os, signal
from asyncloader.workers.forkserver import ForkServer
server = ForkServer.shared()
try:
    os.killpg(0, signal.SIGINT)
    server.wait_ready()
except KeyboardInterrupt:
    server.wait_ready()
    print("ready")
"""
    assert finish(start_script(text)) == (0, "ready\n", "")


@pytest.mark.parametrize("ending", ["1 / 0", "os._exit(6)"])
def test_a_script_may_end_as_it_likes(ending: str, start: Start) -> None:
    with start(SCRIPT + ending) as script:
        assert script.read_line() == "main runs\n"
        with Watch(pids_of(script.read_line())) as watch:
            _, errors = script.communicate()
            assert watch.left_after(1) == set()
    told = {"1 / 0": (1, ["ZeroDivisionError: division by zero"]), "os._exit(6)": (6, [])}
    assert (script.returncode, errors.splitlines()[-1:]) == told[ending]
    assert errors.count("Traceback") == len(told[ending][1])


def test_the_server_is_shared_while_somebody_holds_it(server: ForkServer) -> None:
    found: list[ForkServer] = []
    threads = [threading.Thread(target=lambda: found.append(ForkServer.shared())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(other is server for other in found)


def test_the_command_that_is_shown_of_the_server_and_its_workers_is_short(server: ForkServer) -> None:
    def job() -> Iterator[tuple[str, None]]:
        yield Path("/proc/self/cmdline").read_text(), None

    with pool_of([job], prefetch=1, server=server) as pool:
        shown, _ = receive(pool.workers[0])
    assert shown == Path(f"/proc/{server.pid}/cmdline").read_text()
    assert len(shown) < len(sys.executable) + 80 and "\n" not in shown


def test_a_server_ends_with_its_last_holder() -> None:
    with check_leaks():
        server = ForkServer()
        server.start()
        server.wait_ready()
        with Watch([server.pid]) as watch:
            del server
            gc.collect()
            assert watch.left_after(0) == set()


def test_a_server_that_is_still_starting_can_be_closed() -> None:
    with check_leaks(within_s=2):
        server = ForkServer()
        server.start()
        began = time.monotonic()
        server.close()
        assert time.monotonic() - began < AT_ONCE_S


def test_a_server_that_is_still_starting_is_killed_though_another_process_holds_its_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As one that another thread has started meanwhile."""
    with check_leaks(within_s=2):
        ours, theirs = socketpair()
        monkeypatch.setattr(forkserver, "socketpair", lambda: (ours, theirs))
        with theirs.dup():
            _started().close()
        assert not caplog.records, "it was waited for"


def test_waiting_for_a_server_that_is_stopped_has_a_bound() -> None:
    with check_leaks():
        server = _started()
        os.kill(server.pid, signal.SIGSTOP)
        try:
            with pytest.raises(TimeoutError):
                server.wait_ready(time.monotonic() + 0.1)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        server.wait_ready()
        server.close()


def test_a_server_that_is_killed_while_it_starts_a_worker_is_a_death() -> None:
    """It is stopped before it can fork, so that it is killed with the request for the worker before it."""
    with check_leaks():
        server = _started()
        server.wait_ready()
        os.kill(server.pid, signal.SIGSTOP)
        killer = threading.Timer(0.2, os.kill, (server.pid, signal.SIGKILL))
        killer.start()
        pool = pool_of([answers], prefetch=1, server=server)
        with pytest.raises(WorkerDiedError, match="was killed while it started one"), pool:
            pytest.fail("there is no worker to receive from")
        killer.join()
        server.close()


def test_what_is_preloaded_is_there_in_the_workers_that_follow(server: ForkServer) -> None:
    def job() -> Iterator[tuple[bool, None]]:
        yield "wave" in sys.modules, None

    server.preload(["wave", "no_such_module_anywhere"])
    server.preload(["wave"])
    with pool_of([job], prefetch=1, server=server) as pool:
        assert receive(pool.workers[0])[0] is True


def test_a_failing_import_is_told_in_the_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cloudpickle.py").write_text("raise ImportError('broken on purpose')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with check_leaks(), pytest.raises(RuntimeError, match="broken on purpose"):
        pool_of([answers], prefetch=1, server=_started()).start()


def test_a_package_that_cannot_be_imported_is_told_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "asyncloader").mkdir()
    (tmp_path / "asyncloader" / "__init__.py").write_text("raise ImportError('another package')\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with check_leaks(), pytest.raises(RuntimeError, match="another package"):
        _started().wait_ready()


def _started() -> ForkServer:
    server = ForkServer()
    server.start()
    return server


def test_a_library_that_starts_threads_at_import_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    (tmp_path / "threaded.py").write_text(thread)
    monkeypatch.syspath_prepend(str(tmp_path))
    server = _started()
    server.preload(["threaded"])
    with check_leaks(), pytest.raises(RuntimeError, match="2 threads"):
        pool_of([answers], prefetch=1, server=server).start()
    server.close()


def test_a_killed_server_takes_its_workers_and_is_replaced(server: ForkServer) -> None:
    with check_leaks():
        own = _started()

        def job() -> Iterator[tuple[int, int]]:
            yield 1, os.getpid()
            threading.Event().wait()

        with pool_of([job], prefetch=1, server=own) as pool:
            _, pid = receive(pool.workers[0])
            with Watch([pid]) as watch:
                os.kill(own.pid, signal.SIGKILL)
                with pytest.raises(WorkerDiedError, match="fork server"):
                    receive(pool.workers[0])
                assert watch.left_after(1) == set()
            with pytest.raises(RuntimeError, match="has ended"):
                pool_of([answers], prefetch=1, server=own).start()
        assert not own.alive
        own.close()


def test_a_forked_process_has_a_server_of_its_own(start: Start) -> None:
    text = (
        RECEIVE
        + """
import os, sys
from asyncloader.workers.forkserver import ForkServer
from asyncloader.workers.pool import WorkerPool

def job():
    for number in range(100):
        yield number, os.getppid()

pool = pool_of([job], prefetch=2)
pool.start()
_, server = receive(pool.workers[0])
child = os.fork()
if child == 0:
    try:
        pool._server.fork(None, b"", None)
    except RuntimeError as error:
        print(error, flush=True)
    with pool_of([job], prefetch=2) as own:
        number, own_server = receive(own.workers[0])
        print(number, own_server != server, ForkServer.shared() is not pool._server, flush=True)
    pool.close()
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
print(receive(pool.workers[0])[0], receive(pool.workers[0])[0])
"""
    )
    with start(text) as script:
        output, errors = script.communicate()
    assert (script.returncode, errors) == (0, "")
    assert output.splitlines()[1:] == ["0 True True", "1 2"]
    assert "belongs to another process" in output.splitlines()[0]


def test_obstore_and_threads_in_the_parent_do_no_harm(server: ForkServer) -> None:
    import obstore
    from obstore.store import MemoryStore

    store = MemoryStore()
    obstore.put(store, "a", b"1")

    def job() -> Iterator[tuple[Any, Any]]:
        own = MemoryStore()
        obstore.put(own, "b", b"2")
        yield bytes(obstore.get(own, "b").bytes()), 0

    with pool_of([job] * 2, prefetch=1) as pool:
        assert [receive(worker)[0] for worker in pool.workers] == [b"2", b"2"]


def test_a_platform_without_fork_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "fork")
    with pytest.raises(RuntimeError, match="need Unix"):
        ForkServer().start()
