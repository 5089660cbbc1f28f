"""The source that takes a sample of each of several recipes at a time and makes one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..blocks import Block, Columns, Indices, Place, Provenance, Rows, Trail
from ..flow.budget import Portion
from ..plan.lanes import Deal
from ..types import Position
from .components import Composed, Feed, of_component
from .lane import Blocks, Lane

# What tar samples have beside their fields: of the first component alone.
_OWN = frozenset(("__key__", "__url__"))


@dataclass(frozen=True, repr=False)
class Zipped(Composed):
    """Samples of several recipes, side by side.

    Args:
        named: Whether each stands under its component's name; else their fields are put together.
        strict: Whether all components must end together in each lane.
    """

    named: bool
    strict: bool

    kind = "zip"
    is_counted = False

    def open(self, start: Position, lane: Lane) -> Blocks:
        self._check_shards(lane)
        saved = start.get("of", {})
        count = len(self.recipes)
        with ExitStack() as stack:
            feeds = [Feed(self, number, lane, 1 / count, saved.get(str(number))) for number in range(count)]
            for feed in feeds:
                stack.callback(feed.close)
            while self._pull(feeds, lane):
                together = min(feed.held for feed in feeds)
                parts = [feed.take(together) for feed in feeds]
                merged = self._merge(parts)
                del parts
                yield merged
                del merged

    @property
    def most_lanes(self) -> int | None:
        return min((count for count in self.lane_counts() if count is not None), default=None)

    @property
    def is_endless(self) -> bool:
        return all(self.endless())

    def drawn_as(self, number: int) -> int:
        """All alike: what is side by side stays so where both are shuffled by one seed."""
        return 0

    def lane_of(self, number: int, lane: Lane, share: float) -> tuple[Lane, Portion]:
        """One in which nothing is skipped: what comes behind it would be put together wrongly."""
        mine, portion = super().lane_of(number, lane, share)
        return replace(mine, skips=None), portion

    def first_lane(self, number: int) -> int:
        """All alike: shards of the same place go to the same lane."""
        return 0

    def count_samples(self, deal: Deal) -> list[float]:
        return [min(of_lane) for of_lane in zip(*self.counts_of(deal), strict=True)]

    def describe(self) -> Mapping[str, Any]:
        return {**super().describe(), "named": self.named, "strict": self.strict}

    def _pull(self, feeds: Sequence[Feed], lane: Lane) -> bool:
        """Wait until there is a sample of each; says whether there is."""
        for feed in feeds:
            if not feed.held and not feed.pull():
                if self.strict:
                    self._check_end(feeds, lane)
                return False
        return True

    def _check_end(self, feeds: Sequence[Feed], lane: Lane) -> None:
        has_more = [bool(feed.held or feed.pull()) for feed in feeds]
        if any(has_more):
            longer = [name for name, more in zip(self.names, has_more, strict=True) if more]
            ended = [name for name, more in zip(self.names, has_more, strict=True) if not more]
            raise ValueError(
                f"expected as many samples of each component of zip_datasets in lane {lane.topology.lane} of "
                f"{lane.topology.lanes}, but {', '.join(map(repr, ended))} ended before "
                f"{', '.join(map(repr, longer))}; the samples before may have been put together wrongly. "
                "Give shards with equal numbers of samples, or strict=False to leave the rest out"
            )

    def _check_shards(self, lane: Lane) -> None:
        counts = {count for count in self.lane_counts() if count is not None}
        if len(counts) > 1 and lane.topology.lanes > 1:
            of_each = ", ".join(
                f"{name!r} has {count}" for name, count in zip(self.names, self.lane_counts(), strict=True)
            )
            raise ValueError(
                f"zip_datasets in {lane.topology.lanes} lanes needs as many shards of each component, so "
                f"that lanes are dealt those that belong together, but {of_each}; write them alike, or read "
                "them in one lane (lanes=1, on one rank)"
            )

    def _merge(self, parts: list[Block]) -> Block:
        trail = _ZippedTrail([part.trail for part in parts])
        if self.named:
            rows = zip(*(part.rows() for part in parts), strict=True)
            return Rows([dict(zip(self.names, row, strict=True)) for row in rows], trail)
        columns = [part.fields for part in parts if isinstance(part, Columns)]
        if len(columns) == len(parts):
            fields = {name: column for of_part in columns for name, column in of_part.items()}
            if len(fields) == sum(map(len, columns)):
                return Columns(fields, trail)
        of_parts = [part.rows() for part in parts]
        samples = [
            self._merge_row(row, index, trail) for index, row in enumerate(zip(*of_parts, strict=True))
        ]
        return Rows(samples, trail)

    def _merge_row(self, row: tuple[Any, ...], index: int, trail: _ZippedTrail) -> dict[str, Any]:
        try:
            merged = {name: value for sample in reversed(row) for name, value in sample.items()}
        except AttributeError:
            raise TypeError(
                f"expected samples that are mappings, to put their fields together, but found "
                f"{' and '.join(type(sample).__name__ for sample in row)} at {trail.place(index)}; "
                "name the components, al.zip_datasets({name: dataset}), to have each sample under its name"
            ) from None
        if len(merged) != sum(map(len, row)):
            self._check_clash(row, index, trail)
        return merged

    def _check_clash(self, row: tuple[Any, ...], index: int, trail: _ZippedTrail) -> None:
        """Refuse fields that are in several samples, and samples of several keys."""
        names = [name for sample in row for name in sample]
        clash = sorted({str(name) for name in names if names.count(name) > 1} - _OWN)
        if clash:
            raise ValueError(
                f"expected samples without a field in common, but found {clash} in several at "
                f"{trail.place(index)}; .rename them, or name the components, "
                "al.zip_datasets({name: dataset})"
            )
        keys = [sample["__key__"] for sample in row if "__key__" in sample]
        if len(set(keys)) > 1:
            raise ValueError(
                f"expected samples of one key, to put their fields together, but found {keys} at "
                f"{trail.place(index)}; are the shards of one order? Name the components, "
                "al.zip_datasets({name: dataset}), if the keys need not be equal"
            )


@dataclass(slots=True)
class _ZippedTrail(Trail):
    """Positions of samples that are each made of several.

    Args:
        trails: Of each component's; the first one tells the places.
    """

    trails: Sequence[Trail]

    def after(self, index: int) -> Position:
        return {"of": {str(number): trail.after(index) for number, trail in enumerate(self.trails)}}

    def place(self, index: int) -> Place:
        return self.trails[0].place(index)

    def components(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.zeros(len(indices), np.int64)

    def provenance(self, indices: Indices) -> Provenance:
        return of_component(0, self.trails[0].provenance(indices))

    def table(self) -> tuple[Provenance, tuple[int, ...]]:
        found, order = self.trails[0].table()
        return of_component(0, found), order
