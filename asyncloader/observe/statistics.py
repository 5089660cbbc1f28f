"""The meter of a pass while it runs, and ``Statistics``: an unchanging snapshot of it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, fields, replace
from threading import RLock
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import msgspec

from ..flow.process import read_throttled_s
from .stopwatch import Spent, Stopwatch, summed

if TYPE_CHECKING:
    from .trace_keeping import Trace

State: TypeAlias = Literal["none", "running", "ended"]

# A file may come from anywhere: what is read of it is bounded. Older versions rounded some times below 0.
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=-1e-6, le=1e10)]


@dataclass(frozen=True, slots=True)
class Network:
    """The requests of all processes in a pass, without the listings of prefixes and globs.

    Attributes:
        requests: Requests that were sent, including those with a renewed URL, without redirects.
        retries: How many of them were retries, after an error or a broken body.
        throttled: How many were answered with 429 or 503.
        hedges: How many were sent in addition to a slow one, for the same bytes.
        cached: Shards that were downloaded into a disk cache that had room for them.
        evicting: Shards for which cache_limit left no room, or only after others were evicted.
    """

    requests: Count = 0
    retries: Count = 0
    throttled: Count = 0
    hedges: Count = 0
    cached: Count = 0
    evicting: Count = 0


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls of a function that runs on its own threads. Times are sums over all calls, in seconds.

    Attributes:
        took_s: Time from begin to end.
        cpu_s: Processor time.
        delay_s: Time in which they were ready to run, but had no processor.
    """

    took_s: Seconds
    cpu_s: Seconds
    delay_s: Seconds = 0.0


@dataclass(frozen=True)
class Maker:
    """How a worker, or the thread that makes batches without workers, has spent its time.

    Attributes:
        worker: Number of the worker; 0 without workers.
        stages_s: Seconds by stage. Each moment belongs to one stage, so their sum is the time from the start
            to the latest report. Reports come with batches, at most every 0.1 s.
        calls: Calls of functions that run on their own threads, by stage.
        wants_memory: Whether ``memory_limit`` prevented reading further ahead at the latest report.
        cpu_s: Processor time of its own thread, in seconds, without ``calls``.
    """

    worker: Count
    stages_s: Mapping[str, Seconds]
    calls: Mapping[str, Calls] = field(default_factory=dict)
    wants_memory: bool = False
    cpu_s: Seconds = 0.0


@dataclass(frozen=True)
class Totals:
    """Sums over several passes of a loader.

    Attributes:
        batches: Batches that were delivered.
        samples: Samples in these batches.
        tokens: Tokens in these batches.
        size_bytes: Bytes of these batches.
        elapsed_s: Seconds from the beginning of each pass to its end.
        wait_s: Seconds of these in which the consumer waited.
        network: The requests.
        worker_restarts: Workers that died and were replaced.
        stages_s: Seconds by stage, over all workers and threads that make batches.
    """

    batches: Count = 0
    samples: Count = 0
    tokens: Count = 0
    size_bytes: Count = 0
    elapsed_s: Seconds = 0.0
    wait_s: Seconds = 0.0
    network: Network = field(default_factory=Network)
    worker_restarts: Count = 0
    stages_s: Mapping[str, Seconds] = field(default_factory=dict)


