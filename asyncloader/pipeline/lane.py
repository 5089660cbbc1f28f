"""Lanes as operators see them: the place in the plan, what lanes share, and what operators report there."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

from ..blocks import Block, Indices
from ..flow.budget import Portion
from ..flow.engine import Engine
from ..observe.audit import LeavesOut
from ..observe.statistics import NetworkCounts
from ..observe.stopwatch import Stopwatch
from ..observe.tracing import Recorder
from ..plan.lanes import Deal
from ..plan.topology import Topology
from ..types import Position, entry_of
from .skips import Skips, StepSkips

START: Position = []
"""The position before the first sample."""


@dataclass(frozen=True)
class Services:
    """What the lanes of one pass share in a process.

    Attributes:
        engine: Where I/O and the user's coroutines run.
        made_bytes: Bound on what each operator of a lane has made and not yet passed on. What it is working
            on is always allowed.
        network: Counts the requests of this process.
        clients: Clients of stores and values of contexts, made by the first lane that needs them.
        shortfalls: Gets each ``take`` that had too few samples.
        empty_shards: Gets each shard of no bytes, which has no sample.
        recorder: Records requests to stores; None where the pass is not traced.
    """

    engine: Engine
    made_bytes: int
    network: NetworkCounts = field(default_factory=NetworkCounts)
    clients: dict[Any, Any] = field(default_factory=dict)
    shortfalls: list[Shortfall] = field(default_factory=list)
    empty_shards: list[str] = field(default_factory=list)
    recorder: Recorder | None = None


@dataclass(frozen=True, slots=True)
class Lane:
    """One lane of one pass, as sources and operators see it: its place in the plan, and what it uses.

    Attributes:
        topology: Which lane of how many, and the epoch.
        services: Shared by all lanes of the pass.
        budget: Bounds what the sources of all lanes have requested and not yet passed on.
        order_seed: Seed of the order of shards, None for the order given.
        repetition: Which repetition of the data within the epoch this is, from 0.
        stage: Number of what is being opened: 0 for the source, then each operator, then the batching.
        component: The number of the component that the lane belongs to, after those of the mixtures around
            it; empty outside of a mixture. Makes components with the same seed draw different numbers.
        columns: Whether the reader of the stream benefits from columns. Samples are the same either way: a
            source that has the choice makes what costs less.
        singly: Whether each sample is passed on before the next one is begun: for a look at a few samples,
            which should call no function for others.
        skips: Counts what is skipped; None if every error is raised.
        stopwatch: Measures the time of the thread that pulls the stream.
        leaves_out: Gathers what operators leave out; None if no audit is recorded.
        rounds: Counts the repetitions of an endless ``.repeat``; None if no filter comes after it.
    """

    topology: Topology
    services: Services = field(compare=False)
    budget: Portion = field(compare=False)
    order_seed: int | None = None
    repetition: int = 0
    stage: int = 0
    component: tuple[int, ...] = ()
    columns: bool = False
    singly: bool = False
    skips: Skips | None = field(default=None, compare=False)
    stopwatch: Stopwatch = field(default_factory=Stopwatch, compare=False)
    leaves_out: LeavesOut | None = field(default=None, compare=False)
    rounds: Rounds | None = field(default=None, compare=False)

    def leave_out(self, by: str, block: Block, indices: Indices) -> None:
        """Report samples of a block that are left out, if an audit is recorded."""
        if self.leaves_out is not None:
            self.leaves_out.add(by, block.trail, indices)

    def saved(self, start: Position) -> Mapping[str, Any]:
        """What the stage that is being opened has noted in the position where it goes on."""
        return entry_of(start, self.stage)

    def attempts(self, start: Position) -> StepSkips | None:
        """What counts the skips of the stage that is opened at ``start``, if errors are skipped."""
        return None if self.skips is None else StepSkips(self.skips, self.component, self.stage, start)

    def repeated(self, repetition: int) -> Lane:
        """This lane in another repetition; shuffles draw another order in each."""
        return replace(self, repetition=repetition)

    def for_columns(self, columns: bool) -> Lane:
        """This lane for a reader of columns, or of rows."""
        return self if columns == self.columns else replace(self, columns=columns)

    @property
    def deal(self) -> Deal:
        """What decides which samples the lane is dealt."""
        lane, lanes, epoch = self.topology.lane, self.topology.lanes, self.topology.epoch
        return Deal((lane,), lanes, epoch, self.order_seed, self.repetition, self.component)


Blocks: TypeAlias = Generator[Block, None, None]
"""A running stream. It holds threads, requests and files; the code that opened it closes it."""

Opener: TypeAlias = Callable[[Position, Lane], Blocks]


# --- what operators report ---


# Lanes named in a warning; the others are counted.
_LANES_NAMED = 3


class Shortfall(NamedTuple):
    """A lane that ended before its part of a ``take`` was complete.

    Attributes:
        wanted: The count of the ``take``.
        lane: Number of the lane.
        lanes: How many lanes there are.
        share: The lane's part of the count.
        taken: How many samples it had.
        component: The component of a mixture that has the ``take``, if one has.
    """

    wanted: int
    lane: int
    lanes: int
    share: int
    taken: int
    component: tuple[int, ...] = ()


def describe_shortfalls(found: Iterable[Shortfall]) -> list[str]:
    """A sentence for each ``take`` that fell short, whatever the number of lanes."""
    by_take: dict[tuple[int, tuple[int, ...]], list[Shortfall]] = {}
    for short in sorted(set(found)):
        by_take.setdefault((short.wanted, short.component), []).append(short)
    return [_describe(count, shorts) for (count, _), shorts in by_take.items()]


def _describe(count: int, shorts: list[Shortfall]) -> str:
    lacking = f"take({count}) lacks {sum(short.share - short.taken for short in shorts)} samples: "
    lanes = shorts[0].lanes
    if lanes == 1:
        return f"{lacking}the dataset gave only {shorts[0].taken}"
    named = [
        f"lane {short.lane} ended after {short.taken} of its {short.share}" for short in shorts[:_LANES_NAMED]
    ]
    if more := len(shorts) - len(named):
        named.append(f"and {more} more")
    return (
        f"{lacking}of {lanes} lanes {', '.join(named)}. A take is dealt evenly to the lanes beforehand; use "
        "fewer lanes, or shards of equal length"
    )


# A filter after an endless repetition raises an error after so many rounds in a row without a sample: many,
# since a filter that draws may keep none of few samples several times. Or after so many samples, in more
# rounds than there are lanes, since a lane may be dealt other shards in each round. A million samples take
# seconds.
_MOST_ROUNDS = 100
_ENOUGH_SAMPLES = 1_000_000


class Rounds:
    """What a filter has dropped since it last kept a sample, and how often the data was repeated since.

    Args:
        outer: Those of a filter that comes later, which count the same rounds.
    """

    def __init__(self, outer: Rounds | None = None) -> None:
        self._outer = outer
        self._ended = 0
        self._dropped = 0

    def end(self) -> None:
        """Count a round of an endless ``.repeat``."""
        self._ended += 1
        if self._outer is not None:
            self._outer.end()

    def kept(self, kept: int, samples: int, by: str, lanes: int) -> None:
        """Count samples that the filter was called for.

        Args:
            kept: How many it has kept.
            samples: How many there were.
            by: The filter, for messages.
            lanes: How many there are.

        Raises:
            RuntimeError: The filter keeps nothing, and would run for ever.
        """
        if kept:
            self._ended = self._dropped = 0
            return
        self._dropped += samples
        is_enough = self._ended > lanes and self._dropped >= _ENOUGH_SAMPLES
        if self._ended > _MOST_ROUNDS or is_enough:
            raise RuntimeError(
                f"{by} has kept none of {self._dropped} samples, in {self._ended} repetitions of the data: "
                "after .repeat() it would run forever. Check what its function gets and returns, with "
                "asyncloader head or a loop over a few samples. A .repeat() after the filter would end"
            )
