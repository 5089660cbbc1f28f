"""How much an epoch of a stream has for one rank, where that is known beforehand."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from ..ops.batching import Batching
from ..ops.take import Repeat
from ..plan.counts import Deal, UnknownCount
from ..plan.cursor import Cursor, Row
from ..plan.lanes import rank_lanes
from ..plan.topology import World
from ..run.in_step import Rest
from ..sources.components import Recipe, innermost, leaves_of
from ..sources.shards import Shards

__all__ = ["Lengths", "if_empty_of"]


@dataclass(frozen=True)
class Lengths:
    """The lengths of a rank's epochs.

    Args:
        recipe: What is read.
        batching: What makes its batches.
        world: The rank.
        lane_count: Lanes of all ranks together.
        skips: Whether samples may be skipped, which nobody knows the number of.
    """

    recipe: Recipe
    batching: Batching
    world: World
    lane_count: int
    skips: bool

    def batches(self, epoch: int) -> int:
        """The rank's batches; raises TypeError with the reason where they are not known."""
        try:
            if self.skips:
                raise UnknownCount(
                    "how many samples on_error=SkipErrors(...) passes over is not known beforehand"
                )
            return self.batching.count_batches(partial(self._of_lanes, epoch))
        except UnknownCount as why:
            advice = "Count batches as they come"
            if self.batching.samples_per_batch is not None:
                advice += ", or say with .take(n) at the dataset's end how many samples an epoch has"
            raise TypeError(f"the length of this loader is not known: {why}. {advice}") from None

    def known_batches(self, epoch: int) -> int | None:
        """The rank's batches; None where they are not known."""
        try:
            return self.batches(epoch)
        except TypeError:
            return None

    def known_samples(self, epoch: int) -> int | None:
        """The rank's samples; likewise, and where there is no end of them."""
        try:
            samples = sum(self._of_lanes(epoch))
        except UnknownCount:
            return None
        return None if math.isinf(samples) else int(samples)

    def rest(self, cursor: Cursor) -> Rest:
        """What the rank has behind ``cursor``."""
        counts, size = self._known_lanes(cursor.epoch), self.batching.samples_per_batch
        if counts is None or size is None:
            return Rest(None, None, self._unread_shards(cursor))
        rows = [cursor.rows.get(lane, Row()) for lane in cursor.lanes]
        left = sum(self._left_in(count, row, size) for count, row in zip(counts, rows, strict=True))
        return Rest(left, int(sum(counts)), None)

    def _left_in(self, count: float, row: Row, size: int) -> int:
        """How many samples of a lane are behind its row, of those that are in any batch."""
        in_batches = min(int(count), size * self.batching.count_batches(lambda: [count]))
        return 0 if row.done else max(0, in_batches - size * row.batches)

    def _known_lanes(self, epoch: int) -> list[float] | None:
        """The samples of each of the rank's lanes; None where they are not known, or have no end."""
        try:
            counts = [math.inf] if self.skips else self._of_lanes(epoch)
        except UnknownCount:
            return None
        return None if math.inf in counts else counts

    def _unread_shards(self, cursor: Cursor) -> int | None:
        """How many shards of the rank are not read to their ends; None where that is not known."""
        source = self.recipe.source
        if not isinstance(source, Shards) or any(isinstance(op, Repeat) for op in self.recipe.ops):
            return None
        rows = ((lane, cursor.rows.get(lane, Row())) for lane in cursor.lanes)
        return sum(
            source.count_unread(*innermost(self.recipe, row.position, self._deal((lane,), cursor.epoch)))
            for lane, row in rows
            if not row.done
        )

    def _deal(self, lanes: tuple[int, ...], epoch: int) -> Deal:
        return Deal(lanes, self.lane_count, epoch, self.recipe.order_seed)

    def _of_lanes(self, epoch: int) -> list[float]:
        lanes = tuple(rank_lanes(self.lane_count, self.world))
        return self.recipe.count_samples(self._deal(lanes, epoch))


def if_empty_of(recipe: Recipe) -> str | None:
    """What to say of an epoch without a batch, if the user may be mistaken about it."""
    shards = [source for source in leaves_of(recipe) if isinstance(source, Shards)]
    filters = {str(source.selection.filters) for source in shards if source.selection.filters is not None}
    if not filters:
        return None
    return (
        f"an epoch had no batch: filters={' and '.join(sorted(filters))} kept no row of the shards that this "
        "rank reads, or too few for a batch; compare them with the values there are"
    )
