"""What a pass has done so far, as it is told: counts and times at one moment, which stay as they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

__all__ = ["Calls", "Maker", "Network", "State", "Statistics", "Totals"]

State: TypeAlias = Literal["none", "running", "ended"]


@dataclass(frozen=True, slots=True)
class Network:
    """Requests, of all processes together.

    Attributes:
        requests: Sent, of whatever kind, also anew with a renewed URL; without redirects.
        retries: Of them those that asked again, after an error or a broken body.
        throttled: Answered with 429 or 503.
        hedges: Sent beside a slow one, for the same bytes.
        cached: Shards that were read while a cache on disk downloaded them.
    """

    requests: int = 0
    retries: int = 0
    throttled: int = 0
    hedges: int = 0
    cached: int = 0


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls of a function on threads of their own.

    Attributes:
        took_s: How long they took, all together.
        cpu_s: How much of the processor's time.
        delay_s: How long they were ready to run and had no processor.
    """

    took_s: float
    cpu_s: float
    delay_s: float = 0.0


@dataclass(frozen=True)
class Maker:
    """Where the time of one who makes batches has gone.

    Attributes:
        worker: Its number; 0 without workers, where a thread of this process makes them.
        stages_s: Seconds by stage. Each moment is of one stage, so that together they are the time that has
            passed since the maker began and until it told of it, with a batch at most 0.1 s ago.
        calls: Of functions that run on threads of their own, by stage.
        wants_memory: Whether reading further ahead was held up by ``memory_limit`` when it told last.
        cpu_s: Of the processor's time, by the maker's own thread; ``calls`` are not in it.
    """

    worker: int
    stages_s: Mapping[str, float]
    calls: Mapping[str, Calls] = field(default_factory=dict)
    wants_memory: bool = False
    cpu_s: float = 0.0


@dataclass(frozen=True)
class Totals:
    """What several passes of a loader come to, together.

    Attributes:
        batches: Delivered.
        samples: In those batches.
        tokens: Likewise.
        size_bytes: Likewise.
        elapsed_s: From the beginning of each pass to its end.
        wait_s: How long the consumer has waited in that time.
        network: What it took to get them.
        worker_restarts: How many workers have died and were replaced.
        stages_s: Seconds by stage, of all who make batches together.
    """

    batches: int = 0
    samples: int = 0
    tokens: int = 0
    size_bytes: int = 0
    elapsed_s: float = 0.0
    wait_s: float = 0.0
    network: Network = field(default_factory=Network)
    worker_restarts: int = 0
    stages_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, repr=False)
