"""Bars that show how far something is, and what it waits for."""

from __future__ import annotations

import threading
import time
import warnings
from contextlib import suppress
from typing import Any

from .counting import Counters
from .report import Setup, judge
from .statistics import Statistics
from .tracebacks import users_level

__all__ = ["ProgressBar", "open_bar"]

# Neither the screen nor a reader keeps up with more; tqdm's own ``mininterval``.
_SAY_S = 0.1


def open_bar(description: str, total: int | None, unit: str, done: int = 0) -> Any:
    """A tqdm bar that leaves neither a thread nor a semaphore behind.

    Args:
        description: Stands before it.
        total: Steps; None if that is not known.
        unit: What a step is.
        done: How many were done before it was opened.
    """
    from tqdm.auto import tqdm

    class Bar(tqdm):  # type: ignore[type-arg]  # generic in the stubs alone
        # tqdm's thread would outlive the bar. It wakes bars that look at every n-th step only.
        monitor_interval = 0

    # Its own lock is a semaphore among processes, which stays; our workers have no bars.
    Bar.set_lock(threading.RLock())
    # Without smoothing, its rate is that of the whole time, as the others are.
    return Bar(desc=description, total=total, initial=done, unit=unit, miniters=1, smoothing=0)


class ProgressBar:
    """A tqdm bar of batches, with samples/s, MB/s, the share of time the consumer waited, and what for.

    Make it when the pass begins: its clock starts here. A bar that cannot be written, such as to a pipe that
    nobody reads any more, is switched off with a warning, and the pass goes on.

    Args:
        description: Stands before it.
        setup: What the pass runs with.
        total: Batches of the whole pass; None if that is not known.
        done: How many of them were delivered before, by a run that this one goes on from.
    """

    def __init__(self, description: str, setup: Setup, total: int | None = None, done: int = 0) -> None:
        self._bar: Any = None
        self._setup = setup
        self._said_s = time.monotonic()
        try:
            self._bar = open_bar(description, total, " batches", done)
        except Exception as error:
            self._switch_off(error)

    def show(self, counters: Counters) -> None:
        """Move on by one batch; what is on the screen changes now and then."""
        if self._bar is None:
            return
        now_s = time.monotonic()
        try:
            if now_s - self._said_s >= _SAY_S:
                self._said_s = now_s
                self._say(counters.snapshot())
            self._bar.update()
        except Exception as error:
            self._switch_off(error)

    def close(self, counters: Counters) -> None:
        """Leave the bar as the pass ended."""
        if self._bar is None:
            return
        try:
            if counters.batches:
                self._say(counters.snapshot())
            self._bar.close()
        except Exception as error:
            self._switch_off(error)

    def _switch_off(self, error: Exception) -> None:
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.disable = True  # else it draws once more when it is let go
        with suppress(OSError, ValueError):  # of standard error, which may be what cannot be written
            warnings.warn(
                f"the progress bar cannot be written and is switched off: {type(error).__name__}: {error}",
                stacklevel=users_level(),
            )

    def _say(self, statistics: Statistics) -> None:
        elapsed_s = max(statistics.elapsed_s, 1e-9)
        tokens = f"{statistics.tokens / elapsed_s:,.0f} tokens/s, " if statistics.tokens else ""
        self._bar.set_postfix_str(
            f"{statistics.samples / elapsed_s:,.0f} samples/s, {tokens}"
            f"{statistics.size_bytes / elapsed_s / 1e6:,.1f} MB/s, {_waits(statistics, self._setup)}",
            refresh=False,
        )


def _waits(statistics: Statistics, setup: Setup) -> str:
    """For how much of the time the consumer waits, and for what."""
    report = judge(statistics, setup)
    waits = f"{'waits' if statistics.state == 'running' else 'waited'} {statistics.wait_share:.0%}"
    return waits if report.limit in ("consumer", "start") else f"{waits}: {report.limit}"
