"""``.filter``: keep the samples for which a function says yes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress
from time import perf_counter
from typing import Any

import numpy as np

from ..blocks import Block
from ..plan.counts import Counter, Deal, UnknownCount
from ..types import Position
from .checks import check_plain
from .draws import SampleCalls
from .op import PIECE_SAMPLES, Blocks, Lane, Opener, Rounds, name_of, note_sample, shown
from .pieces import cut, next_size
from .skips import Applied, apply

__all__ = ["Filter"]


@dataclass(frozen=True)
class Filter:
    """Keep the samples for which ``predicate(sample)`` is true.

    Args:
        predicate: A plain function. It must give the same answer when asked again, since resuming
            inside a shuffle window asks again.
    """

    predicate: Callable[[Any], object]

    def __post_init__(self) -> None:
        hint = "; put its answer into the sample with .map, then filter by that field"
        check_plain("filter", self.predicate, "one sample", hint)

    def open(self, upstream: Opener, start: Position, lane: Lane) -> Blocks:
        attempts, during = lane.attempts(start), shown(self)
        size = 1  # of the next piece
        rounds = Rounds(lane.rounds)

        def most() -> int:
            return size

        with closing(upstream(start, replace(lane, columns=False, rounds=rounds))) as blocks:
            for block in blocks:
                for piece in cut(block, most):
                    lane.engine.check()
                    began_s = perf_counter()
                    applied = self._apply(piece, lane)
                    in_a_second = len(piece) / max(perf_counter() - began_s, 1e-9)
                    size = next_size(size, PIECE_SAMPLES, in_a_second)
                    if applied.failure is None:
                        rounds.kept(len(applied.made), len(piece), during, lane.topology.lanes)
                    yield from applied.hand_on(attempts, during)
                    del applied

    def count_samples(self, upstream: Counter, deal: Deal) -> list[float]:
        raise UnknownCount(f"{shown(self)} does not say how many samples it keeps")

    def describe(self) -> Mapping[str, Any]:
        return {"op": "filter", "fn": name_of(self.predicate)}

    def _tell(self, lane: Lane, block: Block, asked: Sequence[int], answers: Sequence[object]) -> None:
        """Say which samples go no further."""
        if lane.leaves_out is not None:
            gone = [index for index, answer in zip(asked, answers, strict=True) if not answer]
            lane.leave_out(shown(self), block, np.array(gone, np.int64))

    def _apply(self, block: Block, lane: Lane) -> Applied:
        if lane.skips is not None:
            results, good, failed = apply(self.predicate, block, partial(SampleCalls, lane, block.trail))
            yes = [nth for nth, answer in enumerate(results) if answer]
            made = block.take([good[nth] for nth in yes])
            self._tell(lane, block, good, results)
            return Applied(block, len(block), made, None, failed, yes)
        failure: Exception | None = None
        answers: list[bool] = []
        try:
            with SampleCalls(lane, block.trail, answers):
                for sample in block.rows():
                    answers.append(True if self.predicate(sample) else False)  # noqa: SIM210  # half of bool()'s time
        except Exception as error:
            note_sample(error, shown(self), block, len(answers))
            failure = error
        kept = list(compress(range(len(answers)), answers))
        self._tell(lane, block, range(len(answers)), answers)
        made = block if len(kept) == len(block) else block.take(kept)
        return Applied(block, len(answers), made, failure)
