"""What a pass has delivered so far, and a bar that shows it."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .stopwatch import Spent

__all__ = ["NetworkCounts", "ProgressBar", "Receipt", "Statistics", "open_bar"]


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
            self.requests - before.requests,
            self.retries - before.retries,
            self.throttled - before.throttled,
            self.hedges - before.hedges,
        )

    def add(self, more: NetworkCounts) -> None:
        """Count what another process has done."""
        self.requests += more.requests
        self.retries += more.retries
        self.throttled += more.throttled
        self.hedges += more.hedges


@dataclass(slots=True, repr=False)
class Statistics:
    """Counts of one pass, as delivered to the consumer.

    Attributes:
        batches: Delivered.
        samples: In those batches.
        tokens: In those batches, without padding, as far as their batching counts them.
        size_bytes: Bytes of tensors, arrays, strings and byte strings in them, and 8 for each number; of long
            lists within a batch an estimate. See ``sizes.bytes_of``.
        wait_s: Time the consumer has waited: for the pass to start, for batches, and for the end.
        components: Samples of each component of a mixture, by its name; empty for other recipes.
        network: What it took to get them, of all processes together.
        worker_restarts: How many workers have died and were replaced.
        skipped: Samples and shards that ``on_error=Skip(...)`` has passed over in the epoch, also before a
            resume; some may be of batches that are ready and not yet delivered.
        stopped: Whether the pass was ended with batches left, in step with ranks that had no more.
        undelivered_batches: How many of these were ready then; the rank may have had more that were not
            made yet.
        undelivered_samples: In those batches.
        spent: Where the time of those went who make the batches, by the number of the worker; 0 without any.
        first_batch_s: When the first batch came, by ``time.perf_counter()``; None before.
        started_s: When the pass began, by ``time.perf_counter()``.
        ended_s: When it was over, likewise; None before.
    """

    batches: int = 0
    samples: int = 0
    tokens: int = 0
    size_bytes: int = 0
    wait_s: float = 0.0
    components: dict[str, int] = field(default_factory=dict)
    network: NetworkCounts = field(default_factory=NetworkCounts)
    worker_restarts: int = 0
    skipped: int = 0
    stopped: bool = False
    undelivered_batches: int = 0
    undelivered_samples: int = 0
    spent: dict[int, Spent] = field(default_factory=dict)
    first_batch_s: float | None = None
    started_s: float = field(default_factory=time.perf_counter)
    ended_s: float | None = None
    bar: ProgressBar | None = None

    def count(self, samples: int, tokens: int, size_bytes: int, since_s: float) -> None:
        """A batch was delivered, which the consumer has waited for since then."""
        if self.first_batch_s is None:
            self.first_batch_s = self._now_s()
        self.batches += 1
        self.samples += samples
        self.tokens += tokens
        self.size_bytes += size_bytes
        self.waited(since_s)
        if self.bar is not None:
            self.bar.show(self)

    def count_components(self, samples: Sequence[int]) -> None:
        """How many samples of each component are in a batch that was delivered."""
        for name, count in zip(self.components, samples, strict=False):
            self.components[name] += count

    def spend(self, worker: int, spent: Spent) -> None:
        """What a worker has told of its time."""
        before = self.spent.get(worker)
        self.spent[worker] = spent if before is None else before.plus(spent)

    def waited(self, since_s: float) -> None:
        """The consumer has waited since then, to this moment or to the end of the pass."""
        self.wait_s += max(0.0, self._now_s() - since_s)

    def end(self) -> None:
        """The pass is over. Idempotent."""
        if self.ended_s is None:
            self.ended_s = time.perf_counter()
            if self.bar is not None:
                self.bar.close(self)

    @property
    def elapsed_s(self) -> float:
        """Time since the pass began, and until it ended."""
        return self._now_s() - self.started_s

    @property
    def wait_share(self) -> float:
        """The part of the time, from 0 to 1, that the consumer has waited."""
        return self.wait_s / max(self.elapsed_s, 1e-9)

    def _now_s(self) -> float:
        return time.perf_counter() if self.ended_s is None else self.ended_s

    def __repr__(self) -> str:
        tokens = f"tokens={self.tokens}, " if self.tokens else ""
        components = f"components={self.components}, " if self.components else ""
        skipped = f", skipped={self.skipped}" if self.skipped else ""
        restarts = f", worker_restarts={self.worker_restarts}" if self.worker_restarts else ""
        return (
            f"Statistics(batches={self.batches}, samples={self.samples}, {components}{tokens}"
            f"size_bytes={self.size_bytes}, elapsed_s={self.elapsed_s:.3f}, wait_s={self.wait_s:.3f}, "
            f"wait_share={self.wait_share:.3f}, network={self.network}{restarts}{skipped})"
        )


@dataclass(frozen=True)
class Receipt:
    """What an epoch has delivered to this rank, up to now or to its end.

    ``batches`` and ``samples`` are those of this pass. Where it went on from a state, the batches that were
    delivered before are told apart: how many samples those had, a state does not say.

    Attributes:
        epoch: Number of the pass.
        batches: Delivered, without those of no samples that ``uneven="pad"`` adds.
        batches_before: Delivered before, as said by the state that the pass began with.
        expected_batches: How many the rank has of the whole epoch; None where that is not known.
        samples: In the batches of this pass.
        expected_samples: How many the rank has of the whole epoch; None where that is not known.
        skipped: Samples and shards passed over in the epoch, also before this pass.
        components: Samples of each component of a mixture, by its name; empty for other recipes.
        is_over: Whether the pass was read to its end.
        stopped: Whether it was ended with batches left, in step with ranks that had no more.
        undelivered_batches: How many of these were ready then, at least: what was not made yet is counted by
            ``expected_batches``, where that is known.
        undelivered_samples: In those batches.
    """

    epoch: int
    batches: int
    batches_before: int
    expected_batches: int | None
    samples: int
    expected_samples: int | None
    skipped: int
    components: Mapping[str, int]
    is_over: bool
    stopped: bool
    undelivered_batches: int
    undelivered_samples: int


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
    """A tqdm bar of batches, with samples/s, MB/s and the share of time the consumer waited.

    Make it when the pass begins: its clock starts here.

    Args:
        description: Stands before it.
        total: Batches of the whole pass; None if that is not known.
        done: How many of them were delivered before, by a run that this one goes on from.
    """

    def __init__(self, description: str, total: int | None = None, done: int = 0) -> None:
        self._bar: Any = open_bar(description, total, " batches", done)

    def show(self, statistics: Statistics) -> None:
        """Move on by one batch; tqdm itself limits how often the screen is touched."""
        self._say(statistics)
        self._bar.update()

    def close(self, statistics: Statistics) -> None:
        """Leave the bar as the pass ended."""
        if statistics.batches:
            self._say(statistics)
        self._bar.close()

    def _say(self, statistics: Statistics) -> None:
        elapsed_s = max(statistics.elapsed_s, 1e-9)
        tokens = f"{statistics.tokens / elapsed_s:,.0f} tokens/s, " if statistics.tokens else ""
        self._bar.set_postfix_str(
            f"{statistics.samples / elapsed_s:,.0f} samples/s, {tokens}"
            f"{statistics.size_bytes / elapsed_s / 1e6:,.1f} MB/s, "
            f"waited {statistics.wait_share:.0%}",
            refresh=False,
        )
