"""Lanes as operators see them: the place in the plan, what lanes share, and what operators report there."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

from ..blocks import Block, Indices
from ..flow.budget import Budget, Portion
from ..flow.engine import Engine
from ..observe.audit import LeavesOut
from ..observe.statistics import NetworkCounts
from ..observe.stopwatch import Stopwatch
from ..observe.tracing import Traffic
from ..plan.topology import Topology
from ..types import Position
from .skips import Skips, StepSkips

START: Position = {}
"""The position before the first sample."""


@dataclass(frozen=True)
class Services:
    """What the lanes of one pass share in a process.

    Attributes:
        engine: Where I/O and the user's coroutines run.
        made_bytes: Bound on what each operator of a lane has made and not yet handed on; what it is working
            at is always let in.
        network: Counts the requests of this process.
        clients: Clients of stores and values of contexts, made by the first lane that needs them.
        shortfalls: Gets each ``take`` that had too few samples.
        empty_shards: Gets each shard of no bytes, which gave no sample.
        traffic: Observes what is asked of stores.
    """

    engine: Engine
    made_bytes: int
    network: NetworkCounts = field(default_factory=NetworkCounts)
    clients: dict[Any, Any] = field(default_factory=dict)
    shortfalls: list[Shortfall] = field(default_factory=list)
    empty_shards: list[str] = field(default_factory=list)
    traffic: Traffic = field(default_factory=Traffic)


@dataclass(frozen=True, slots=True)
class Lane:
    """One lane of one pass, as sources and operators see it: its place in the plan, and what serves it.

    Attributes:
        topology: Which lane of how many, and the epoch.
        services: Shared by all lanes of the pass.
        budget: Bounds what the sources of all lanes have requested and not yet handed on.
        order_seed: Seed that draws the order of shards, None for the order given.
        repetition: Which repetition of the data within the epoch this is, from 0.
        operator: Which of the recipe's operators is being opened, from 0.
        component: Which component of a mixture this is the lane of, behind those of the mixtures around it;
            empty outside of any. Keeps apart what components of one seed draw.
        columns: Whether what reads the stream benefits from columns. It decides nothing of what samples are:
            a source that has the choice gives what costs less.
        singly: Whether each sample is handed on before the next one is begun: for a look at a few samples,
            which should call no function for more.
        skips: Counts what is skipped; None where every error is raised.
        stopwatch: Divides the time of the thread that pulls the stream.
        leaves_out: Gathers what operators leave out; None where no audit is recorded.
        rounds: Counts how often an endless repetition begins anew; None where no filter is behind it.
    """

    topology: Topology
    services: Services = field(compare=False)
    budget: Budget | Portion = field(compare=False)
    order_seed: int | None = None
    repetition: int = 0
    operator: int = 0
    component: tuple[int, ...] = ()
    columns: bool = False
    singly: bool = False
    skips: Skips | None = field(default=None, compare=False)
    stopwatch: Stopwatch = field(default_factory=Stopwatch, compare=False)
    leaves_out: LeavesOut | None = field(default=None, compare=False)
    rounds: Rounds | None = field(default=None, compare=False)

    def leave_out(self, by: str, block: Block, indices: Indices) -> None:
        """These samples of a block go no further: to be said where ``leaves_out`` is there."""
        assert self.leaves_out is not None
        self.leaves_out.add(by, self.component, block.trail, indices)

    def attempts(self, start: Position, step: object = None) -> StepSkips | None:
        """Those of the operator that is opened at ``start``, if errors are skipped."""
        step = self.operator if step is None else step
        return None if self.skips is None else self.skips.attempts(self.component, step, start)

    def repeated(self, repetition: int) -> Lane:
        """This lane in another repetition; shuffles draw anew in each."""
        return replace(self, repetition=repetition)

    def for_columns(self, columns: bool) -> Lane:
        """This lane as it is for whoever reads columns, or rows."""
        return self if columns == self.columns else replace(self, columns=columns)

    def draw_key(self, seed: int) -> tuple[int, ...]:
        """What seeds a draw for all lanes alike."""
        return seed, self.topology.epoch, self.repetition, *self.component


Blocks: TypeAlias = Generator[Block, None, None]
"""A running stream. It holds threads, requests and files: whoever opened it closes it."""

Opener: TypeAlias = Callable[[Position, Lane], Blocks]


# --- what operators report ---


# Named in a warning; the others are counted.
_LANES_NAMED = 3


class Shortfall(NamedTuple):
    """A lane that ended before it had given its part of a ``take``.

    Attributes:
        wanted: What the recipe was to take.
        lane: Which lane.
        lanes: Of how many.
        share: What it was to give.
        taken: What it gave.
        component: Which component of a mixture takes, if one does.
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


# What a filter behind an endless repetition gives up after: so many rounds in a row, since one that draws
# may keep none of few samples a few times; or so many samples in more rounds than there are lanes, since each
# may be dealt all shards in turn. A million take seconds, and hardly anybody seeks one sample among more.
_MOST_ROUNDS = 100
_ENOUGH_SAMPLES = 1_000_000


class Rounds:
    """What a filter has dropped since it last kept a sample, and how often the data has begun anew since.

    Args:
        behind: That of a filter further down, which the same rounds count for.
    """

    def __init__(self, behind: Rounds | None = None) -> None:
        self._behind = behind
        self._ended = 0
        self._dropped = 0

    def end(self) -> None:
        """An endless ``.repeat`` begins anew."""
        self._ended += 1
        if self._behind is not None:
            self._behind.end()

    def kept(self, kept: int, samples: int, by: str, lanes: int) -> None:
        """A filter has kept so many of the next samples.

        Args:
            kept: How many.
            samples: Of how many.
            by: The filter, for messages.
            lanes: How many there are.

        Raises:
            RuntimeError: It keeps nothing, and would run for ever.
        """
        if kept:
            self._ended = self._dropped = 0
            return
        self._dropped += samples
        is_enough = self._ended > lanes and self._dropped >= _ENOUGH_SAMPLES
        if self._ended > _MOST_ROUNDS or is_enough:
            raise RuntimeError(
                f"{by} has kept none of {self._dropped} samples, in {self._ended} repetitions of the data: "
                "behind .repeat() it would go on for ever. See what its function is given and returns, with "
                "asyncloader head or a loop over a few samples; behind the filter, .repeat() ends by itself"
            )
