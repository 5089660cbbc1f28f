"""After each file of tests the process holds what it held before: a leak is blamed on the file that makes it.

Compared are Python threads, child processes, file descriptors and mappings of shared memory. What fixtures of
a whole session or package open stays until their end, and so counts as there from the start; ``KEEPERS`` are
fixtures of single tests that do the same.
"""

from __future__ import annotations

import gc
import os
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import suppress
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch.distributed import TCPStore
from tqdm import tqdm

__all__ = ["FileLeaks", "first_uses", "leaves_nothing_behind"]

KEEPERS = frozenset({"fork_server", "server"})

#: What stays for good once it was used. Our fork server and descriptors of multiprocessing are found by
#: their own variables, and those of a client of object stores by its threads; ``first_uses`` has made the
#: rest before any test.
FOR_GOOD = {
    "multiprocessing's tracker of shared memory": r"process .* multiprocessing\.resource_tracker ",
    "multiprocessing's own fork server": r"process .* multiprocessing\.forkserver ",
    "pytest-timeout": r"thread pytest_timeout ",
    "tqdm's monitor": r"thread tqdm_monitor",
}

# Threads and processes that were told to end may do so a little later, on a busy machine much later.
_PATIENCE_S = 20.0
_LOOK_AGAIN_AFTER_S = 0.05

_SHARED = re.compile(r"\S+ \S+ \S+ \S+ (\d+) +(/memfd:.*|/dev/shm/.*)")


class Held(NamedTuple):
    """Something that a process holds.

    Attributes:
        kind: What is counted together: a file may be opened anew, but there are not to be more of them.
        name: What it is, for good: a pid with the start time of its process, a descriptor with its target.
    """

    kind: str
    name: str


class FileLeaks:
    """A plugin."""

    def __init__(self) -> None:
        self._kept: Counter[Held] = Counter()
        self._of_obstore: list[str] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, Any, Any]:
        if fixturedef.scope not in ("session", "package") and fixturedef.argname not in KEEPERS:
            return (yield)
        before = Counter(held())
        try:
            return (yield)
        finally:
            self._kept |= Counter(held()) - before

    def left(self, before: Counter[Held]) -> list[str]:
        """What there is now and was not before, of the kinds of which there is more than before."""
        now = Counter(held())
        expected = before | (self._kept & now)
        grown = Counter(each.kind for each in now.elements())
        grown -= Counter(each.kind for each in expected.elements())
        new = [_described(each) for each in now - expected if each.kind in grown]
        there = [*FOR_GOOD.values(), *self._found_for_good(new)]
        return [each for each in new if not any(re.match(pattern, each) for pattern in there)]

    def _found_for_good(self, new: list[str]) -> Iterator[str]:
        for ours in getattr(sys.modules.get("asyncloader.workers.forkserver"), "_shared", {}).values():
            yield rf"process {ours.pid}, "
            yield rf"descriptor {ours._control.fileno()} of socket:"
        tracker, server = resource_tracker._resource_tracker, forkserver._forkserver
        for descriptor in (tracker._fd, server._forkserver_alive_fd):
            if descriptor is not None:
                yield rf"descriptor {descriptor} of pipe:"
        if not self._of_obstore and "tokio-rt-worker" in _of_tasks("comm"):
            # Its runtime, made once: a poll and its copy, and an event to wake it with.
            polls = [name for name in new if name.endswith("[eventpoll]")][:2]
            events = [name for name in new if name.endswith("[eventfd]")][:1]
            self._of_obstore = polls + events
        yield from map(re.escape, self._of_obstore)
        if "ray" in sys.modules and sys.modules["ray"].is_initialized():
            yield r"descriptor \d+ of socket:"  # to its other processes, of which more begin and end
        if torch.cuda.is_available():
            # The driver's, of which it opens more with each new kind of use.
            yield r"descriptor \d+ of (/dev/nvidia|anon_inode:\[eventfd\]|pipe:)"


@pytest.fixture(scope="session", autouse=True)
def first_uses() -> None:
    """What three libraries open once in a process and keep, made here, so that no test is blamed for it."""
    with suppress(ImportError):
        import uvloop

        uvloop.new_event_loop().close()  # a pipe of libuv's
    TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # a pipe of torch's own libuv
    tqdm.get_lock()  # a semaphore between processes


@pytest.fixture(scope="module", autouse=True)
def leaves_nothing_behind(
    request: pytest.FixtureRequest, frozen_heap: None, first_uses: None
) -> Iterator[None]:
    """Fail the last test of a file if the file leaves something behind."""
    plugin = request.config.pluginmanager.get_plugin("file-leaks")
    assert plugin is not None
    before = Counter(held())
    yield
    deadline = time.monotonic() + _PATIENCE_S
    while left := plugin.left(before):
        assert time.monotonic() < deadline, "\n".join(["this file leaves behind:", *left])
        time.sleep(_LOOK_AGAIN_AFTER_S)
        gc.collect()


def held() -> Iterator[Held]:
    """What this process holds."""
    for thread in threading.enumerate():
        yield Held("thread", f"thread {thread.name} {thread.ident}")
    for pid in " ".join(_of_tasks("children")).split():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except FileNotFoundError:
            continue
        yield Held("process", f"process {pid}, started at {fields[19]}")
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{descriptor}")
        except FileNotFoundError:
            continue  # the one that the folder was listed by
        kind = target.partition(":")[0] if ":" in target else "file"
        yield Held(f"descriptor of a {kind}", f"descriptor {descriptor} of {target}")
    for line in Path("/proc/self/maps").read_text().splitlines():
        if match := _SHARED.fullmatch(line):
            yield Held("mapping", f"{match[2]} {match[1]}")


def _of_tasks(name: str) -> Iterator[str]:
    """What /proc tells of each thread of this process, also of those that Python does not know."""
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # ended since it was listed
            yield (task / name).read_text().strip()


def _described(held: Held) -> str:
    """Its name; of a process also its command, which it has a moment after it began."""
    if held.kind != "process":
        return held.name
    command = Path(f"/proc/{held.name.split()[1].rstrip(',')}/cmdline")
    with suppress(OSError):
        return f"{held.name}: {' '.join(command.read_text(errors='replace').split(chr(0)))[:300]}"
    return held.name
