"""How much of an epoch each rank has, and how evenly ranks share it, where that is known beforehand."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from os.path import commonprefix
from typing import Any, NamedTuple

from ..errors import RanksError
from ..pipeline.components import Composed, Stages, Zipped, is_endless, leaves_of, source_at
from ..pipeline.filter import Filter, FilterBatches
from ..pipeline.op import shown
from ..pipeline.shards import Shards, Unit
from ..pipeline.take import Repeat, Take
from ..plan.lanes import Cursor, Deal, Row, UnknownCount, rank_lanes
from ..stores.globs import has_special
from ..stores.names import Braces, ShardNames
from ..stores.urls import redact, scheme_of
from .kind import StreamOptions


class Rest(NamedTuple):
    """What a rank has left of an epoch.

    Attributes:
        samples: How many; None where that is not known.
        of: How many it had; likewise.
        shards: In how many shards, where samples are not known; None where that is not known either.
    """

    samples: int | None
    of: int | None
    shards: int | None


def count_batches(options: StreamOptions, epoch: int) -> int:
    """The rank's batches of an epoch; raises TypeError with the reason where they are not known."""
    try:
        if options.skips is not None:
            raise UnknownCount("how many samples on_error=SkipErrors(...) skips is not known beforehand")
        return options.batching.count_batches(partial(_of_lanes, options, epoch))
    except UnknownCount as why:
        advice = "Count batches as they come"
        if options.batching.samples_per_batch is not None:
            advice += ", or end the dataset with .take(n), the number of samples of an epoch"
        raise TypeError(f"the length of this loader is not known: {why}. {advice}") from None


def known_batches(options: StreamOptions, epoch: int) -> int | None:
    """The rank's batches of an epoch; None where they are not known."""
    try:
        return count_batches(options, epoch)
    except TypeError:
        return None


def known_samples(options: StreamOptions, epoch: int) -> int | None:
    """The rank's samples of an epoch; None where they are not known, or never end."""
    try:
        samples = sum(_of_lanes(options, epoch))
    except UnknownCount:
        return None
    return None if math.isinf(samples) else int(samples)


def count_rest(options: StreamOptions, cursor: Cursor) -> Rest:
    """What the rank has behind ``cursor``."""
    size, batching = options.batching.samples_per_batch, options.batching
    try:
        counts = [math.inf] if options.skips is not None else _of_lanes(options, cursor.epoch)
    except UnknownCount:
        counts = [math.inf]
    if math.inf in counts or size is None:
        return Rest(None, None, _unread_shards(options, cursor))
    left = 0
    for lane, count in zip(cursor.lanes, counts, strict=True):
        row = cursor.rows.get(lane, Row())
        if not row.done:  # of those samples that are in a batch
            in_batches = min(int(count), size * batching.count_batches(partial(list, [count])))
            left += max(0, in_batches - size * row.batches)
    return Rest(left, int(sum(counts)), None)


def _unread_shards(options: StreamOptions, cursor: Cursor) -> int | None:
    """How many shards of the rank are not read to their ends; None where that is not known."""
    stages, source = options.stages, options.stages.source
    if not isinstance(source, Shards) or any(isinstance(op, Repeat) for op in stages.ops):
        return None
    rows = ((lane, cursor.rows.get(lane, Row())) for lane in cursor.lanes)
    return sum(
        source.count_unread(*source_at(stages, row.position, options.deal([lane], cursor.epoch)))
        for lane, row in rows
        if not row.done
    )


def _of_lanes(options: StreamOptions, epoch: int) -> list[float]:
    lanes = rank_lanes(options.lane_count, options.world)
    return options.stages.count_samples(options.deal(lanes, epoch))


def if_empty_of(stages: Stages) -> str | None:
    """The warning of an epoch without a batch, if the user may be mistaken about it."""
    shards = [source for source in leaves_of(stages) if isinstance(source, Shards)]
    found = [source.selection.filters for source in shards]
    filters = sorted({f"filters={each}" for each in found if each is not None})
    filters += [shown(op) for op in stages.all_ops if isinstance(op, Filter | FilterBatches)]
    if not filters:
        return None
    return (
        f"an epoch had no batch: {' and '.join(filters)} kept no row or sample of what this rank reads, or "
        "too few for a batch; compare what is kept with the values in the data"
    )


# How evenly ranks are dealt an epoch, as far as that is known before it is read.

# By how much ranks may differ: the default policy leaves out less than that.
_MOST_APART = 0.02

# Names of shards in a command; more are named by a glob where one matches them.
_MOST_NAMED = 4


