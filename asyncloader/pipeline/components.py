"""A source with its operators, and sources made of several of these: components, their lanes, ``concat``.

A component has a lane of its own within each lane of the whole, with another key for what is drawn there,
another part of the budget, and places that name it. Where components come in shards, the first lane of each
is the one behind the last shard of those before it, or the last sample where an index knows: so as many
lanes have something as there are shards, or samples, in all.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..blocks import Block, Indices, NestedTrail, Place, Provenance, Trail
from ..errors import add_note
from ..flow.budget import Portion
from ..plan.lanes import Counter, Deal
from ..types import Position
from .calls import cut
from .lane import START, Blocks, Lane, Opener
from .map import Map
from .op import Op, Source, call_of, shown
from .shuffle import Shuffle
from .take import Repeat, Take

# So many repetitions of a component within one of the whole are told apart.
_REPETITION_BITS = 20


@dataclass(frozen=True)
class Recipe:
    """What a ``Dataset`` describes: a source, and the operators applied to its samples, in order.

    Frozen, and without I/O until it is opened; it pickles if the user's functions do.

    Args:
        source: Where the samples come from.
        ops: What is done to them.
    """

    source: Source
    ops: tuple[Op, ...] = ()

    def __repr__(self) -> str:
        return f"Dataset({', '.join([repr(self.source), *map(call_of, self.ops)])})"

    def open(self, start: Position, lane: Lane) -> Blocks:
        """Its samples in one lane, from a position on."""
        opener: Opener = partial(_open_source, self.source)
        for number, op in enumerate(self.ops):
            opener = partial(_open_op, op, number, opener)
        return opener(start, lane)

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
        """Its operators, after those of all recipes that it is made of."""
        return (*chain.from_iterable(recipe.all_ops for recipe in components_of(self.source)), *self.ops)

    @property
    def has_context(self) -> bool:
        """Whether a context manager of the user's has to be left at the end of a pass."""
        return any(getattr(op, "context", None) is not None for op in self.all_ops)

    @property
    def runs_on_threads(self) -> bool:
        """Whether an operator calls the user's functions on threads of its own."""
        return any(isinstance(op, Map) and op.concurrency > 1 for op in self.all_ops)

    def describe(self) -> dict[str, Any]:
        """What a saved state must match, as JSON values, without secrets."""
        return {**self.source.describe(), "ops": [dict(op.describe()) for op in self.ops]}


def _open_source(source: Source, start: Position, lane: Lane) -> Blocks:
    return _handed_on(lane.stopwatch.timed(source.stage, source.open(start, lane)), lane)


def _open_op(op: Op, number: int, upstream: Opener, start: Position, lane: Lane) -> Blocks:
    blocks = op.open(upstream, start, replace(lane, operator=number))
    return _handed_on(lane.stopwatch.timed(shown(op), blocks), lane)


def _handed_on(blocks: Blocks, lane: Lane) -> Blocks:
    return _singly(blocks) if lane.singly else blocks


def _singly(blocks: Blocks) -> Blocks:
    with closing(blocks):
        for block in blocks:
            yield from cut(block, lambda: 1)


