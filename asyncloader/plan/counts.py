"""How many samples lanes hold and how many batches those make, worked out before anything is read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias

__all__ = ["Counter", "Deal", "UnknownCount", "batch_count", "take_share"]


class UnknownCount(TypeError):
    """How many samples there are cannot be known beforehand; the message says why."""


@dataclass(frozen=True, slots=True)
class Deal:
    """Lanes of one pass, and all that decides which samples they are dealt.

    Attributes:
        lanes: Those asked about.
        lane_count: How many there are.
        epoch: Number of the pass.
        order_seed: Draws the order of shards; None for the order given.
        repetition: Which repetition of the data within the epoch this is.
        component: Which component of a mixture they are lanes of, behind those of the mixtures around it.
        varies: Whether they differ from repetition to repetition also where shards keep their order.
    """

    lanes: tuple[int, ...]
    lane_count: int
    epoch: int
    order_seed: int | None
    repetition: int = 0
    component: tuple[int, ...] = ()
    varies: bool = False

    def draw_key(self, seed: int) -> tuple[int, ...]:
        """What seeds a draw for all lanes alike."""
        return seed, self.epoch, self.repetition, *self.component

    def repeated(self, repetition: int) -> Deal:
        """The same lanes in another repetition, for which shards are dealt anew."""
        return replace(self, repetition=repetition)

    @property
    def order_key(self) -> tuple[int, ...] | None:
        """What draws the order of shards; None for the order given."""
        return None if self.order_seed is None else self.draw_key(self.order_seed)


Counter: TypeAlias = Callable[[Deal], list[float]]
"""Gives the number of samples of each lane, infinite if it never ends; may raise ``UnknownCount``."""


def take_share(count: int, lane: int, lanes: int) -> int:
    """How many of ``count`` samples a lane takes: as many as every other, or one more."""
    return count // lanes + (lane < count % lanes)


def batch_count(samples: Iterable[float], batch_size: int | None, drop_last: bool) -> int:
    """How many batches lanes with so many samples make, each cutting its own.

    Raises:
        UnknownCount: A lane never ends.
    """
    batches = 0
    for count in samples:
        if math.isinf(count):
            raise UnknownCount("repeat() goes on for ever")
        whole, rest = divmod(int(count), batch_size or 1)
        batches += whole + (rest > 0 and not drop_last)
    return batches
