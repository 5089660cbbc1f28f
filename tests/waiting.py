"""Waiting for what a test is about, however busy the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

__all__ = ["AT_ONCE_S", "opened", "until"]

#: Within this a thing has happened at once, also on a busy machine. It is less than the five seconds after
#: which the library gives up on what does not end (an engine, a producer, a stage, a process): a wait for one
#: of these deadlines fails the test, as does a wait for the end of a fault, which takes half a minute.
AT_ONCE_S = 4.5


def until(condition: Callable[[], object], within_s: float = 20) -> None:
    """Wait until something is so; fail if it is not in time."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s:g} s"
        time.sleep(0.005)


def opened(loader: Any, within_s: float = 60) -> Any:
    """An iterator of a loader with a timeout that a busy machine may exceed while it starts workers."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        with suppress(TimeoutError):
            return iter(loader)
    return iter(loader)
