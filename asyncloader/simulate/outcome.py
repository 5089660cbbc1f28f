"""What a simulated pass comes to, and what a resize of it costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Balance", "Outcome", "Resized"]


@dataclass(frozen=True)
class Balance:
    """How evenly something is dealt.

    Attributes:
        least: What the one has that has the least.
        most: And the most.
    """

    least: float
    most: float

    @classmethod
    def of(cls, each: Iterable[float]) -> Balance:
        """That of several."""
        values = [*each]
        return cls(min(values), max(values))


@dataclass(frozen=True)
class Outcome:
    """A pass that was simulated. ``as_dict()`` is plain JSON.

    Attributes:
        samples: Delivered, over all ranks.
        batches: In which they were.
        undelivered_samples: Left when the first rank had no more, and dropped with short batches.
        elapsed_s: Seconds from the first request to the last step's end.
        first_batch_s: When all ranks had their first batches; None if there was none.
        samples_per_s: Over all ranks, from the first batches on.
        rank_samples_per_s: Likewise, of the rank with the fewest and the one with the most.
        wait_share: The part of the time, from 0 to 1, that ranks have waited since the first batches.
        limit: What limits, in the words of ``loader.report().limit``, at the rank that others wait for.
        told: The same in a line.
        shares: What those who make batches did there, by stage: parts of their time that add up to 1.
        lane_samples: Of the lanes, as they are.
        lane_samples_whole: Of the lanes, if each shard went to one of them as a whole.
        lane_samples_indexed: Of the lanes, if an index cut them.
        peak_bytes: The most that a rank held at a time: bytes on their way, windows, batches that wait.
        received_bytes: Of all ranks.
        requests: Likewise.
    """

    samples: int
    batches: int
    undelivered_samples: int
    elapsed_s: float
    first_batch_s: float | None
    samples_per_s: float
    rank_samples_per_s: Balance
    wait_share: float
    limit: str
    told: str
    shares: Mapping[str, float]
    lane_samples: Balance
    lane_samples_whole: Balance
    lane_samples_indexed: Balance
    peak_bytes: int
    received_bytes: int
    requests: int

    def as_dict(self) -> dict[str, Any]:
        """All of it as a new dict of numbers, strings, None and dicts."""
        return asdict(self)


@dataclass(frozen=True)
class Resized:
    """A pass that was stopped and went on with another number of ranks. ``as_dict()`` is plain JSON.

    Attributes:
        ranks: Those that go on.
        samples_before: Delivered when it was stopped.
        read_again_bytes: Received by then and not delivered, which are read a second time.
        lane_samples_left: Of the lanes, when it was stopped.
        rank_samples_left: Of the ranks that go on.
        rest: The simulated rest of the pass.
    """

    ranks: int
    samples_before: int
    read_again_bytes: int
    lane_samples_left: Balance
    rank_samples_left: Balance
    rest: Outcome

    def as_dict(self) -> dict[str, Any]:
        """All of it as a new dict of numbers, strings, None and dicts."""
        return asdict(self)
