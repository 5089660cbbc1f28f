"""The cursor of an epoch: a row for each lane. Whose turn it is follows from the rows alone.

So the rows of all ranks, put together, are the cursor of the whole epoch, and any part of them that one
rank owns is a cursor again, however many ranks there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ..types import Position

__all__ = ["Cursor", "Row"]


@dataclass(frozen=True, slots=True)
class Row:
    """How far a lane has come in an epoch.

    Attributes:
        position: Where it goes on; empty at its beginning.
        batches: How many it has delivered.
        done: Whether it is known to have no more. One that has none need not be known as such: opened at
            its end it is found dry, and passed over.
    """

    position: Position = field(default_factory=dict)
    batches: int = 0
    done: bool = False


@dataclass(slots=True)
class Cursor:
    """Where a rank stands in an epoch: what was delivered, whatever was prefetched.

    Attributes:
        epoch: Number of the pass.
        lanes: The rank's lanes.
        rows: Of each lane that is not at its beginning.
        is_stopped: Whether all ranks were stopped here, with others that had no more: the next epoch comes
            after it, or what was left of this one.
    """

    epoch: int
    lanes: Sequence[int]
    rows: dict[int, Row] = field(default_factory=dict)
    is_stopped: bool = False

    def ended(self, lane: int) -> None:
        """``lane`` has no more batches."""
        self.rows[lane] = replace(self.rows.get(lane, Row()), done=True)

    @property
    def batches(self) -> int:
        """How many were delivered."""
        return sum(row.batches for row in self.rows.values())

    def delivered(self, lane: int, position: Position) -> None:
        """The consumer has been given a batch of ``lane`` which ends at ``position``."""
        self.rows[lane] = self.row_behind(lane, position)

    def row_behind(self, lane: int, position: Position) -> Row:
        """The row of ``lane`` once one more batch of it, which ends at ``position``, is delivered."""
        row = self.rows.get(lane)
        return Row(position, 1 if row is None else row.batches + 1)

    def turns(self) -> list[tuple[int, Row]]:
        """The lanes that are not done, in the order of their next turns; see ``Rotation``."""
        rows = [(lane, self.rows.get(lane, Row())) for lane in self.lanes]
        return sorted(
            ((lane, row) for lane, row in rows if not row.done), key=lambda turn: (turn[1].batches, turn[0])
        )

    def copy(self) -> Cursor:
        """Another one that stays where this one is now."""
        return Cursor(self.epoch, self.lanes, dict(self.rows), self.is_stopped)