def check_shares(options: StreamOptions, epoch: int) -> None:
    """Refuse an epoch in which ranks that stop together may leave out much.

    Sources of the user's own are accepted, and so are datasets that never end, or that end with ``.take``,
    which says how much there is. Pure, so that all ranks raise, or none.

    Args:
        options: What is read, and by which rank.
        epoch: Its number.

    Raises:
        RanksError: The shares of ranks differ by more than 2 %, or are not known.
    """
    stages, world = options.stages, options.world
    leaves = [leaf for leaf in leaves_of(stages) if isinstance(leaf, Shards)]
    if world.size == 1 or len(leaves) < len(leaves_of(stages)) or is_endless(stages):
        return
    if any(isinstance(op, Take) for op in stages.ops):
        return
    found = _weigh(stages, options.deal(range(options.lane_count), epoch))
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
        f'{why}. {_index_hint(leaves)} uneven="pad", with empty batches for ranks that have run out; or '
        'uneven="stop", which leaves the rest out',
        rank=world.rank,
    )


def dealt_as(stages: Stages, described: Mapping[str, Any]) -> Stages:
    """The dataset, with whole shards dealt as a state says that they were: by their sizes, or in turn.

    Args:
        stages: As it was made.
        described: What the state says of its dataset, if it is this one.
    """
    source = stages.source
    if isinstance(source, Shards):
        return replace(stages, source=source.dealt_as(described))
    told = described.get("components")
    if isinstance(source, Composed) and isinstance(told, list) and len(told) == len(source.parts):
        pairs: Any = zip(source.parts, told, strict=True)
        parts = tuple(dealt_as(part, of if isinstance(of, Mapping) else {}) for part, of in pairs)
        return replace(stages, source=replace(source, parts=parts))
    return stages


def _weigh(stages: Stages, deal: Deal) -> tuple[Sequence[float], Unit] | None:
    """How much each lane is dealt, and in which unit; None where that is not known."""
    try:
        return stages.count_samples(deal), "samples"
    except UnknownCount:
        units: tuple[Unit, ...] = ("samples", "bytes")
        weighed = ((_weigh_sources(stages, deal, unit), unit) for unit in units)
        return next(((lanes, unit) for lanes, unit in weighed if lanes is not None), None)


def _weigh_sources(stages: Stages, deal: Deal, unit: Unit) -> list[float] | None:
    """How much of its shards each lane is dealt, before operators change it."""
    source = stages.source
    if isinstance(source, Shards):
        return source.weigh_lanes(deal, unit)
    assert isinstance(source, Composed), "check_shares accepts other sources without weighing them"
    parts = source.parts[:1] if isinstance(source, Zipped) else source.parts
    weighed = [_weigh_sources(part, source.deal_of(nth, deal), unit) for nth, part in enumerate(parts)]
    known = [lanes for lanes in weighed if lanes is not None]
    return [sum(lane) for lane in zip(*known, strict=True)] if len(known) == len(weighed) else None


def _index_hint(leaves: Sequence[Shards]) -> str:
    """How to make ranks share shards, where that helps."""
    unindexed = [leaf for leaf in leaves if leaf.cuts and not leaf.is_indexed and not leaf.index.url]
    if not unindexed:
        return "Pass"
    names = [*chain.from_iterable(map(_shown, unindexed))]
    output = "" if all(scheme_of(name).is_local for name in names) else " -o asyncloader-index.json"
    more = f" ... ({len(names)} names)" if len(names) > _MOST_NAMED else ""
    command = f"asyncloader index {' '.join(map(shlex.quote, names[:_MOST_NAMED]))}{more}{output}"
    given = " and is given as index=" if output else ""
    return f"Build an index, by which ranks get equal shares ({command} makes it{given}); or pass"


def _shown(shards: Shards) -> list[str]:
    """The shards as a command may name them: by their patterns, or by a glob where they are many."""
    names: list[str] = []
    for part in shards.urls.parts if isinstance(shards.urls, ShardNames) else (shards.urls,):
        names += [redact(part.pattern)] if isinstance(part, Braces) else map(redact, part)
    if len(names) <= _MOST_NAMED or scheme_of(names[0]).is_web or any(map(has_special, names)):
        return names
    if len({name.rpartition("/")[0] for name in names}) > 1:
        return names
    first = commonprefix(names)  # noqa: RUF071  # by characters, as a glob needs
    last = commonprefix([name[len(first) :][::-1] for name in names])[::-1]  # noqa: RUF071  # likewise
    return [f"{first}*{last}"]
