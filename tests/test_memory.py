"""What the C allocator of the user's process is told, and what it is not."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has arenas")

PROGRAM = """
import ctypes, os, time
import numpy as np
import asyncloader as al

def grow(number):
    block = bytes(2_000_000)
    time.sleep(0.005)  # so that every thread gets some
    return block

def grow_batch(columns):
    return {**columns, "block": np.frombuffer(grow(0), np.uint8).reshape(1, -1)}

concurrency, dataset = int(os.environ["THREADS"]), al.from_iterable([{"n": n} for n in range(200)])
if os.environ["OP"] == "map":
    dataset = dataset.map(grow, concurrency=concurrency)
else:
    dataset = dataset.map_batches(grow_batch, batch_size=1, concurrency=concurrency)
loader = al.DataLoader(dataset)
assert sum(1 for _ in loader) == 200
libc = ctypes.CDLL(None)
libc.fdopen.restype = ctypes.c_void_p
reading, writing = os.pipe()
file = ctypes.c_void_p(libc.fdopen(writing, b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
print(os.fdopen(reading).read().count("<heap nr="))
"""


def arenas(threads: int, op: str = "map", **environment: str) -> int:
    """How many arenas a process has after a pass with so many threads."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("MALLOC", "GLIBC"))
    }
    environment = {**inherited, "THREADS": str(threads), "OP": op, **environment}
    run = [sys.executable, "-c", PROGRAM]
    printed = subprocess.run(run, env=environment, check=True, capture_output=True, text=True, timeout=120)
    return int(printed.stdout)


@pytest.mark.parametrize("op", ["map", "map_batches"])
def test_threads_that_make_samples_share_an_arena_for_each_processor(op: str) -> None:
    processors = len(os.sched_getaffinity(0))
    assert arenas(processors + 6, op) <= max(2, processors)


@pytest.mark.parametrize(
    "setting", [{"MALLOC_ARENA_MAX": "5"}, {"GLIBC_TUNABLES": "glibc.malloc.arena_max=5"}]
)
def test_the_users_own_number_of_arenas_stays(setting: dict[str, str]) -> None:
    assert arenas(threads=12, **setting) == 5


def test_without_such_threads_nothing_is_said_of_arenas() -> None:
    assert "MALLOC_ARENA_MAX" in os.environ or arenas(threads=1) > 2


def test_the_allocator_is_taught_without_touching_pages() -> None:
    """Which took 44 ms of the time to the first batch."""
    program = """
import resource
import tracemalloc
from asyncloader.flow.process import keep_freed_pages

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def touch():
    before = faults()
    bytearray(4 << 20)
    return faults() - before

fresh, before = touch(), faults()
keep_freed_pages()
taught = faults() - before
touch()
again = touch()
tracemalloc.start()
keep_freed_pages()
print(fresh, taught, again, tracemalloc.get_traced_memory()[1])
"""
    run = [sys.executable, "-c", program]
    fresh, taught, again, taken_by_the_next_pass = map(
        int, subprocess.run(run, check=True, capture_output=True, timeout=60).stdout.split()
    )
    assert fresh > 900
    assert taught < 300
    assert again < 100
    assert taken_by_the_next_pass < 1 << 20
