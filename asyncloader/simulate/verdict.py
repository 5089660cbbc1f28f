"""What limits a simulated rank, by the rule that judges a pass."""

from __future__ import annotations

from ..progress import NetworkCounts, Statistics
from ..report import Report, Setup, judge
from ..stopwatch import Spent
from .setting import Setting
from .training import Rank

__all__ = ["judge_rank"]


def judge_rank(setting: Setting, rank: Rank, first_batch_s: float | None, elapsed_s: float) -> Report:
    """The verdict on a rank.

    Args:
        setting: What was simulated.
        rank: Which has come to its end.
        first_batch_s: When it got its first batch; None if it got none.
        elapsed_s: How long the pass took.
    """
    statistics = Statistics(
        batches=rank.batches,
        samples=rank.samples,
        size_bytes=int(rank.batches * setting.batch_bytes),
        wait_s=rank.wait_s,
        network=NetworkCounts(requests=sum(maker.requests.count for maker in rank.makers)),
        spent={
            number: Spent(maker.stages_s, {}, maker.wants_memory) for number, maker in enumerate(rank.makers)
        },
        first_batch_s=first_batch_s,
        started_s=0.0,
        ended_s=elapsed_s,
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
