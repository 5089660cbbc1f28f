"""One component in one lane, read in the pieces that the whole takes of it."""

from __future__ import annotations

from contextlib import closing

from ..blocks import Block, NestedTrail, Trail
from ..ops.op import START, Blocks, Lane
from ..tracebacks import add_note
from ..types import Position
from .components import Composed, repeated

__all__ = ["Feed", "Mark"]


class Mark:
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
    def at(cls, position: Position) -> Mark:
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
        self.mark = None if saved is None else Mark.at(saved)
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
        self.mark = Mark(part.trail, count - 1)
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
