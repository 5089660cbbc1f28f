"""One simulated pass, from its setting to its outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .outcome import Balance, Outcome
from .setting import Setting
from .shares import LaneStart, count_lanes, deal_shares
from .timeline import Timeline
from .training import Training
from .verdict import judge_rank

__all__ = ["Played", "outcome_of", "play", "simulate"]


@dataclass(frozen=True)
class Played:
    """A pass that was played to its end, or as far as was asked.

    Attributes:
        training: As it was then.
        elapsed_s: How long it took.
        left_samples: Of each lane, when it began.
    """

    training: Training
    elapsed_s: float
    left_samples: Mapping[int, int]


def simulate(setting: Setting) -> Outcome:
    """The pass that a setting comes to.

    Args:
        setting: Shards, link, work, processes, and who takes the batches.

    Returns:
        How fast it goes, what limits it, and what it takes.
    """
    return outcome_of(setting, play(setting))


def play(
    setting: Setting, starts: Mapping[int, LaneStart] | None = None, most_samples: int | None = None
) -> Played:
    """Play a pass.

    Args:
        setting: What is simulated.
        starts: Where lanes begin that are not at their first samples.
        most_samples: Stop after the step that delivers so many; None for the end.
    """
    starts = starts or {}
    timeline = Timeline()
    training = Training(timeline, setting, deal_shares(setting, starts), starts, most_samples)
    training.begin()
    timeline.run()
    counts = count_lanes(setting, is_indexed=setting.is_indexed)
    left = {lane: count - starts.get(lane, LaneStart()).samples for lane, count in enumerate(counts)}
    return Played(training, timeline.now_s, left)


def outcome_of(setting: Setting, played: Played) -> Outcome:
    """What a pass came to."""
    training, elapsed_s = played.training, played.elapsed_s
    ranks, first_batch_s = training.ranks, training.first_batch_s
    samples = sum(rank.samples for rank in ranks)
    # The first batches were there when the time began that counts; alone, they are all there is.
    batches = max(rank.batches for rank in ranks)
    start_s = (first_batch_s or 0.0) if batches > 1 else 0.0
    counted_s = max(elapsed_s - start_s, 1e-9)
    counted = samples - (training.first_samples if batches > 1 else 0)
    report = judge_rank(setting, max(ranks, key=lambda rank: rank.was_last), first_batch_s, elapsed_s)
    whole, indexed = (count_lanes(setting, is_indexed=is_indexed) for is_indexed in (False, True))
    waits = [max(rank.wait_s - start_s, 0.0) / counted_s for rank in ranks]
    return Outcome(
        samples=samples,
        batches=sum(rank.batches for rank in ranks),
        undelivered_samples=sum(played.left_samples.values()) - samples,
        elapsed_s=elapsed_s,
        first_batch_s=first_batch_s,
        samples_per_s=counted / counted_s,
        rank_samples_per_s=Balance.of(rank.samples / max(samples, 1) * counted / counted_s for rank in ranks),
        wait_share=min(sum(waits) / len(waits), 1.0),
        limit=report.limit,
        told=report.lines[1],
        shares=report.shares,
        lane_samples=Balance.of(played.left_samples.values()),
        lane_samples_whole=Balance.of(whole),
        lane_samples_indexed=Balance.of(indexed),
        peak_bytes=max(int(rank.holding.most_bytes) for rank in ranks),
        received_bytes=sum(maker.received_bytes for rank in ranks for maker in rank.makers),
        requests=sum(maker.requests.count for rank in ranks for maker in rank.makers),
    )
