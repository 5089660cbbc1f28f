"""What an operator is, and what it is given to run in."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Protocol, TypeAlias

from .._flow.budget import Budget, Portion
from .._flow.engine import Engine
from ..blocks import Block, Indices, Place, Trail
from ..plan.counts import Counter, Deal
from ..plan.topology import Topology
from ..statistics import NetworkCounts
from ..stopwatch import Stopwatch
from ..trace.recording import Traffic
from ..tracebacks import add_note
from ..types import Position
from .left_out import LeavesOut
from .shortfalls import Shortfall
from .skips import Attempts, Skips

__all__ = [
    "PIECE_SAMPLES",
    "START",
    "Blocks",
    "Lane",
    "Op",
    "Opener",
    "Rounds",
    "Source",
    "Want",
    "call_of",
    "name_of",
    "note_batch",
    "note_sample",
    "shown",
]

START: Position = {}
"""The position before the first sample."""

PIECE_SAMPLES = 32
"""How many samples an operator that runs the user's code takes at a time.

Few enough that the first of them is handed on before a whole block of decoded images is made; enough
that what a block costs (some 2 us) is lost among them.
"""


# How many samples of a batch a message names: as many as a person looks at.
_MOST_PLACES = 16


class Want:
    """How many samples whoever pulls a lane's stream has a use for; without bound in most passes.

    Operators that call the user's functions hold themselves to it: what is begun and not yet handed on is
    never more, and always at least one while somebody pulls, so that a filter behind them starves nobody.

    Args:
        ahead: How many samples may be begun beyond those of a batch that was asked for; None for any number.

    Attributes:
        samples: The number, set anew before each pull.
    """

    def __init__(self, ahead: int | None = None) -> None:
        self._ahead = ahead
        self.samples = sys.maxsize

    @property
    def is_bounded(self) -> bool:
        """Whether calls are counted in this pass."""
        return self.samples < sys.maxsize

    def pull_for_batches(self, blocks: Iterator[Block], lacking: Callable[[], int]) -> Iterator[Block]:
        """The blocks, each pulled for as many samples as a batching lacks, and for those made ahead."""
        ahead = self._ahead
        return blocks if ahead is None else self.pull(blocks, lambda: lacking() + ahead)

    def pull(self, blocks: Iterator[Block], wanted: Callable[[], int]) -> Iterator[Block]:
        """The blocks, each pulled with ``wanted()`` as the want."""
        while True:
            mine, self.samples = self.samples, max(wanted(), 1)
            try:
                block = next(blocks, None)
            finally:
                self.samples = mine
            if block is None:
                return
            yield block

    def pieces(
        self, block: Block, most: Callable[[], int], wanted: Callable[[], int] | None = None
    ) -> Iterator[Block]:
        """The block cut into pieces, each as large as it may be when it is asked for.

        Args:
            block: What to cut.
            most: Gives the most samples of the next piece.
            wanted: Gives how many more are wanted; the want by default.
        """
        start = 0
        while start < len(block):
            room = min(most(), self.samples if wanted is None else wanted())
            stop = min(start + max(room, 1), len(block))
            if stop - start == len(block):
                yield block
            else:
                yield block.part(start, stop)
            start = stop


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


@dataclass(frozen=True, slots=True)
class Lane:
    """One lane of one pass, as sources and operators see it.

    Attributes:
        topology: Which lane of how many, and the epoch.
        engine: Where I/O and the user's coroutines run.
        budget: Bounds what the sources of all lanes have requested and not yet handed on.
        made_bytes: Bound on what each of its operators has made and not yet handed on; what it is working
            at is always let in.
        order_seed: Seed that draws the order of shards, None for the order given.
        repetition: Which repetition of the data within the epoch this is, from 0.
        network: Counts the requests of this process.
        shared: Clients shared by the lanes of one engine, made by the source that needs them.
        operator: Which of the recipe's operators is being opened, from 0.
        want: What the stream is pulled for.
        shortfalls: Told of each ``take`` that could not be kept.
        empty_shards: Told of each shard of no bytes, which gave no sample.
        columns: Whether what reads the stream has a use for columns. It decides nothing of what samples are:
            a source that has the choice gives what is had for less.
        component: Which component of a mixture this is the lane of, behind those of the mixtures around it;
            empty outside of any. Keeps apart what components of one seed draw.
        skips: Counts what is skipped; None where every error is raised.
        stopwatch: Divides the time of the thread that pulls the stream.
        leaves_out: Told of what operators leave out; None where nobody audits it.
        traffic: Told of what is asked of stores.
        rounds: Told when an endless repetition begins anew; None where no filter is behind it.
    """

    topology: Topology
    engine: Engine
    budget: Budget | Portion = field(compare=False)
    made_bytes: int
    order_seed: int | None = None
    repetition: int = 0
    network: NetworkCounts = field(default_factory=NetworkCounts, compare=False)
    shared: dict[Any, Any] = field(default_factory=dict, compare=False)
    operator: int = 0
    want: Want = field(default_factory=Want, compare=False)
    shortfalls: list[Shortfall] = field(default_factory=list, compare=False)
    empty_shards: list[str] = field(default_factory=list, compare=False)
    columns: bool = False
    component: tuple[int, ...] = ()
    skips: Skips | None = field(default=None, compare=False)
    stopwatch: Stopwatch = field(default_factory=Stopwatch, compare=False)
    leaves_out: LeavesOut | None = field(default=None, compare=False)
    traffic: Traffic = field(default_factory=Traffic, compare=False)
    rounds: Rounds | None = field(default=None, compare=False)

    def leave_out(self, by: str, block: Block, indices: Indices) -> None:
        """These samples of a block go no further: to be said where ``leaves_out`` is there."""
        assert self.leaves_out is not None
        self.leaves_out.add(by, self.component, block.trail, indices)

    def attempts(self, start: Position, step: object = None) -> Attempts | None:
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


class Source(Protocol):
    """Where a recipe's samples come from."""

    @property
    def stage(self) -> str:
        """What it is called where time is told: what it does itself, when nothing is waited for."""
        ...

    @property
    def most_lanes(self) -> int | None:
        """How many lanes can have something: each a shard, or a sample where an index cuts lanes inside of
        shards; None if it does not come in shards."""
        ...

    def open(self, start: Position, lane: Lane) -> Blocks:
        """The lane's samples from ``start`` on."""
        ...

    def count_samples(self, deal: Deal) -> list[float]:
        """How many samples each lane of ``deal`` has; raises ``UnknownCount`` with the reason."""
        ...

    def places_at(self, position: Position, deal: Deal) -> list[Place]:
        """The samples that the one lane of ``deal`` reads on from: of several components one each."""
        ...

    def describe(self) -> Mapping[str, Any]:
        """What makes two sources the same to a saved state, as JSON values, without secrets."""
        ...


