"""A program ends soon after its last line, with a message, whatever of the user's or the system's hangs."""

from __future__ import annotations

from pathlib import Path

import pytest

from .harness import python

pytestmark = pytest.mark.usefixtures("platform")

# What is registered first is called last, behind all finalizers.
_SCRIPT = """
import atexit, time
ended_s = 0.0
atexit.register(lambda: print(f"{time.monotonic() - ended_s:.2f}", flush=True))

import os, signal, sys, threading, warnings
import asyncloader as al

warnings.simplefilter("always")
numbers = al.from_iterable(lambda topology: topology.split([{"number": n} for n in range(10_000)]))

def late(loader):
    batches = None
    while batches is None:
        try:
            batches = iter(loader)
        except TimeoutError:  # on a busy machine workers may not start in time
            pass
    try:
        for batch in batches:
            pass
    except TimeoutError:
        print("late", flush=True)
    return batches
"""

_ENDING = """
ended_s = time.monotonic()
"""


def _run(program: str, folder: Path) -> str:
    """Run it, and return what it says when it ends."""
    script = folder / "train.py"
    script.write_text(_SCRIPT + program + _ENDING)
    run = python(script)
    assert run.returncode == 0, run.stderr
    *said, took_s = run.stdout.splitlines()
    assert said == ["late"], run.stderr
    assert float(took_s) < 2
    return run.stderr


@pytest.mark.parametrize("operator", ["map(stuck)", "map(stuck, concurrency=2)"])
def test_while_a_function_hangs_in_a_thread(operator: str, tmp_path: Path) -> None:
    program = f"""
def stuck(sample):
    threading.Event().wait()

batches = late(al.DataLoader(numbers.{operator}, timeout=0.3))
"""
    told = _run(program, tmp_path)
    assert "RuntimeWarning" in told and "in stuck" in told


def test_while_a_file_system_hangs(tmp_path: Path) -> None:
    """A named pipe serves as one: nothing is ever written to it."""
    program = f"""
os.mkfifo({str(tmp_path / "pipe")!r})
pipe = os.open({str(tmp_path / "pipe")!r}, os.O_RDWR)

def preadv(descriptor, buffers, offset, flags=0):
    if flags:
        raise BlockingIOError
    return os.readv(pipe, buffers)

os.preadv = preadv
with open({str(tmp_path / "shard.jsonl")!r}, "w") as shard:
    shard.write("{{}}\\n" * 1000)
batches = late(al.DataLoader(al.from_urls([{str(tmp_path / "shard.jsonl")!r}]), timeout=0.3))
"""
    told = _run(program, tmp_path)
    assert "RuntimeWarning" in told and "in preadv" in told


def test_while_the_process_that_workers_come_from_is_stopped(tmp_path: Path) -> None:
    program = """
def stopping(sample):
    if sample["number"] == 200:
        os.kill(os.getppid(), signal.SIGSTOP)
        threading.Event().wait()
    return sample

loader = al.DataLoader(numbers.map(stopping), 4, num_workers=1, timeout=2)
batches = late(loader)
"""
    told = _run(program, tmp_path)
    assert "the process that workers come from" in told and "it was killed" in told
