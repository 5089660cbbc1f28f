"""A source with its operators, and sources of several of these: components, their lanes, ``concat``, ``zip``.

In each lane of the whole, every component has a lane of its own. That lane has its own key for random draws,
its own part of the budget, and places that name the component. Components of shards start on different lanes:
if A has 3 shards (with an index: 3 samples), it fills the lanes 0 to 2, and B begins at lane 3. So as many
lanes have something as there are shards, or samples, in all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain
from typing import Any, ClassVar, TypeAlias

from ..blocks import Block, Columns, Place, Rows, Trail
from ..errors import add_note
from ..plan.lanes import Counter, Deal
from ..types import Position, entry_of
from .calls import cut
from .lane import START, Blocks, Lane
from .op import Op, Source, call_of, shown
from .shuffle import Shuffle
from .take import Repeat, Take

# So many repetitions of a component within one of the whole have numbers of their own.
_REPETITION_BITS = 20


@dataclass(frozen=True)
class Stages:
    """What a ``Dataset`` describes: a source, and the operators applied to its samples, in order.

    Frozen, and without I/O until it is opened; it pickles if the user's functions do.
    """

    source: Source
    ops: tuple[Op, ...] = ()

    def __repr__(self) -> str:
        return f"Dataset({', '.join([repr(self.source), *map(call_of, self.ops)])})"

    def open(self, start: Position, lane: Lane) -> Blocks:
        """Its samples in one lane, from a position on."""
        return self._open(len(self.ops), start, lane)

    def _open(self, stage: int, start: Position, lane: Lane) -> Blocks:
        """The samples after the operators up to number ``stage``; 0 is the source."""
        inside = replace(lane, stage=stage)
        if stage == 0:
            blocks = lane.stopwatch.timed(self.source.stage, self.source.open(start, inside))
        else:
            op = self.ops[stage - 1]
            blocks = lane.stopwatch.timed(shown(op), op.open(partial(self._open, stage - 1), start, inside))
        return _singly(blocks) if lane.singly else blocks

    def count_samples(self, deal: Deal) -> list[float]:
        """How many samples each lane of ``deal`` will have; raises ``UnknownCount`` with the reason."""
        counter: Counter = self.source.count_samples
        for op in self.ops:
            counter = partial(op.count_samples, counter)
        # Components have orders of their own, and the schedule of a mixture is drawn anew in each repetition.
        return counter(replace(deal, varies=deal.varies or bool(components_of(self.source))))

    @property
    def order_seed(self) -> int | None:
        """Seed of the first shuffle, which also draws the order of shards; None if there is none."""
        return next((op.seed for op in self.ops if isinstance(op, Shuffle)), None)

    @property
    def all_ops(self) -> tuple[Op, ...]:
        """Its operators, after those of all components."""
        return (*chain.from_iterable(stages.all_ops for stages in components_of(self.source)), *self.ops)

    @property
    def has_context(self) -> bool:
        """Whether a context manager of the user has to be left at the end of a pass."""
        return any(getattr(op, "context", None) is not None for op in self.all_ops)

    @property
    def runs_on_threads(self) -> bool:
        """Whether an operator calls the user's functions on its own threads."""
        ops = [op for op in self.all_ops if not getattr(op, "is_async", False)]
        return any(getattr(op, "concurrency", 1) > 1 for op in ops)

    def describe(self) -> dict[str, Any]:
        """What a saved state must match, as JSON values, without secrets."""
        return {**self.source.describe(), "ops": [dict(op.describe()) for op in self.ops]}


def _singly(blocks: Blocks) -> Blocks:
    with closing(blocks):
        for block in blocks:
            yield from cut(block, lambda: 1)