@dataclass(frozen=True, repr=False)
class Statistics:
    """Counts and times of a loader's latest pass, at the moment they were read.

    The object does not change: read ``loader.statistics`` again for later values. Times are in seconds, and
    points in time count from the beginning of the pass. ``as_dict()`` returns plain JSON.

    Example:
        ```python
        import asyncloader as al

        loader = al.DataLoader(al.from_iterable(range(1000)), batch_size=50)
        for batch in loader:
            pass
        statistics = loader.statistics
        print(statistics.samples / statistics.elapsed_s, "samples/s")
        print(statistics.wait_share, statistics.as_dict()["batches"])
        ```

    Attributes:
        state: ``"none"`` before the first pass, when all else is 0 or empty; ``"running"``; or ``"ended"``,
            also after a ``break`` or ``close()``.
        passes: How many passes the loader has begun, including this one.
        epoch: Number of the epoch; None if the loader has no such number.
        batches: Batches that were delivered.
        samples: Samples in these batches.
        tokens: Tokens in these batches, without padding; 0 if the batching does not count them.
        size_bytes: Bytes of the tensors, arrays, strings and byte strings in these batches, and 8 for each
            number. Long lists in a batch are estimated.
        elapsed_s: Time from the beginning of the pass until now, or until its end.
        wait_s: Time in which the consumer waited: for the pass to start, for batches, and for its end.
        first_batch_s: When the first batch was delivered; None before.
        components: Samples of each component of a mixture, by name; empty for other datasets.
        network: The requests of all processes together.
        worker_restarts: Workers that died and were replaced.
        skipped: Samples and shards that ``on_error=SkipErrors(...)`` has skipped in the epoch, also before a
            resume. Some may belong to batches that are ready, but not yet delivered.
        empty_shards: Shards of 0 bytes in this pass that no index lists as empty: text or JSON Lines without
            a line.
        stopped: Whether the pass ended with batches left, since other ranks had none left.
        undelivered_batches: How many of these batches were ready. The rank may have had more.
        undelivered_samples: Samples in these undelivered batches.
        makers: How each worker, by number, or the thread that makes batches has spent its time.
        throttled_s: Time in which the quota of the container kept its processes from running, added over all
            processors; 0 without a quota.
        loop_stages_s: For map-style and iterable datasets with workers: time of this process by stage.
            ``"sampler"`` draws indices, ``"receiving"`` unpacks batches of workers.
        earlier: The sums of the passes before this one.
        batches_before: For a stream, batches of the epoch that were delivered before this pass, by the loaded
            state. A state does not have the number of their samples.
        epoch_batches: For a stream, batches of the epoch that were delivered, including those before this
            pass, without the empty ones of ``uneven="pad"``.
        expected_batches: For a stream, all batches of the epoch on this rank; None if unknown.
        expected_samples: All samples of the epoch on this rank, likewise.
        is_over: Whether the pass of a stream was read to its end, and no rank was stopped with batches left.
    """

    state: State = "none"
    passes: Count = 0
    epoch: Count | None = None
    batches: Count = 0
    samples: Count = 0
    tokens: Count = 0
    size_bytes: Count = 0
    elapsed_s: Seconds = 0.0
    wait_s: Seconds = 0.0
    first_batch_s: Seconds | None = None
    components: Mapping[str, Count] = field(default_factory=dict)
    network: Network = field(default_factory=Network)
    worker_restarts: Count = 0
    skipped: Count = 0
    empty_shards: Count = 0
    stopped: bool = False
    undelivered_batches: Count = 0
    undelivered_samples: Count = 0
    makers: tuple[Maker, ...] = ()
    throttled_s: Seconds = 0.0
    loop_stages_s: Mapping[str, Seconds] = field(default_factory=dict)
    earlier: Totals = field(default_factory=Totals)
    batches_before: Count = 0
    epoch_batches: Count = 0
    expected_batches: Count | None = None
    expected_samples: Count | None = None
    is_over: bool = False

    @property
    def wait_share(self) -> float:
        """The share of the time, from 0 to 1, in which the consumer waited."""
        return min(self.wait_s / max(self.elapsed_s, 1e-9), 1.0)

    def totals(self) -> Totals:
        """Return the sums over all passes of the loader, including this one. They never decrease."""
        before = self.earlier
        counts: dict[str, Any] = {
            each.name: getattr(before, each.name) + getattr(self, each.name)
            for each in fields(Totals)
            if each.name not in ("network", "stages_s")
        }
        network = Network(*map(sum, zip(astuple(before.network), astuple(self.network), strict=True)))
        stages_s = summed([before.stages_s, *(maker.stages_s for maker in self.makers)])
        return Totals(**counts, network=network, stages_s=stages_s)

    def as_dict(self) -> dict[str, Any]:
        """Return all attributes and ``wait_share`` as a new dict of JSON values."""
        saved = asdict(self)
        return {**saved, "makers": [*saved["makers"]], "wait_share": self.wait_share}

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Statistics:
        """Make the statistics from a saved ``as_dict()``, of this version or an older one.

        Args:
            saved: What ``as_dict()`` returned.

        Raises:
            ValueError: ``saved`` is not such a dict.
        """
        try:
            if "batches" not in saved:
                raise TypeError("it has no batches")
            # The requests are not of any later version: a count under an unknown name would be lost.
            return replace(msgspec.convert(saved, cls), network=Network(**saved.get("network", {})))
        except (TypeError, msgspec.ValidationError) as error:
            raise ValueError(f"expected a dict as Statistics.as_dict() makes it, but {error}") from None

    def __repr__(self) -> str:
        if self.state == "none":
            return "Statistics(no pass has begun)"
        values = {name: getattr(self, name) for name in (*_SHOWN, *_SHOWN_IF_ANY)}
        texts = [
            f"{name}={value:.3f}" if isinstance(value, float) else f"{name}={value}"
            for name, value in values.items()
            if value or name in _SHOWN
        ]
        return f"Statistics({', '.join(texts)})"


