"""However a loop over workers is left, they are gone soon, also while inside a long ``__getitem__``."""

from __future__ import annotations

import json
import os
import textwrap
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from programs import Program, Programs

# Workers have a second to end by themselves; torch would wait five for each of the two. That a busy machine
# takes long to end an interpreter is no failure.
_SOON_S = 9.0

_COMMON = """
    import asyncio, gc, json, os, signal, sys, threading, time
    import asyncloader as al

    class Stuck:
        def __len__(self):
            return 8
        def __getitem__(self, index):
            if index > 1:
                time.sleep(60)
            return os.getpid()

    def is_alive(pid):
        try:
            with open(f"/proc/{pid}/stat") as file:
                return file.read().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False

    def new_loader(method, persistent):
        return al.DataLoader(
            Stuck(), None, num_workers=2, multiprocessing_context=method,
            persistent_workers=persistent == "persistent", collate_fn=lambda pid: pid,
        )
"""

_WAYS = """
    def leave_by_break(loader, pids):
        for pid in loader:
            pids.append(pid)
            if len(pids) == 2:
                break

    def leave_by_exception(loader, pids):
        try:
            for pid in loader:
                pids.append(pid)
                if len(pids) == 2:
                    raise LookupError
        except LookupError:
            pass

    def leave_by_letting_go(loader, pids):
        batches = iter(loader)
        pids += [next(batches), next(batches)]

    def leave_by_collection(loader, pids):
        cycle = [iter(loader)]
        cycle.append(cycle)
        pids += [next(cycle[0]), next(cycle[0])]
        del cycle
        gc.collect()

    async def break_async(loader, pids):
        async for pid in loader:
            pids.append(pid)
            if len(pids) == 2:
                break

    async def raise_async(loader, pids):
        async for pid in loader:
            pids.append(pid)
            if len(pids) == 2:
                raise LookupError

    async def wait_async(loader, pids):
        async for pid in loader:
            pids.append(pid)
            if len(pids) == 2:
                asyncio.get_running_loop().call_later(0.5, asyncio.current_task().cancel)

    def leave_async_by_break(loader, pids):
        asyncio.run(break_async(loader, pids))

    def leave_async_by_exception(loader, pids):
        try:
            asyncio.run(raise_async(loader, pids))
        except LookupError:
            pass

    def leave_async_by_cancellation(loader, pids):
        try:
            asyncio.run(wait_async(loader, pids))
        except asyncio.CancelledError as error:
            held.append(error)  # what a program keeps of an error must not keep processes

    def leave_async_by_cancellation_and_stay(loader, pids):
        async def main():
            task = asyncio.ensure_future(wait_async(loader, pids))
            await asyncio.wait([task])
            del task
            while any(map(is_alive, pids)):
                before = time.monotonic()
                await asyncio.sleep(0.02)
                assert time.monotonic() - before < 10, "the event loop waits for the workers"
        asyncio.run(main())

    def leave_async_by_aclose(loader, pids):
        async def main():
            batches = aiter(loader)
            pids.extend([await anext(batches), await anext(batches)])
            with_third = asyncio.ensure_future(anext(batches))
            await asyncio.sleep(0.5)
            await batches.aclose()
            assert persistent or not any(map(is_alive, pids))
            with_third.cancel()
        asyncio.run(main())

    held = []
    method, persistent = sys.argv[1], sys.argv[2] == "persistent"
    names = sys.argv[3:] or [name for name in globals() if name.startswith("leave_")]

    def main():
        took = {}
        for name in names:
            loader, pids = new_loader(method, sys.argv[2]), []
            globals()[name](loader, pids)
            assert len(set(pids)) == 2 and os.getpid() not in pids
            began = time.monotonic()
            del loader
            if persistent:
                gc.collect()  # asyncio's tasks are in cycles with their errors, and so is the loader then
            while any(map(is_alive, pids)):
                time.sleep(0.02)
            took[name] = time.monotonic() - began
        time.sleep(0.3)
        threads = [thread.name for thread in threading.enumerate() if thread.name != "MainThread"]
        print(json.dumps([took, threads]))

    if __name__ == "__main__":
        main()
"""


def started(programs: Programs, folder: Path, text: str, *arguments: str) -> AbstractContextManager[Program]:
    script = folder / "script.py"
    script.write_text(textwrap.dedent(_COMMON) + textwrap.dedent(text))
    return programs.started(script, *arguments, strict=False)


@pytest.mark.parametrize(
    "arguments",
    [
        ("fork", "not persistent"),
        ("fork", "persistent"),
        ("spawn", "not persistent", "leave_by_break", "leave_async_by_cancellation"),
        ("forkserver", "persistent", "leave_async_by_cancellation_and_stay"),
    ],
    ids=" ".join,
)
def test_workers_are_gone_soon_after_a_loop_was_left(
    tmp_path: Path, programs: Programs, arguments: tuple[str, ...]
) -> None:
    with started(programs, tmp_path, _WAYS, *arguments) as program:
        out, complaints = program.communicate(timeout=120)
    assert complaints == ""
    took, threads = json.loads(out)
    assert {name: seconds for name, seconds in took.items() if seconds > _SOON_S} == {}
    assert threads == []


_ENDS = """
    def for_ever(door, loader):
        pids = []
        def told(pid):
            pids.append(pid)
            if len(pids) == 2:
                print(json.dumps(pids), flush=True)
                if way == "exit":
                    sys.exit(5)
                if way == "end":
                    return True
                if way == "interrupt":
                    threading.Timer(0.7, os.kill, (os.getpid(), signal.SIGINT)).start()
        async def wait():
            async for pid in loader:
                if told(pid):
                    kept.append(loader)
                    return
        if door == "async":
            asyncio.run(wait())
        else:
            kept.append(iter(loader))
            for pid in kept[0]:
                if told(pid):
                    return

    kept = []
    door, way, method, persistent = sys.argv[1:]
    if __name__ == "__main__":
        for_ever(door, new_loader(method, persistent))
"""


# One door each, and the other in the slow tests; what an interrupt does is asyncio's or not: it has both.
@pytest.mark.parametrize(
    ("door", "way", "method", "persistent"),
    [
        ("sync", "exit", "fork", "no"),
        ("async", "end", "fork", "persistent"),
        ("sync", "interrupt", "fork", "persistent"),
        ("async", "interrupt", "spawn", "no"),
        pytest.param("async", "exit", "fork", "no", marks=pytest.mark.slow),
        pytest.param("sync", "end", "fork", "persistent", marks=pytest.mark.slow),
        pytest.param("async", "interrupt", "fork", "persistent", marks=pytest.mark.slow),
        pytest.param("sync", "interrupt", "spawn", "no", marks=pytest.mark.slow),
    ],
)
def test_the_end_of_the_process_is_the_end_of_its_workers(
    tmp_path: Path, programs: Programs, door: str, way: str, method: str, persistent: str
) -> None:
    with started(programs, tmp_path, _ENDS, door, way, method, persistent) as program:
        pids = json.loads(program.read_line())
        began = time.monotonic()
        _, complaints = program.communicate(timeout=120)
    assert time.monotonic() - began < _SOON_S
    if way == "interrupt":
        assert program.returncode == -2
        assert complaints.rstrip().endswith("KeyboardInterrupt")
        assert complaints.count("Traceback") <= 2, "asyncio's cancellation, and the interrupt"
    else:
        assert (program.returncode, complaints) == (5 if way == "exit" else 0, "")
    while any(os.path.exists(f"/proc/{pid}") for pid in pids):
        assert time.monotonic() - began < _SOON_S
        time.sleep(0.05)