class Op(Protocol):
    """A transformation of one lane's stream; those that make one sample of each name it as their base."""

    def open(self, upstream: Opener, start: Position, lane: Lane) -> Blocks:
        """The transformed samples from ``start`` on; closing the generator closes the upstream."""
        ...

    def count_samples(self, upstream: Counter, deal: Deal) -> list[float]:
        """How many samples each lane has behind it, as many as before by default; see ``Source``."""
        return upstream(deal)

    def describe(self) -> Mapping[str, Any]:
        """What makes two operators the same to a saved state, as JSON values."""
        ...


def shown(op: Op) -> str:
    """An operator as messages, an audit and a report call it: with its function, or its count."""
    described = op.describe()
    return f"{described['op']}({described.get('fn', described.get('count', ''))})"


def call_of(op: Op) -> str:
    """An operator as it was called, its function by name only."""
    described = dict(op.describe())
    name = described.pop("op")
    parameters = [str(described.pop("fn"))] if "fn" in described else []
    parameters += [f"{parameter}={value!r}" for parameter, value in described.items()]
    return f"{name}({', '.join(parameters)})"


def name_of(fn: Callable[..., Any]) -> str:
    """A function's name as shown in states and messages."""
    fn = getattr(fn, "func", fn)  # functools.partial
    return getattr(fn, "__qualname__", None) or type(fn).__qualname__


def note_sample(error: BaseException, what: str, block: Block, index: int) -> None:
    """Say at ``error`` which sample of a block the user's function was given."""
    (sample,), place = block.part(index, index + 1).rows(), block.trail.place(index)
    if isinstance(sample, Mapping):
        key = f", __key__ {sample['__key__']!r}" if "__key__" in sample else ""
        fields = ", ".join(sorted(str(name) for name in sample if not str(name).startswith("__")))
        add_note(error, f"in {what} of {place}{key} (fields: {fields})")
    else:
        add_note(error, f"in {what} of {place}, of type {type(sample).__name__}")


def note_batch(error: BaseException, what: str, trail: Trail, count: int) -> None:
    """Say at ``error`` which samples a batch is of, the first ones if they are many."""
    places = [trail.place(index) for index in range(min(count, _MOST_PLACES))]
    if count == 1:
        add_note(error, f"in {what} of {places[0]}")
        return
    told = []
    for shard, group in groupby(places, lambda place: place.shard):
        numbers = ", ".join(str(place.sample) for place in group)
        told.append(f"samples {numbers}" + ("" if shard is None else f" of {shard}"))
    if count > len(places):
        told.append(f"and {count - len(places)} more")
    add_note(error, f"in {what} of {count} samples: {'; '.join(told)}")
