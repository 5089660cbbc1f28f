"""What a source knows of the recipes that are its components."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from ..ops.op import Blocks, Lane, Op, Source
from ..plan.counts import Deal
from ..types import Position

__all__ = ["Recipe"]


class Recipe(Protocol):
    """A recipe, as the source knows it that it is a component of."""

    @property
    def source(self) -> Source: ...

    @property
    def order_seed(self) -> int | None: ...

    @property
    def all_ops(self) -> tuple[Op, ...]: ...

    @property
    def ops(self) -> tuple[Op, ...]: ...

    def open(self, start: Position, lane: Lane) -> Blocks: ...

    def count_samples(self, deal: Deal) -> list[float]: ...

    def describe(self) -> Mapping[str, Any]: ...
