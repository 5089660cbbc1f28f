"""The source that joins a sample of each of several components to one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from ..blocks import Block, Columns, Rows, Trail
from ..plan.lanes import Deal
from ..types import Position
from .components import Composed, Feed
from .lane import START, Blocks, Lane

# Entries of tar samples that are not fields; taken from the first component.
_OWN = frozenset(("__key__", "__url__"))


@dataclass(frozen=True, repr=False)
class Zipped(Composed):
    """Samples of several components, side by side.

    Args:
        named: Whether each is under its component's name; otherwise their fields are put together.
        strict: Whether all components must end together in each lane.
    """

    named: bool
    strict: bool

    kind = "zip"
    is_counted = False

    def open(self, start: Position, lane: Lane) -> Blocks:
        self._check_shards(lane)
        count = len(self.parts)
        saved = lane.saved(start).get("of", [START] * count)
        with ExitStack() as stack:
            feeds = [Feed(self, number, lane, 1 / count, saved[number]) for number in range(count)]
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
        """The same for all, so that components that are shuffled with the same seed stay side by side."""
        return 0

    def lane_of(self, number: int, lane: Lane, share: float) -> Lane:
        """A lane that skips no sample, since the samples after it would be paired wrongly."""
        return replace(super().lane_of(number, lane, share), skips=None)

    def first_lane(self, number: int) -> int:
        """The same for all: shards at the same place go to the same lane."""
        return 0

    def count_samples(self, deal: Deal) -> list[float]:
        return [min(of_lane) for of_lane in zip(*self.counts_of(deal), strict=True)]

    def describe(self) -> Mapping[str, Any]:
        return {**super().describe(), "named": self.named, "strict": self.strict}

    def _pull(self, feeds: Sequence[Feed], lane: Lane) -> bool:
        """Wait until there is a sample of each; return whether there is."""
        for feed in feeds:
            if not feed.held and not feed.pull():
                if self.strict:
                    self._check_end(feeds, lane)
                return False
        return True

    def _check_end(self, feeds: Sequence[Feed], lane: Lane) -> None:
        longer: list[str] = []
        ended: list[str] = []
        for name, feed in zip(self.names, feeds, strict=True):
            (longer if feed.held or feed.pull() else ended).append(name)
        if longer:
            raise ValueError(
                f"expected as many samples of each component of zip_datasets in lane {lane.topology.lane} of "
                f"{lane.topology.lanes}, but {', '.join(map(repr, ended))} ended before "
                f"{', '.join(map(repr, longer))}; the samples before may have been paired wrongly. "
                "Give shards with equal numbers of samples, or strict=False to leave out the others"
            )

    def _check_shards(self, lane: Lane) -> None:
        counts = {count for count in self.lane_counts() if count is not None}
        if len(counts) > 1 and lane.topology.lanes > 1:
            of_each = ", ".join(
                f"{name!r} has {count}" for name, count in zip(self.names, self.lane_counts(), strict=True)
            )
            raise ValueError(
                f"zip_datasets in {lane.topology.lanes} lanes needs the same number of shards of each "
                f"component, so that each lane gets those that belong together, but {of_each}; write as many "
                "of each, or read them in one lane (lanes=1, on one rank)"
            )

    def _merge(self, parts: list[Block]) -> Block:
        trails = [part.trail for part in parts]
        # Places are those of the first component.
        trail = trails[0].follow(lambda index: [{"of": [each.after(index) for each in trails]}])
        if self.named:
            rows = zip(*(part.rows() for part in parts), strict=True)
            return Rows([dict(zip(self.names, row, strict=True)) for row in rows], trail)
        columns = [part.fields for part in parts if isinstance(part, Columns)]
        if len(columns) == len(parts):
            fields = {name: column for of_part in columns for name, column in of_part.items()}
            if len(fields) == sum(map(len, columns)):
                return Columns(fields, trail)
        of_parts = zip(*(part.rows() for part in parts), strict=True)
        return Rows([_merge_row(row, index, trail) for index, row in enumerate(of_parts)], trail)


def _merge_row(row: tuple[Any, ...], index: int, trail: Trail) -> dict[str, Any]:
    try:
        merged = {name: value for sample in reversed(row) for name, value in sample.items()}
    except AttributeError:
        raise TypeError(
            f"expected samples that are mappings, to put their fields together, but found "
            f"{' and '.join(type(sample).__name__ for sample in row)} at {trail.place(index)}; "
            "name the components, al.zip_datasets({name: dataset}), to have each sample under its name"
        ) from None
    if len(merged) != sum(map(len, row)):
        _check_clash(row, index, trail)
    return merged


def _check_clash(row: tuple[Any, ...], index: int, trail: Trail) -> None:
    """Check that no field is in several samples, and that all keys are equal."""
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
            f"expected samples with the same key, to put their fields together, but found {keys} at "
            f"{trail.place(index)}; are the shards in the same order? If the keys may differ, name the "
            "components, al.zip_datasets({name: dataset})"
        )