class Statistics:
    """Counts and times of a loader's latest pass, as they were when one asked for them.

    Nothing in it changes afterwards: ask again. Times are in seconds, and points in time count from the
    pass's beginning. ``as_dict()`` is plain JSON.

    Attributes:
        state: ``"none"`` before the first pass, of which all else is 0 or empty; ``"running"``; ``"ended"``
            at the pass's end, and when it was left or closed before.
        passes: How many passes the loader has begun, this one among them.
        epoch: Number of the pass's epoch; None where the loader has no such number.
        batches: Delivered.
        samples: In those batches.
        tokens: In those batches, without padding, as far as their batching counts them.
        size_bytes: Bytes of tensors, arrays, strings and byte strings in them, and 8 for each number; of long
            lists within a batch an estimate.
        elapsed_s: Since the pass began, and until it ended.
        wait_s: How long the consumer has waited: for the pass to start, for batches, and for the end.
        first_batch_s: When the first batch was delivered; None before.
        components: Samples of each component of a mixture, by its name; empty for other datasets.
        network: What it took to get them, of all processes together.
        worker_restarts: How many workers have died and were replaced.
        skipped: Samples and shards that ``on_error=SkipErrors(...)`` has passed over in the epoch, also
            before a resume; some may be of batches that are ready and not yet delivered.
        empty_shards: Shards of 0 bytes that the pass has met and that no index or index says to be empty:
            text or JSON Lines without a line.
        stopped: Whether the pass was ended with batches left, in step with ranks that had no more.
        undelivered_batches: How many of these were ready then; the rank may have had more that were not
            made yet.
        undelivered_samples: In those batches.
        makers: Where the time went of those who make the batches, by the number of the worker.
        throttled_s: How long the container's quota has kept its processes from running during the pass, the
            time of all its processors together; 0 where there is no quota.
        loop_stages_s: Of torch's kinds with workers, seconds that the loop's process itself worked for the
            batches, by stage: ``"sampler"`` draws indices, ``"receiving"`` unpacks what workers have sent.
        earlier: What the passes before this one came to.
        batches_before: Of a stream, how many batches of the epoch were delivered before this pass, as the
            state that it began with says. How many samples these had, a state does not say.
        epoch_batches: Of a stream, how many batches of the epoch were delivered, those before this pass
            included, and without those of no samples that ``uneven="pad"`` adds.
        expected_batches: Of a stream, how many the rank has of the whole epoch; None where that is not known.
        expected_samples: Likewise of samples.
        is_over: Whether a stream's pass was read to its end, and no rank was stopped with batches left.
    """

    state: State = "none"
    passes: int = 0
    epoch: int | None = None
    batches: int = 0
    samples: int = 0
    tokens: int = 0
    size_bytes: int = 0
    elapsed_s: float = 0.0
    wait_s: float = 0.0
    first_batch_s: float | None = None
    components: Mapping[str, int] = field(default_factory=dict)
    network: Network = field(default_factory=Network)
    worker_restarts: int = 0
    skipped: int = 0
    empty_shards: int = 0
    stopped: bool = False
    undelivered_batches: int = 0
    undelivered_samples: int = 0
    makers: tuple[Maker, ...] = ()
    throttled_s: float = 0.0
    loop_stages_s: Mapping[str, float] = field(default_factory=dict)
    earlier: Totals = field(default_factory=Totals)
    batches_before: int = 0
    epoch_batches: int = 0
    expected_batches: int | None = None
    expected_samples: int | None = None
    is_over: bool = False

    @property
    def wait_share(self) -> float:
        """The part of the time, from 0 to 1, that the consumer has waited."""
        return min(self.wait_s / max(self.elapsed_s, 1e-9), 1.0)

    def totals(self) -> Totals:
        """What all passes of the loader come to, with this one: numbers that never become less."""
        before, network = self.earlier, self.earlier.network
        stages_s = dict(before.stages_s)
        for maker in self.makers:
            for stage, spent_s in maker.stages_s.items():
                stages_s[stage] = stages_s.get(stage, 0.0) + spent_s
        return Totals(
            before.batches + self.batches,
            before.samples + self.samples,
            before.tokens + self.tokens,
            before.size_bytes + self.size_bytes,
            before.elapsed_s + self.elapsed_s,
            before.wait_s + self.wait_s,
            Network(
                network.requests + self.network.requests,
                network.retries + self.network.retries,
                network.throttled + self.network.throttled,
                network.hedges + self.network.hedges,
                network.cached + self.network.cached,
            ),
            before.worker_restarts + self.worker_restarts,
            stages_s,
        )

    def as_dict(self) -> dict[str, Any]:
        """All of it and ``wait_share``, as a new dict of numbers, strings, bools, None, lists and dicts."""
        return {
            **asdict(self),
            "makers": [asdict(maker) for maker in self.makers],
            "wait_share": self.wait_share,
        }

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Statistics:
        """Those of which ``as_dict()`` was saved, by this version or an older one.

        Raises:
            ValueError: It is none of those.
        """
        try:
            values = {name: saved[name] for name in cls.__dataclass_fields__ if name in saved}
            values["network"] = Network(**saved.get("network", {}))
            values["earlier"] = _totals(saved.get("earlier", {}))
            values["makers"] = tuple(_maker(maker) for maker in saved.get("makers", ()))
            if "batches" not in values:
                raise TypeError("it has no batches")
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"expected a dict as Statistics.as_dict() makes it, but {error}") from None
        return cls(**values)

    def __repr__(self) -> str:
        if self.state == "none":
            return "Statistics(no pass has begun)"
        tokens = f"tokens={self.tokens}, " if self.tokens else ""
        components = f"components={self.components}, " if self.components else ""
        skipped = f", skipped={self.skipped}" if self.skipped else ""
        skipped += f", empty_shards={self.empty_shards}" if self.empty_shards else ""
        restarts = f", worker_restarts={self.worker_restarts}" if self.worker_restarts else ""
        return (
            f"Statistics(batches={self.batches}, samples={self.samples}, {components}{tokens}"
            f"size_bytes={self.size_bytes}, elapsed_s={self.elapsed_s:.3f}, wait_s={self.wait_s:.3f}, "
            f"wait_share={self.wait_share:.3f}, network={self.network}{restarts}{skipped})"
        )


def _totals(saved: Mapping[str, Any]) -> Totals:
    return Totals(**{**saved, "network": Network(**saved.get("network", {}))})


def _maker(saved: Mapping[str, Any]) -> Maker:
    calls = {stage: Calls(**spent) for stage, spent in saved["calls"].items()}
    return Maker(saved["worker"], dict(saved["stages_s"]), calls, saved["wants_memory"], saved["cpu_s"])