# What the repr shows.
_SHOWN = ("batches", "samples", "size_bytes", "elapsed_s", "wait_s", "wait_share", "network")
_SHOWN_IF_ANY = ("components", "tokens", "worker_restarts", "skipped", "empty_shards")


@dataclass(slots=True)
class NetworkCounts:
    """Requests of one process, or of all workers together: ``Network``, while it grows."""

    requests: int = 0
    retries: int = 0
    throttled: int = 0
    hedges: int = 0
    cached: int = 0
    evicting: int = 0

    def since(self, before: NetworkCounts) -> NetworkCounts:
        """The difference to an earlier count."""
        return NetworkCounts(*(getattr(self, name) - getattr(before, name) for name in self.__slots__))

    def add(self, more: NetworkCounts) -> None:
        """Count the requests of another process."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(more, name))


# What a ``Meter`` counts under the names that ``Statistics`` has.
_COUNTED = (
    *("passes", "epoch", "batches", "samples", "tokens", "size_bytes", "worker_restarts", "skipped"),
    *("empty_shards", "stopped", "undelivered_batches", "undelivered_samples"),
)


class Meter:
    """Counts one pass, and sums up the times of all that make its batches. Other threads read a ``snapshot``.

    Args:
        passes: How many passes the loader has begun, including this one.
        epoch: See ``Statistics``.
        components: The names of a mixture's.
        bar: A ``ProgressBar``: shown every batch, and closed at the end.
        earlier: Of the pass before; None if there was none.
        trace: Informed of all that happens, and written at the end; None where the pass is not traced.

    Attributes: those of ``Statistics``, and
        started_s: When the pass began, by ``time.perf_counter()``.
        cut_short: Whether all ranks were stopped though some had batches, this one or others.
        closes_slowly: Whether ``close`` takes longer than an event loop may be held up.
    """

    def __init__(
        self,
        *,
        passes: int = 1,
        epoch: int | None = None,
        components: Iterable[str] = (),
        bar: Any = None,
        earlier: Meter | None = None,
        trace: Trace | None = None,
    ) -> None:
        self._earlier = Totals() if earlier is None else earlier.snapshot().totals()
        self.started_s = time.perf_counter() if trace is None else trace.start_s
        self.passes, self.epoch = passes, epoch
        self.batches = self.samples = self.tokens = self.size_bytes = 0
        self.worker_restarts = self.skipped = self.empty_shards = 0
        #: Whether a pass before this one has met an empty shard.
        self.met_empty_before: bool = earlier is not None and (
            earlier.empty_shards > 0 or earlier.met_empty_before
        )
        self.stopped = self.cut_short = False
        self.undelivered_batches = self.undelivered_samples = 0
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
        self._bar, self._trace = bar, trace
        self.closes_slowly = trace is not None
        # Held to change what belongs together, and to copy it; never while the trace is informed, which has a
        # lock of its own. Re-entrant: a garbage collection may run the finalizer that ends this pass.
        self._lock = RLock()

    def wait(self) -> float:
        """The consumer begins to wait; returns the time, by ``time.perf_counter()``."""
        self._waiting_since_s = now_s = time.perf_counter()
        if self._trace is not None:
            self._trace.wait(now_s)
        return now_s

    def waited(self) -> None:
        """End the wait unless ``count()`` already did."""
        if self._waiting_since_s is not None:
            now_s = self._now_s()
            with self._lock:
                self._add_wait(now_s)
            if self._trace is not None:
                self._trace.step(now_s)

    def count(self, samples: int, tokens: int, size_bytes: int, components: Sequence[int] = ()) -> float:
        """A batch was delivered, which ends the wait for it; returns the time, by ``time.perf_counter()``.

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
            self.tokens += tokens
            self.size_bytes += size_bytes
            self._add_wait(now_s)
            if components:
                for name, count in zip(self._components, components, strict=False):
                    self._components[name] += count
        if self._bar is not None:
            self._bar.show(self)
        if self._trace is not None:
            self._trace.count(now_s, self.batches - 1, samples, size_bytes)
        return now_s

    def spend(self, worker: int, spent: Spent) -> None:
        """A report of a worker on its time."""
        if self._trace is not None:
            self._trace.spend(worker, spent, self.worker_restarts, self.skipped)
            spent = spent._replace(traced=None)  # the trace has it
        with self._lock:
            before = self._spent.get(worker)
            self._spent[worker] = spent if before is None else before.plus(spent)

    def spend_rest(self, stopwatch: Stopwatch) -> None:
        """Take in what a thread of this process, which has ended, has not reported, if it is traced."""
        if self._trace is not None and (spent := stopwatch.news(at_once=True)) is not None:
            self.spend(0, spent)

    def forget(self, worker: int) -> None:
        """A worker's earlier reports were of a pass before."""
        with self._lock:
            self._spent.pop(worker, None)
        if self._trace is not None:
            self._trace.forget(worker)

    def work_in_loop(self, stage: str, took_s: float) -> None:
        """The loop's own process has worked for its batches."""
        with self._lock:
            self._loop_stages_s[stage] = self._loop_stages_s.get(stage, 0.0) + took_s

    def ask(self, more: NetworkCounts) -> None:
        """Add the requests of a process since its previous report."""
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
        """Write the trace, if there is one: the pass has ended, and so have its workers. Idempotent.

        Raises:
            OSError: The trace cannot be written.
        """
        if self._trace is not None:
            self._trace.write(self.snapshot)

    def snapshot(self) -> Statistics:
        """All of it at this moment, from any thread."""
        throttled_s = self._read_throttled_s()
        with self._lock:
            now_s, since_s, first_s = self._now_s(), self._waiting_since_s, self._first_batch_s
            return Statistics(
                **{name: getattr(self, name) for name in _COUNTED},
                state="running" if self._ended_s is None else "ended",
                elapsed_s=now_s - self.started_s,
                wait_s=self._wait_s + (0.0 if since_s is None else max(0.0, now_s - since_s)),
                first_batch_s=None if first_s is None else first_s - self.started_s,
                components=dict(self._components),
                network=Network(*astuple(self._network)),
                makers=tuple(_maker_of(worker, spent) for worker, spent in sorted(self._spent.items())),
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


def _maker_of(worker: int, spent: Spent) -> Maker:
    calls = {stage: Calls(*each) for stage, each in spent.calls.items()}
    return Maker(worker, dict(spent.seconds), calls, spent.wants_memory, spent.cpu_s)