@dataclass(frozen=True)
class Composed:
    """A source made of several components; see ``Source``."""

    names: tuple[str, ...]
    parts: tuple[Stages, ...]

    kind: ClassVar[str]
    is_counted: ClassVar[bool] = True
    """Whether a sample is of one component."""

    @property
    def stage(self) -> str:
        return self.kind

    def lane_of(self, number: int, lane: Lane, share: float) -> Lane:
        """The lane of a component, with its part of the budget.

        Args:
            number: Of the component.
            lane: Of the whole.
            share: The component's part of the lane's budget, from 0 to 1.
        """
        deal = self.deal_of(number, lane.deal)
        return replace(
            lane,
            topology=replace(lane.topology, lane=deal.lanes[0]),
            component=deal.component,
            order_seed=deal.order_seed,
            budget=lane.budget.portion(number, share),
            # An audit follows one of the components that are put together.
            leaves_out=lane.leaves_out if self.drawn_as(number) == number else None,
        )

    def counts_of(self, deal: Deal) -> list[list[float]]:
        """For each component how many samples each lane has of it; raises ``UnknownCount``."""
        return [stages.count_samples(self.deal_of(number, deal)) for number, stages in enumerate(self.parts)]

    def deal_of(self, number: int, deal: Deal) -> Deal:
        """The lanes of a component in those of the whole."""
        own = self.parts[number].order_seed
        return replace(
            deal,
            lanes=tuple((lane - self.first_lane(number)) % deal.lane_count for lane in deal.lanes),
            component=(*deal.component, self.drawn_as(number)),
            # A component without a ``.shuffle`` of its own has its shards permuted by one after the whole.
            order_seed=deal.order_seed if own is None else own,
        )

    def drawn_as(self, number: int) -> int:
        """The number that seeds a component's draws; components with the same number draw the same."""
        return number

    def places_at(self, entry: Mapping[str, Any], deal: Deal) -> list[Place]:
        """Where each component continues that was begun and has not ended."""
        return [
            place
            for number, inside in enumerate(entry.get("of", ()))
            if inside and number not in entry.get("gone", ())
            for place in places_of(self.parts[number], inside, self.deal_of(number, deal))
        ]

    def describe(self) -> Mapping[str, Any]:
        components = [
            {"name": name, **stages.describe()} for name, stages in zip(self.names, self.parts, strict=True)
        ]
        return {"source": self.kind, "components": components}

    def first_lane(self, number: int) -> int:
        """The first lane of a component: the one after the lanes that the components before it have."""
        counts = self.lane_counts()
        return 0 if counts[number] is None else sum(count or 0 for count in counts[:number])

    @property
    def most_lanes(self) -> int | None:
        """The sum of those of the components; None if one of them is unknown."""
        counts = [count for count in self.lane_counts() if count is not None]
        return sum(counts) if len(counts) == len(self.parts) else None

    def lane_counts(self) -> list[int | None]:
        """How many lanes can have something of each component, None if that is not known."""
        return [stages.source.most_lanes for stages in self.parts]

    def endless(self) -> list[bool]:
        """Which components never end."""
        return [is_endless(stages) for stages in self.parts]

    @property
    def is_endless(self) -> bool:
        """Whether the whole never ends."""
        return any(self.endless())

    def __repr__(self) -> str:
        shown = [f"{name}={stages!r}" for name, stages in zip(self.names, self.parts, strict=True)]
        return f"{type(self).__name__}({', '.join(shown)})"


def is_endless(stages: Stages) -> bool:
    """Whether the samples are known to be endless."""
    endless = isinstance(stages.source, Composed) and stages.source.is_endless
    for op in stages.ops:
        endless = (endless or op == Repeat(None)) and not isinstance(op, Take)
    return endless


def components_of(source: object) -> tuple[Stages, ...]:
    """What a source is made of; nothing for a source that is not composed."""
    return source.parts if isinstance(source, Composed) else ()


def places_of(stages: Stages, position: Position, deal: Deal) -> list[Place]:
    """The samples at which the one lane of ``deal`` continues when it is opened at ``position``.

    With several components, one of each; none at the end.
    """
    return stages.source.places_at(*source_at(stages, position, deal))


def source_at(stages: Stages, position: Position, deal: Deal) -> tuple[Mapping[str, Any], Deal]:
    """The source's entry in a position, and the lanes of ``deal`` in the repetition that it is in."""
    whole = entry_of(position, len(stages.ops) + 1)  # of a component that a mixture repeats
    if "repetition" in whole:
        deal = deal.repeated(repeated(deal.repetition, whole["repetition"]))
    for stage, op in reversed([*enumerate(stages.ops, 1)]):
        if isinstance(op, Repeat):
            number = entry_of(position, stage).get("repetition", 0)
            deal = deal.repeated(deal.repetition * (op.times or 1) + number)
    return entry_of(position, 0), deal


def leaves_of(stages: Stages) -> list[Source]:
    """The sources that are not made of others."""
    inner = components_of(stages.source)
    return [source for part in inner for source in leaves_of(part)] if inner else [stages.source]


def counted_names(source: object) -> tuple[str, ...]:
    """The names of the components whose samples are counted separately."""
    return source.names if isinstance(source, Composed) and source.is_counted else ()


