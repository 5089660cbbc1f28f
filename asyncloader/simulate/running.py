"""One simulated pass, from its setting to its outcome; and one that goes on with another number of ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..plan.lanes import choose_lanes, rank_lanes
from ..plan.topology import World
from ..report import Report, Setup, judge
from ..statistics import Maker, Network, Statistics
from .outcome import Balance, Outcome, Resized
from .setting import Setting
from .shares import LaneStart, count_lanes, deal_shares
from .timeline import Timeline
from .training import Rank, Training

__all__ = ["simulate", "simulate_resize"]


@dataclass(frozen=True)
class _Played:
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
    return _outcome_of(setting, _play(setting))


def _play(
    setting: Setting, starts: Mapping[int, LaneStart] | None = None, most_samples: int | None = None
) -> _Played:
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
    return _Played(training, timeline.now_s, left)


def _outcome_of(setting: Setting, played: _Played) -> Outcome:
    """What a pass came to."""
    training, elapsed_s = played.training, played.elapsed_s
    ranks, first_batch_s = training.ranks, training.first_batch_s
    samples = sum(rank.samples for rank in ranks)
    # The first batches were there when the time began that counts; alone, they are all there is.
    batches = max(rank.batches for rank in ranks)
    start_s = (first_batch_s or 0.0) if batches > 1 else 0.0
    counted_s = max(elapsed_s - start_s, 1e-9)
    counted = samples - (training.first_samples if batches > 1 else 0)
    report = _judge(setting, max(ranks, key=lambda rank: rank.was_last), first_batch_s, elapsed_s)
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


def _judge(setting: Setting, rank: Rank, first_batch_s: float | None, elapsed_s: float) -> Report:
    """The verdict on a rank, by the rule that judges a pass.

    Args:
        setting: What was simulated.
        rank: Which has come to its end.
        first_batch_s: When it got its first batch; None if it got none.
        elapsed_s: How long the pass took.
    """
    statistics = Statistics(
        state="ended",
        passes=1,
        epoch=0,
        batches=rank.batches,
        samples=rank.samples,
        size_bytes=int(rank.batches * setting.batch_bytes),
        elapsed_s=elapsed_s,
        wait_s=rank.wait_s,
        first_batch_s=first_batch_s,
        network=Network(requests=sum(maker.requests.count for maker in rank.makers)),
        makers=tuple(
            Maker(worker, maker.stages_s, wants_memory=maker.wants_memory)
            for worker, maker in enumerate(rank.makers)
        ),
    )
    return judge(statistics, _setup_of(setting))


def _setup_of(setting: Setting) -> Setup:
    return Setup(
        num_workers=setting.num_workers,
        in_order=True,
        concurrency={op.name: op.concurrency for op in setting.operators},
        coroutines=(),
        processors=max(setting.num_workers, 1),
        caches=False,
        is_local=False,
        is_indexed=setting.is_indexed,
        has_ranks=False,  # it is the one that the others wait for
    )


def simulate_resize(setting: Setting, ranks: int, fraction: float) -> Resized:
    """Stop a pass, and let other ranks go on from its state.

    Args:
        setting: What begins.
        ranks: How many go on. The lanes stay as they are.
        fraction: How much of the epoch's samples is delivered by then, between 0 and 1.

    Returns:
        What is read again, how the rest is dealt, and how it goes.

    Raises:
        ValueError: The fraction is not between 0 and 1, or the lanes cannot be split evenly over the ranks;
            the message lists the numbers that can.
    """
    if not 0 < fraction < 1:
        raise ValueError(f"the fraction of the epoch should be between 0 and 1, but got {fraction}")
    lane_count = choose_lanes(setting.lane_count, World(0, ranks), setting.num_workers)
    before = _play(setting, most_samples=int(setting.samples * fraction))
    starts = {lane: start for rank in before.training.ranks for lane, start in rank.lanes.items()}
    samples = sum(rank.samples for rank in before.training.ranks)
    received = sum(maker.received_bytes for rank in before.training.ranks for maker in rank.makers)
    # Of an open window all samples are made again, also those that were delivered.
    reopened = sum(start.samples % setting.window for start in starts.values()) if setting.window else 0
    sample_bytes = setting.size_bytes / max(setting.samples, 1)
    again_bytes = max(received - (samples - reopened) * sample_bytes, 0.0)
    left = {lane: count - starts[lane].samples for lane, count in before.left_samples.items()}
    resized = replace(setting, ranks=ranks, lanes=lane_count)
    mine = [rank_lanes(lane_count, World(rank, ranks)) for rank in range(ranks)]
    return Resized(
        ranks=ranks,
        samples_before=samples,
        read_again_bytes=int(again_bytes),
        lane_samples_left=Balance.of(left.values()),
        rank_samples_left=Balance.of(sum(left[lane] for lane in lanes) for lanes in mine),
        rest=_outcome_of(resized, _play(resized, starts)),
    )
