"""What limits a simulated rank, by the rule that judges a pass."""

from __future__ import annotations

from ..report import Report, Setup, judge
from ..statistics import Maker, Network, Statistics
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
