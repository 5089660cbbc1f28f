"""How much of an epoch each rank has, and how evenly ranks share it, where that is known beforehand."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

from ..errors import RanksError
from ..pipeline.batching import Batching
from ..pipeline.components import Composed, Recipe, innermost, is_endless, leaves_of
from ..pipeline.shards import Shards, Unit
from ..pipeline.take import Repeat, Take
from ..pipeline.zipped import Zipped
from ..plan.lanes import Cursor, Deal, Row, UnknownCount, rank_lanes
from ..plan.topology import World
from ..stores.globs import has_special
from ..stores.names import Braces, ShardNames
from ..stores.urls import redact, scheme_of
from .in_step import Rest


@dataclass(frozen=True)
class EpochLengths:
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


# How evenly ranks are dealt an epoch, as far as that is known before it is read.

# By how much ranks may differ: the default policy leaves out less than that.
_MOST_APART = 0.02

# Names of shards in a command; more are told by a glob where one means them.
_MOST_NAMED = 4


def check_shares(recipe: Recipe, world: World, lane_count: int, epoch: int) -> None:
    """Refuse an epoch of which ranks that stop together may leave out much.

    Sources of the user's own are let through, and so are recipes that never end, or that end with ``.take``,
    which says how much there is. Pure, so that all ranks raise, or none.

    Args:
        recipe: What is read.
        world: The rank.
        lane_count: Lanes of all ranks together.
        epoch: Its number.

    Raises:
        RanksError: The shares of ranks differ by more than 2 %, or are not known.
    """
    leaves = [leaf for leaf in leaves_of(recipe) if isinstance(leaf, Shards)]
    if world.size == 1 or len(leaves) < len(leaves_of(recipe)) or is_endless(recipe):
        return
    if any(isinstance(op, Take) for op in recipe.ops):
        return
    deal = Deal(tuple(range(lane_count)), lane_count, epoch, recipe.order_seed)
    found = _weigh(recipe, deal)
    count = sum(len(leaf.urls) for leaf in leaves)
    if found is None:
        why = (
            f"the {world.size} ranks share {count} shards whose sizes are not known, so that one may run out "
            "of data long before the others"
        )
    else:
        lanes, unit = found
        shares = [sum(lanes[rank :: world.size]) for rank in range(world.size)]
        least, most = min(shares), max(shares)
        if not math.isfinite(most) or most - least <= _MOST_APART * most:
            return
        by = "" if unit == "samples" else ", by the sizes of the shards"
        why = (
            f"the {world.size} ranks are dealt unequal shares of {count} shards: rank {shares.index(least)} "
            f"would run out after {math.floor(100 * world.size * least / sum(shares))} % of the data{by}"
        )
    raise RanksError(
        f'{why}, and ranks that end together leave out the rest. {_index_hint(leaves)} uneven="pad", '
        'under which ranks that have run out get empty batches and nothing is left out; or uneven="stop", '
        "under which the rest is left out",
        rank=world.rank,
    )


def dealt_as(recipe: Recipe, described: Mapping[str, Any]) -> Recipe:
    """The recipe, with whole shards dealt as a state says that they were: by their sizes, or in turn.

    Args:
        recipe: As it was made.
        described: What the state says of the recipe, if it is of this one.
    """
    source = recipe.source
    if isinstance(source, Shards):
        return replace(recipe, source=source.dealt_as(described))
    told = described.get("components")
    if isinstance(source, Composed) and isinstance(told, list) and len(told) == len(source.recipes):
        pairs: Any = zip(source.recipes, told, strict=True)
        recipes = tuple(dealt_as(part, of if isinstance(of, Mapping) else {}) for part, of in pairs)
        return replace(recipe, source=replace(source, recipes=recipes))
    return recipe


def _weigh(recipe: Recipe, deal: Deal) -> tuple[Sequence[float], Unit] | None:
    """How much each lane is dealt, and of what; None where nobody knows."""
    try:
        return recipe.count_samples(deal), "samples"
    except UnknownCount:
        pass
    units: tuple[Unit, ...] = ("samples", "bytes")
    for unit in units:
        if (lanes := _weigh_sources(recipe, deal, unit)) is not None:
            return lanes, unit
    return None


def _weigh_sources(recipe: Recipe, deal: Deal, unit: Unit) -> list[float] | None:
    """How much of its shards each lane is dealt, whatever operators make of it."""
    source = recipe.source
    if isinstance(source, Shards):
        return source.weigh_lanes(deal, unit)
    assert isinstance(source, Composed), "the other sources are the user's own"
    parts = source.recipes[:1] if isinstance(source, Zipped) else source.recipes
    weighed = [_weigh_sources(part, source.deal_of(nth, deal), unit) for nth, part in enumerate(parts)]
    known = [lanes for lanes in weighed if lanes is not None]
    return [sum(lane) for lane in zip(*known, strict=True)] if len(known) == len(weighed) else None


def _index_hint(leaves: Sequence[Shards]) -> str:
    """How to make ranks share shards, where that helps."""
    unindexed = [leaf for leaf in leaves if leaf.cuts and not leaf.is_indexed and leaf.index is None]
    if not unindexed:
        return "Say"
    names = [*chain.from_iterable(map(_shown, unindexed))]
    output = "" if all(scheme_of(name).is_local for name in names) else " -o asyncloader-index.json"
    more = f" ... ({len(names)} names)" if len(names) > _MOST_NAMED else ""
    command = f"asyncloader index {' '.join(map(shlex.quote, names[:_MOST_NAMED]))}{more}{output}"
    given = " and is given as index=" if output else ""
    return f"Build an index, by which ranks share shards equally ({command} makes it{given}); or say"


def _shown(shards: Shards) -> list[str]:
    """The shards as a command may name them: by their patterns, or by a glob where they are many."""
    names: list[str] = []
    for part in shards.urls.parts if isinstance(shards.urls, ShardNames) else (shards.urls,):
        names += [redact(part.pattern)] if isinstance(part, Braces) else map(redact, part)
    if len(names) <= _MOST_NAMED or scheme_of(names[0]).is_web or any(map(has_special, names)):
        return names
    if len({name.rpartition("/")[0] for name in names}) > 1:
        return names
    first = _common_start(names)
    last = _common_start([name[len(first) :][::-1] for name in names])[::-1]
    return [f"{first}*{last}"]


def _common_start(names: Sequence[str]) -> str:
    """What all names begin with: the first and the last one in order differ earliest."""
    low, high = min(names), max(names)
    pairs = enumerate(zip(low, high, strict=False))
    return low[: next((at for at, (one, other) in pairs if one != other), len(low))]
