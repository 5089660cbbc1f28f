"""Where a lane stands at a position, for messages."""

from __future__ import annotations

from ..blocks import Place
from ..plan.counts import Deal
from ..stream import Job
from ..types import Position

__all__ = ["locate"]


def locate(job: Job, lane: int, position: Position) -> Place | None:
    """The sample that a lane reads on from when it is opened at ``position``; None where it has no name."""
    repetition, inside = 0, position
    # Each operator's position is around that of what comes before it, the source's innermost.
    while "shard" not in inside and "from" in inside:
        repetition = inside.get("repetition", repetition)
        inside = inside["from"]
    deal = Deal((lane,), job.lane_count, job.epoch, job.recipe.order_seed, repetition)
    return job.recipe.source.place_at(inside, deal)