def repeated(outer: int, inner: int) -> int:
    """One number for a repetition inside of another one, whose length is not known."""
    return (outer << _REPETITION_BITS) + inner


# --- one component in one lane ---

Mark: TypeAlias = Callable[[], Position]
"""Computes the position after a sample, once."""


class Feed:
    """One component in one lane: its blocks, which are pulled when they are due and taken in pieces.

    Args:
        source: The whole.
        number: Of the component in it.
        lane: Of the whole.
        share: See ``Composed.lane_of``.
        saved: Where the component continues; empty if nothing of it was taken before.
        begins_anew: Whether it may be repeated. Positions then have the number of the repetition, in an entry
            after those of the component's operators.

    Attributes:
        held: How many samples are here.
        mark: The position after the last sample that was taken; None before the first one.
        repetition: How often it was repeated.
    """

    def __init__(
        self,
        source: Composed,
        number: int,
        lane: Lane,
        share: float,
        saved: Position,
        begins_anew: bool = False,
    ) -> None:
        self._source, self._number = source, number
        self._lane = source.lane_of(number, lane, share)
        self._blocks: Blocks | None = None
        self._held: Block | None = None
        self.held = 0
        self._begins_anew = begins_anew
        self.mark: Mark | None = (lambda: saved) if saved else None
        self._stage = len(source.parts[number].ops) + 1
        self.repetition: int = entry_of(saved, self._stage).get("repetition", 0)

    def pull(self) -> bool:
        """Wait for the next block, when nothing is held; return whether there is one."""
        self._lane.budget.wait()
        try:
            if self._blocks is None:
                self._blocks = self._open(START if self.mark is None else self.mark())
            self._held = next(self._blocks, None)
        except Exception as error:
            add_note(error, f"in component {self._source.names[self._number]!r} of {self._source.kind}")
            raise
        self.held = 0 if self._held is None else len(self._held)
        return self._held is not None

    def take(self, count: int) -> Block:
        """The next samples of those held, all or fewer of them."""
        block = self._held
        assert block is not None and 0 < count <= self.held
        first = len(block) - self.held
        self.held -= count
        part = block.part(first, first + count) if count < len(block) else block
        if not self.held:
            self._held = None
        self.mark = cache(partial(part.trail.after, count - 1))
        return part

    def begin_anew(self) -> None:
        """Continue with the next repetition from its beginning; shuffles draw another order in it."""
        self.close()
        self.repetition += 1

    def close(self) -> None:
        """Close what is open. Idempotent."""
        blocks, self._blocks, self._held, self.held = self._blocks, None, None, 0
        if blocks is not None:
            blocks.close()

    def _open(self, start: Position) -> Blocks:
        lane = self._lane
        if self._begins_anew:
            lane = lane.repeated(repeated(lane.repetition, self.repetition))
            if entry_of(start, self._stage).get("repetition") != self.repetition:
                start = START  # a position in the repetition before is no longer of use
        with closing(self._source.parts[self._number].open(start, lane)) as blocks:
            for block in blocks:
                if self._begins_anew:
                    trail = block.trail.with_entry(self._stage, {"repetition": self.repetition})
                    block = block.follow(trail)
                yield block


# --- components one after another ---


@dataclass(frozen=True, repr=False)
class Concat(Composed):
    """The samples that a lane has of the first component, then those of the second, and so on."""

    kind = "concat"

    def open(self, start: Position, lane: Lane) -> Blocks:
        # The components that are gone have no position, and the last one there is the current one.
        *gone, saved = lane.saved(start).get("of", [START])
        for number in range(len(gone), len(self.parts)):
            with closing(Feed(self, number, lane, 1.0, saved)) as feed:
                while feed.pull():
                    block = feed.take(feed.held)
                    yield block.follow(_of_component(block.trail, number))
                    del block
            saved = START

    def places_at(self, entry: Mapping[str, Any], deal: Deal) -> list[Place]:
        *gone, inside = entry.get("of", [START])
        number = len(gone)
        return places_of(self.parts[number], inside, self.deal_of(number, deal))

    def count_samples(self, deal: Deal) -> list[float]:
        return [sum(of_lane) for of_lane in zip(*self.counts_of(deal), strict=True)]


def _of_component(trail: Trail, number: int) -> Trail:
    return trail.follow(lambda index: [{"of": [*[START] * number, trail.after(index)]}])


# --- a sample of each component joined to one ---

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