@dataclass(frozen=True)
class Composed:
    """A source over several recipes; see ``ops.op.Source``.

    Args:
        names: Of the components.
        recipes: The components.
    """

    names: tuple[str, ...]
    recipes: tuple[Recipe, ...]

    kind: ClassVar[str]
    is_counted: ClassVar[bool] = True
    """Whether a sample is of one component."""

    @property
    def stage(self) -> str:
        return self.kind

    def lane_of(self, number: int, lane: Lane, share: float) -> tuple[Lane, Portion]:
        """The lane of a component, and its part of the budget.

        Args:
            number: Of the component.
            lane: Of the whole.
            share: The component's part of the lane's budget, from 0 to 1.
        """
        topology = lane.topology
        portion = lane.budget.portion(topology.lane, number, share)
        return (
            replace(
                lane,
                topology=replace(topology, lane=(topology.lane - self.first_lane(number)) % topology.lanes),
                component=(*lane.component, self.drawn_as(number)),
                order_seed=self._order_seed(number, lane.order_seed),
                budget=portion,
                # Nobody follows what goes along with the samples of another component.
                leaves_out=lane.leaves_out if self.drawn_as(number) == number else None,
            ),
            portion,
        )

    def counts_of(self, deal: Deal) -> list[list[float]]:
        """For each component how many samples each lane has of it; raises ``UnknownCount``."""
        return [
            recipe.count_samples(self.deal_of(number, deal)) for number, recipe in enumerate(self.recipes)
        ]

    def deal_of(self, number: int, deal: Deal) -> Deal:
        """The lanes of a component in those of the whole."""
        return replace(
            deal,
            lanes=tuple((lane - self.first_lane(number)) % deal.lane_count for lane in deal.lanes),
            component=(*deal.component, self.drawn_as(number)),
            order_seed=self._order_seed(number, deal.order_seed),
        )

    def drawn_as(self, number: int) -> int:
        """What tells the draws of a component from those of another; the same for those that draw alike."""
        return number

    def places_at(self, position: Position, deal: Deal) -> list[Place]:
        """Where each component goes on of which anything was taken."""
        return [
            place
            for number, inside in self.positions_of(position).items()
            for place in places_of(self.recipes[number], inside, self.deal_of(number, deal))
        ]

    def positions_of(self, position: Position) -> dict[int, Position]:
        """Where the components stand of which anything was taken, and more may be."""
        gone = position.get("gone", ())
        of = {int(number): inside for number, inside in position.get("of", {}).items()}
        return {number: inside for number, inside in of.items() if number not in gone}

    def describe(self) -> Mapping[str, Any]:
        components = [
            {"name": name, **recipe.describe()} for name, recipe in zip(self.names, self.recipes, strict=True)
        ]
        return {"source": self.kind, "components": components}

    def first_lane(self, number: int) -> int:
        """The lane that is a component's first: behind those that the ones before it are dealt to."""
        counts = self.lane_counts()
        return 0 if counts[number] is None else sum(count or 0 for count in counts[:number])

    @property
    def most_lanes(self) -> int | None:
        """Those of all components together; None if that is not known of one."""
        counts = [count for count in self.lane_counts() if count is not None]
        return sum(counts) if len(counts) == len(self.recipes) else None

    def lane_counts(self) -> list[int | None]:
        """How many lanes can have something of each component, None where that is not known."""
        return [recipe.source.most_lanes for recipe in self.recipes]

    def endless(self) -> list[bool]:
        """Which components never end."""
        return [is_endless(recipe) for recipe in self.recipes]

    @property
    def is_endless(self) -> bool:
        """Whether the whole never ends."""
        return any(self.endless())

    def _order_seed(self, number: int, outer: int | None) -> int | None:
        """A component without a shuffle has its shards shuffled by one behind the mixture, as others have."""
        own = self.recipes[number].order_seed
        return outer if own is None else own

    def __repr__(self) -> str:
        shown = [f"{name}={recipe!r}" for name, recipe in zip(self.names, self.recipes, strict=True)]
        return f"{type(self).__name__}({', '.join(shown)})"


def of_component(number: int, provenance: Provenance) -> Provenance:
    """What a component's samples say, for those around it, where it has a number."""
    origins = [origin._replace(component=(number, *origin.component)) for origin in provenance.origins]
    return provenance._replace(origins=origins)


def is_endless(recipe: Recipe) -> bool:
    """Whether a recipe is known to go on for ever."""
    endless = isinstance(recipe.source, Composed) and recipe.source.is_endless
    for op in recipe.ops:
        endless = (endless or op == Repeat(None)) and not isinstance(op, Take)
    return endless


def components_of(source: object) -> tuple[Recipe, ...]:
    """The recipes that a source is made of; none for the others."""
    return source.recipes if isinstance(source, Composed) else ()


def places_of(recipe: Recipe, position: Position, deal: Deal) -> list[Place]:
    """The samples that the one lane of ``deal`` reads on from when a recipe is opened at ``position``.

    Of several components one each; none at the end.
    """
    return recipe.source.places_at(*innermost(recipe, position, deal))


def innermost(recipe: Recipe, position: Position, deal: Deal) -> tuple[Position, Deal]:
    """The position of the recipe's source, and the lane in the repetition that it is in."""
    # Each operator's position is around that of what comes before it, the source's innermost.
    repeats = [op.times or 1 for op in recipe.ops if isinstance(op, Repeat)]
    while "from" in position and not position.keys() & {"shard", "component"}:
        if "repetition" in position:
            times = repeats.pop() if repeats else 1 << _REPETITION_BITS
            deal = deal.repeated(deal.repetition * times + position["repetition"])
        position = position["from"]
    return position, deal


def leaves_of(recipe: Recipe) -> list[Source]:
    """The sources that are made of no others."""
    inner = components_of(recipe.source)
    return [source for part in inner for source in leaves_of(part)] if inner else [recipe.source]


def counted_names(source: object) -> tuple[str, ...]:
    """The names of the components whose samples are counted each for itself."""
    return source.names if isinstance(source, Composed) and source.is_counted else ()


