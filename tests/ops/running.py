"""Running operators over a source in memory, in one lane."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

from asyncloader.blocks import Block, Columns, OffsetTrail, Place, Rows, Trail
from asyncloader.flow.budget import Budget
from asyncloader.flow.engine import Engine
from asyncloader.pipeline.components import Stages
from asyncloader.pipeline.lane import START, Blocks, Lane, Services
from asyncloader.pipeline.op import Op
from asyncloader.plan.topology import Topology
from asyncloader.types import Position

__all__ = [
    "Listed",
    "ListedColumns",
    "assert_resumes_everywhere",
    "lane_of",
    "places_of",
    "positions_of",
    "run",
]


@dataclass
class Listed:
    """A source of the given samples, in blocks of the given sizes, over and over."""

    samples: Sequence[Any]
    sizes: Sequence[int] = (3, 1, 4)
    opened: list[Lane] = field(default_factory=list)
    closed: int = 0
    handed_on: int = 0

    most_lanes = None
    stage = "listed"

    def open(self, start: Position, lane: Lane) -> Blocks:
        self.opened.append(lane)
        try:
            at = lane.saved(start).get("sample", 0)
            for size in cycle(self.sizes):
                if at >= len(self.samples):
                    return
                stop = min(at + size, len(self.samples))
                self.handed_on += stop - at
                here = "listed", lane.topology.lane, lane.repetition, lane.component
                yield self.block(at, stop, OffsetTrail(at, None).within(*here))
                at = stop
        finally:
            self.closed += 1

    def block(self, start: int, stop: int, trail: Trail) -> Block:
        return Rows(list(self.samples[start:stop]), trail)

    def describe(self) -> Mapping[str, Any]:
        return {"source": "listed"}


class ListedColumns(Listed):
    """The same samples, in blocks of columns.

    Args:
        block: Of all samples.
    """

    def __init__(self, block: Columns, sizes: Sequence[int] = (3, 1, 4)) -> None:
        super().__init__(block.rows(), sizes)
        self._block = block

    def block(self, start: int, stop: int, trail: Trail) -> Block:
        return self._block.part(start, stop).follow(trail)


def lane_of(engine: Engine, lane: int = 0, lanes: int = 1, epoch: int = 0) -> Lane:
    topology = Topology(lane, lanes, 0, 1, epoch)
    return Lane(topology, Services(engine, 1 << 20), Budget(1 << 20, [lane]).of(lane), stage=1)


def run(source: Listed, ops: Sequence[Op], lane: Lane, start: Position = START) -> list[Any]:
    """The samples that come out, in order."""
    return [sample for sample, _ in positions_of(source, ops, lane, start)]


def positions_of(
    source: Listed, ops: Sequence[Op], lane: Lane, start: Position = START
) -> Iterator[tuple[Any, Position]]:
    """The samples that come out, each with the position after it."""
    with closing(Stages(source, tuple(ops)).open(start, lane)) as blocks:
        for block in blocks:
            assert len(block), "no stage hands on an empty block"
            for index, sample in enumerate(block.rows()):
                yield sample, block.trail.after(index)


def places_of(
    source: Listed, ops: Sequence[Op], lane: Lane, start: Position = START
) -> Iterator[tuple[Any, Place]]:
    """The samples that come out, each with where it came from."""
    with closing(Stages(source, tuple(ops)).open(start, lane)) as blocks:
        for block in blocks:
            for index, sample in enumerate(block.rows()):
                yield sample, block.trail.place(index)


def assert_resumes_everywhere(samples: Sequence[Any], ops: Sequence[Op], lane: Lane) -> list[Any]:
    """Reopened at the position after any sample, the rest comes, however the stream is cut into blocks."""
    whole = list(positions_of(Listed(samples), ops, lane))
    for done, (_, position) in enumerate(whole, 1):
        rest = run(Listed(samples, sizes=(2, 5)), ops, lane, position)
        assert rest == [sample for sample, _ in whole[done:]], f"after {done} samples, at {position}"
    return [sample for sample, _ in whole]
