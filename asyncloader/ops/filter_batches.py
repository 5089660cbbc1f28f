"""``.filter_batches``: keep the samples that a function of many at once says yes to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..blocks import Block, array_of, column_of, columns_of
from ..plan.counts import Counter, Deal, UnknownCount
from ..quantity import as_counts
from ..types import Position
from .checks import check_plain
from .chunks import hand_on, open_chunks
from .draws import SampleCalls
from .op import Blocks, Lane, Opener, Rounds, name_of, note_batch, shown

__all__ = ["FilterBatches"]


@dataclass(frozen=True)
class FilterBatches:
    """Keep of chunks of ``batch_size`` samples those that ``predicate(columns)`` is true for.

    Args:
        predicate: Any callable of a dict of columns that gives a boolean mask. It must give the same one when
            asked again, since resuming inside a chunk asks again.
        batch_size: Samples of a chunk; the last one of a lane may have fewer.
    """

    predicate: Callable[[dict[str, Any]], Any]
    batch_size: int

    def __post_init__(self) -> None:
        check_plain("filter_batches", self.predicate, "columns")
        as_counts(self, "batch_size")

    def open(self, upstream: Opener, start: Position, lane: Lane) -> Blocks:
        rounds = Rounds(lane.rounds)
        source = replace(lane, rounds=rounds)
        with closing(open_chunks(upstream, start, self.batch_size, source)) as chunks:
            for chunk in chunks:
                mask = self._ask(chunk.samples, lane)
                if lane.leaves_out is not None:
                    lane.leave_out(shown(self), chunk.samples, np.flatnonzero(~mask))
                block = chunk.samples if mask.all() else chunk.samples.take(np.flatnonzero(mask).tolist())
                rounds.kept(len(block), len(chunk.samples), shown(self), lane.topology.lanes)
                yield from hand_on(chunk, block)
                del chunk, block

    def count_samples(self, upstream: Counter, deal: Deal) -> list[float]:
        raise UnknownCount(f"{shown(self)} does not say how many samples it keeps")

    def describe(self) -> Mapping[str, Any]:
        return {"op": "filter_batches", "fn": name_of(self.predicate), "batch_size": self.batch_size}

    def _ask(self, block: Block, lane: Lane) -> NDArray[np.bool_]:
        try:
            with SampleCalls(lane, block.trail, ()):
                answer = self.predicate(columns_of(block))
            return _checked(answer, len(block))
        except Exception as error:
            note_batch(error, shown(self), block.trail, len(block))
            raise


def _checked(answer: Any, count: int) -> NDArray[np.bool_]:
    mask = column_of(answer) if isinstance(answer, list) else array_of(answer)
    if not isinstance(mask, np.ndarray):
        mask = None
    elif mask.dtype == np.bool_ and mask.shape == (count,):
        return mask
    found = type(answer).__qualname__ if mask is None else f"{mask.dtype} of shape {mask.shape}"
    raise ValueError(
        f"expected the function to return a boolean mask ({count},), true for the samples to keep, "
        f"found {found}"
    )