def repeated(outer: int, inner: int) -> int:
    """One number for a repetition inside of another one, which has no end that is known."""
    return (outer << _REPETITION_BITS) + inner


# One component in one lane, read in the pieces that the whole takes of it.


class ComponentMark:
    """The position behind a sample, worked out once, if somebody asks.

    Args:
        trail: Of the sample's block.
        index: Of the sample in it.
    """

    __slots__ = ("_found", "_index", "_trail")

    def __init__(self, trail: Trail, index: int) -> None:
        self._trail: Trail | None = trail
        self._index = index
        self._found: Position = START

    @classmethod
    def at(cls, position: Position) -> ComponentMark:
        """One that is known."""
        mark = cls.__new__(cls)
        mark._trail, mark._index, mark._found = None, 0, position
        return mark

    def position(self) -> Position:
        if self._trail is not None:
            self._found, self._trail = self._trail.after(self._index), None
        return self._found


class Feed:
    """One component in one lane: its blocks, pulled when they are due, and taken in pieces.

    Args:
        source: The whole, in which the component is known by its number.
        number: Of the component.
        lane: Of the whole.
        share: See ``Composed.lane_of``.
        saved: Where the component goes on; None if nothing was taken of it before.
        begins_anew: Whether it may, so that positions say which repetition they are in.

    Attributes:
        held: How many samples are here.
        mark: Where it goes on behind the last sample that was taken; None before the first one.
        repetition: How often it has begun anew.
    """

    def __init__(
        self,
        source: Composed,
        number: int,
        lane: Lane,
        share: float,
        saved: Position | None,
        begins_anew: bool = False,
    ) -> None:
        self._recipe = source.recipes[number]
        self._name = source.names[number]
        self._kind = source.kind
        self._lane, self._portion = source.lane_of(number, lane, share)
        self._blocks: Blocks | None = None
        self._held: Block | None = None
        self.held = 0
        self._begins_anew = begins_anew
        self.mark = None if saved is None else ComponentMark.at(saved)
        self.repetition: int = (saved or START).get("repetition", 0)

    def pull(self) -> bool:
        """Wait for the next block, when nothing is held; says whether there is one."""
        self._portion.wait()
        try:
            if self._blocks is None:
                self._blocks = self._open(START if self.mark is None else self.mark.position())
            self._held = next(self._blocks, None)
        except Exception as error:
            add_note(error, f"in component {self._name!r} of {self._kind}")
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
        self.mark = ComponentMark(part.trail, count - 1)
        return part

    def begin_anew(self) -> None:
        """Go on with the next repetition from its beginning; shuffles draw anew in it."""
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
            # A position in the repetition before is of one that is over.
            start = start.get("from", START) if start.get("repetition") == self.repetition else START
        with closing(self._recipe.open(start, lane)) as blocks:
            for block in blocks:
                if self._begins_anew:
                    block = block.follow(NestedTrail(block.trail, {"repetition": self.repetition}))
                yield block


# The source that reads several recipes one after another, in each lane for itself.


@dataclass(frozen=True, repr=False)
class Concat(Composed):
    """Samples of several recipes: those that a lane has of the first, then those of the second, and so on."""

    kind = "concat"

    def open(self, start: Position, lane: Lane) -> Blocks:
        first: int = start.get("component", 0)
        for number in range(first, len(self.recipes)):
            saved = start.get("from") if number == first else None
            with closing(Feed(self, number, lane, 1.0, saved)) as feed:
                while feed.pull():
                    block = feed.take(feed.held)
                    yield block.follow(_ConcatTrail(block.trail, number))
                    del block

    def positions_of(self, position: Position) -> dict[int, Position]:
        return {position.get("component", 0): position.get("from", START)}

    def count_samples(self, deal: Deal) -> list[float]:
        return [sum(of_lane) for of_lane in zip(*self.counts_of(deal), strict=True)]


@dataclass(slots=True)
class _ConcatTrail(Trail):
    """Positions inside a block of one component.

    Args:
        trail: Of its samples.
        number: Of the component.
    """

    trail: Trail
    number: int

    def after(self, index: int) -> Position:
        return {"component": self.number, "from": self.trail.after(index)}

    def place(self, index: int) -> Place:
        return self.trail.place(index)

    def components(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.full(len(indices), self.number)

    def provenance(self, indices: Indices) -> Provenance:
        return of_component(self.number, self.trail.provenance(indices))

    def table(self) -> tuple[Provenance, tuple[int, ...]]:
        found, order = self.trail.table()
        return of_component(self.number, found), order
