"""The counts of a pass while it goes on. What is told of them, and stays as it is, are ``Statistics``."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from threading import RLock
from typing import Any

from .processors import read_throttled_s
from .statistics import Calls, Maker, Network, Statistics, Totals
from .stopwatch import Spent

__all__ = ["Counters", "NetworkCounts"]


@dataclass(slots=True)
class NetworkCounts:
    """Requests of one process, or of all workers together: ``Network``, while it grows."""

    requests: int = 0
    retries: int = 0
    throttled: int = 0
    hedges: int = 0
    cached: int = 0

    def since(self, before: NetworkCounts) -> NetworkCounts:
        """The difference to an earlier count."""
        return NetworkCounts(
            self.requests - before.requests,
            self.retries - before.retries,
            self.throttled - before.throttled,
            self.hedges - before.hedges,
            self.cached - before.cached,
        )

    def add(self, more: NetworkCounts | Network) -> None:
        """Count what another process has done."""
        self.requests += more.requests
        self.retries += more.retries
        self.throttled += more.throttled
        self.hedges += more.hedges
        self.cached += more.cached


class Counters:
    """Counts one pass. What reads them from another thread asks for a ``snapshot``.

    Args:
        passes: How many passes the loader has begun, with this one.
        epoch: See ``Statistics``.
        components: The names of a mixture's.
        bar: A ``ProgressBar``: shown every batch, and closed at the end.
        earlier: Of the pass before; None if there was none.

    Attributes: those of ``Statistics``, and
        started_s: When the pass began, by ``time.perf_counter()``.
        cut_short: Whether all ranks were stopped though some had batches, this one or others.
        closes_slowly: Whether ``close`` takes longer than an event loop may be held up.
    """

    closes_slowly = False

    def __init__(
        self,
        *,
        passes: int = 1,
        epoch: int | None = None,
        components: Iterable[str] = (),
        bar: Any = None,
        earlier: Counters | None = None,
    ) -> None:
        self._earlier = Totals() if earlier is None else earlier.snapshot().totals()
        self.started_s = time.perf_counter()
        self.batches = self.samples = self.worker_restarts = self.skipped = self.empty_shards = 0
        #: Whether a pass before this one has met an empty shard.
        self.met_empty_before: bool = earlier is not None and (
            earlier.empty_shards > 0 or earlier.met_empty_before
        )
        self.stopped = self.cut_short = False
        self.undelivered_batches = self.undelivered_samples = 0
        self._passes, self._epoch = passes, epoch
        self._tokens = self._size_bytes = 0
        self._wait_s = 0.0
        #: Since when the consumer waits, if it does.
        self._waiting_since_s: float | None = self.started_s  # for the pass to start
        self._first_batch_s: float | None = None
        self._ended_s: float | None = None
        self._throttled_before_s = read_throttled_s()
        self._throttled_s: float | None = None  # of a pass that has ended
        self._components = dict.fromkeys(components, 0)
        self._network = NetworkCounts()
        self._spent: dict[int, Spent] = {}
        self._loop_stages_s: dict[str, float] = {}
        self._bar = bar
        # Held by those who change what belongs together, and by who copies it. Re-entrant: a garbage
        # collection meanwhile may run the finalizer that ends this pass.
        self._lock = RLock()

    def wait(self) -> float:
        """The consumer waits from now on; gives the time, by ``time.perf_counter()``."""
        now_s = time.perf_counter()
        with self._lock:
            self._waiting_since_s = now_s
        return now_s

    def waited(self) -> None:
        """It waits no more, if ``count`` has not said so."""
        if self._waiting_since_s is not None:
            with self._lock:
                self._add_wait(self._now_s())

    def count(self, samples: int, tokens: int, size_bytes: int, components: Sequence[int] = ()) -> float:
        """A batch was delivered, which ends the wait for it; gives the time, by ``time.perf_counter()``.

        Args:
            samples: In the batch.
            tokens: Likewise.
            size_bytes: Likewise.
            components: How many of the samples are of each component.
        """
        now_s = self._now_s()
        with self._lock:
            if self._first_batch_s is None:
                self._first_batch_s = now_s
            self.batches += 1
            self.samples += samples
            self._tokens += tokens
            self._size_bytes += size_bytes
            self._add_wait(now_s)
            if components:
                for name, count in zip(self._components, components, strict=False):
                    self._components[name] += count
        if self._bar is not None:
            self._bar.show(self)
        return now_s

    def spend(self, worker: int, spent: Spent) -> None:
        """What a worker has told of its time."""
        with self._lock:
            before = self._spent.get(worker)
            self._spent[worker] = spent if before is None else before.plus(spent)

    def forget(self, worker: int) -> None:
        """What it has told was of a pass before."""
        with self._lock:
            self._spent.pop(worker, None)

    def work_in_loop(self, stage: str, took_s: float) -> None:
        """The loop's own process has worked for its batches."""
        with self._lock:
            self._loop_stages_s[stage] = self._loop_stages_s.get(stage, 0.0) + took_s

    def ask(self, more: NetworkCounts) -> None:
        """What a process has asked of the network since it told before."""
        with self._lock:
            self._network.add(more)

    def end(self) -> None:
        """The pass is over. Idempotent."""
        with self._lock:
            if self._ended_s is not None:
                return
            self._ended_s = time.perf_counter()
            self._throttled_s = self._read_throttled_s()
        if self._bar is not None:
            self._bar.close(self)

    def close(self) -> None:
        """The pass has ended, and so have those who made its batches. Idempotent."""

    def snapshot(self) -> Statistics:
        """All of it at this moment, from any thread."""
        throttled_s = self._read_throttled_s()
        with self._lock:
            now_s, waiting_since_s = self._now_s(), self._waiting_since_s
            waiting_s = 0.0 if waiting_since_s is None else max(0.0, now_s - waiting_since_s)
            first_s, counts = self._first_batch_s, self._network
            return Statistics(
                state="running" if self._ended_s is None else "ended",
                passes=self._passes,
                epoch=self._epoch,
                batches=self.batches,
                samples=self.samples,
                tokens=self._tokens,
                size_bytes=self._size_bytes,
                elapsed_s=now_s - self.started_s,
                wait_s=self._wait_s + waiting_s,
                first_batch_s=None if first_s is None else first_s - self.started_s,
                components=dict(self._components),
                network=Network(*astuple(counts)),
                worker_restarts=self.worker_restarts,
                skipped=self.skipped,
                empty_shards=self.empty_shards,
                stopped=self.stopped,
                undelivered_batches=self.undelivered_batches,
                undelivered_samples=self.undelivered_samples,
                makers=tuple(_maker(worker, self._spent[worker]) for worker in sorted(self._spent)),
                throttled_s=throttled_s,
                loop_stages_s=dict(self._loop_stages_s),
                earlier=self._earlier,
            )

    def _add_wait(self, now_s: float) -> None:
        if self._waiting_since_s is not None:
            self._wait_s += max(0.0, now_s - self._waiting_since_s)
            self._waiting_since_s = None

    def _read_throttled_s(self) -> float:
        ended_s = self._throttled_s
        return max(read_throttled_s() - self._throttled_before_s, 0.0) if ended_s is None else ended_s

    def _now_s(self) -> float:
        return time.perf_counter() if self._ended_s is None else self._ended_s


def _maker(worker: int, spent: Spent) -> Maker:
    calls = {stage: Calls(*each) for stage, each in spent.calls.items()}
    return Maker(worker, dict(spent.seconds), calls, spent.wants_memory, spent.cpu_s)
