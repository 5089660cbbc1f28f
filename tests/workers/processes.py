"""Watching processes, and running scripts that start some."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from time import monotonic
from typing import Any

import asyncloader

_ROOT = Path(asyncloader.__file__).parent.parent


class Watch:
    """The ends of some processes that run now; a pid alone could come to mean another process."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._pids = list(pids)

    def __enter__(self) -> Watch:
        self._stack = ExitStack()
        self._watched = {}
        for pid in self._pids:
            with suppress(ProcessLookupError):  # it has ended already
                self._watched[pid] = os.pidfd_open(pid)
                self._stack.callback(os.close, self._watched[pid])
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def left_after(self, within_s: float) -> set[int]:
        """The pids of those that have not ended within the time."""
        deadline = monotonic() + within_s
        left = dict(self._watched)
        while left:
            ended = select.select(left.values(), [], [], max(0.0, deadline - monotonic()))[0]
            if not ended:
                break
            left = {pid: end for pid, end in left.items() if end not in ended}
        return set(left)


def start_script(text: str, *, by_name: Path | None = None) -> subprocess.Popen[str]:
    """Run a script in a process group of its own: on standard input, or as the file ``by_name``."""
    environment = os.environ | {"PYTHONPATH": str(_ROOT)}
    arguments: dict[str, Any] = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
        "env": environment,
        "start_new_session": True,
    }
    if by_name is not None:
        by_name.write_text(text)
        return subprocess.Popen([sys.executable, str(by_name)], stdin=subprocess.DEVNULL, **arguments)
    process = subprocess.Popen([sys.executable, "-"], stdin=subprocess.PIPE, **arguments)
    assert process.stdin is not None
    process.stdin.write(text)
    process.stdin.close()
    process.stdin = None
    return process


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Wait for the script's end: its exit status, output and error output."""
    try:
        output, errors = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return process.returncode, output, errors
