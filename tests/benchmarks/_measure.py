"""What the benchmarks share: the memory of a process and its workers, and a run in a fresh process."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


class PeakMemory:
    """Watches the proportional memory of a process, by default this one, and all its descendants."""

    def __init__(self, every_s: float = 0.2, pid: int | None = None) -> None:
        self._every_s = every_s
        self._pid = os.getpid() if pid is None else pid
        self._peak = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> int:
        """The largest sum seen, in bytes."""
        self._ended.set()
        self._thread.join()
        return self._peak

    def _watch(self) -> None:
        while not self._ended.wait(self._every_s):
            self._peak = max(self._peak, sum(map(proportional_bytes, descendants(self._pid))))


def descendants(pid: int) -> Iterator[int]:
    """``pid`` and all processes below it."""
    yield pid
    tasks: list[str] = []
    with suppress(OSError):  # it may end at any time, and so may a thread of it
        tasks = os.listdir(f"/proc/{pid}/task")
    for task in tasks:
        children: list[str] = []
        with suppress(OSError):
            children = Path(f"/proc/{pid}/task/{task}/children").read_text().split()
        for child in children:
            yield from descendants(int(child))


def proportional_bytes(pid: int) -> int:
    """Resident memory, with pages that processes share divided among them."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def run_fresh(script: str, *arguments: str) -> dict[str, float]:
    """Run ``script --measure ...`` in a process of its own, which prints a line of JSON at its end."""
    command = [sys.executable, script, "--measure", *arguments]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=300).stdout
    found: dict[str, float] = json.loads(printed.splitlines()[-1])
    return found


def machine() -> str:
    """The line that stands above a table."""
    return f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"


def parser_of(doc: str | None, *, rounds: int, measured: tuple[str, ...]) -> argparse.ArgumentParser:
    """What a comparison of two sides takes, each measured with several numbers of workers.

    Args:
        doc: The script's, whose first line describes it.
        rounds: How many pairs of runs there are by default.
        measured: What ``run_fresh`` hands on, for ``--measure``.
    """
    parser = argparse.ArgumentParser(description=doc.splitlines()[0] if doc else None)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2])
    parser.add_argument("--measure", nargs=len(measured), metavar=measured, help=argparse.SUPPRESS)
    return parser
