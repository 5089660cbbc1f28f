"""What a pass has delivered so far, and a bar that shows it."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field, fields
from typing import Any

__all__ = ["NetworkCounts", "ProgressBar", "Statistics"]


@dataclass(slots=True)
class NetworkCounts:
    """Requests of one process, or of all workers together.

    Attributes:
        requests: Sent, of whatever kind, also anew with a renewed URL; without redirects.
        retries: Of them those that asked again, after an error or a broken body.
        throttled: Answered with 429 or 503.
        hedges: Sent beside a slow one, for the same bytes.
    """

    requests: int = 0
    retries: int = 0
    throttled: int = 0
    hedges: int = 0

    def since(self, before: NetworkCounts) -> NetworkCounts:
        """The difference to an earlier count."""
        return NetworkCounts(
            *(getattr(self, count.name) - getattr(before, count.name) for count in fields(self))
        )

    def add(self, more: NetworkCounts) -> None:
        """Count what another process has done."""
        for name in [count.name for count in fields(self)]:
            setattr(self, name, getattr(self, name) + getattr(more, name))


@dataclass(slots=True)
class Statistics:
    """Counts of one pass, as delivered to the consumer.

    Attributes:
        batches: Delivered.
        samples: In those batches.
        size_bytes: Bytes of tensors, arrays and byte strings in them.
        wait_s: Time the consumer has waited for batches.
        network: What it took to get them, of all processes together.
        started_s: When the pass began, by ``time.perf_counter()``.
    """

    batches: int = 0
    samples: int = 0
    size_bytes: int = 0
    wait_s: float = 0.0
    network: NetworkCounts = field(default_factory=NetworkCounts)
    started_s: float = field(default_factory=time.perf_counter)
    bar: ProgressBar | None = field(default=None, repr=False)

    def count(self, samples: int, size_bytes: int, wait_s: float) -> None:
        """A batch was delivered."""
        self.batches += 1
        self.samples += samples
        self.size_bytes += size_bytes
        self.wait_s += wait_s
        if self.bar is not None:
            self.bar.show(self)

    @property
    def elapsed_s(self) -> float:
        """Time since the pass began."""
        return time.perf_counter() - self.started_s

    @property
    def wait_share(self) -> float:
        """The part of the time, from 0 to 1, that the consumer has waited."""
        return self.wait_s / max(self.elapsed_s, 1e-9)


class ProgressBar:
    """A tqdm bar of batches, with samples/s, MB/s and the share of time the consumer waited."""

    def __init__(self, description: str) -> None:
        from tqdm.auto import tqdm

        class Bar(tqdm):  # type: ignore[type-arg]  # generic in the stubs alone
            # tqdm's thread would outlive the bar. It wakes bars that look at every n-th step only.
            monitor_interval = 0

        # Its own lock is a semaphore among processes, which stays; our workers have no bars.
        Bar.set_lock(threading.RLock())
        self._bar: Any = Bar(desc=description, unit=" batches", miniters=1)

    def show(self, statistics: Statistics) -> None:
        """Move on by one batch; tqdm itself limits how often the screen is touched."""
        elapsed_s = max(statistics.elapsed_s, 1e-9)
        self._bar.set_postfix_str(
            f"{statistics.samples / elapsed_s:,.0f} samples/s, "
            f"{statistics.size_bytes / elapsed_s / 1e6:,.1f} MB/s, "
            f"waited {statistics.wait_share:.0%}",
            refresh=False,
        )
        self._bar.update()

    def close(self) -> None:
        """Leave the bar as it stands."""
        self._bar.close()
