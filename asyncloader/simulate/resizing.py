"""A pass that is stopped somewhere and goes on with another number of ranks: what that costs."""

from __future__ import annotations

from dataclasses import replace

from ..plan.lanes import choose_lanes, rank_lanes
from ..plan.topology import World
from .outcome import Balance, Resized
from .running import outcome_of, play
from .setting import Setting

__all__ = ["simulate_resize"]


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
    before = play(setting, most_samples=int(setting.samples * fraction))
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
        rest=outcome_of(resized, play(resized, starts)),
    )
