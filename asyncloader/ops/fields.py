"""``.select`` and ``.rename``: which fields a sample has, and what they are called."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from ..plan.counts import Counter, Deal
from ..types import Block, Position
from .op import Blocks, Lane, Opener, note_sample

__all__ = ["Rename", "Select"]


@dataclass(frozen=True)
class Select:
    """Keep only the named fields, in this order."""

    fields: tuple[str, ...]

    def open(self, upstream: Opener, start: Position, lane: Lane) -> Blocks:
        with closing(upstream(start, lane)) as blocks:
            for block in blocks:
                yield Block([self._select(sample) for sample in block.samples], block.trail)

    def count_samples(self, upstream: Counter, deal: Deal) -> list[float]:
        return upstream(deal)

    def describe(self) -> Mapping[str, Any]:
        return {"op": "select", "fields": list(self.fields)}

    def _select(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return {name: sample[name] for name in self.fields}
        except (KeyError, TypeError) as error:
            note_sample(error, f"select{self.fields}", sample)
            raise


@dataclass(frozen=True)
class Rename:
    """Give fields other names; the others stay as they are.

    Args:
        names: Pairs of the old name and the new one.
    """

    names: tuple[tuple[str, str], ...]

    def open(self, upstream: Opener, start: Position, lane: Lane) -> Blocks:
        with closing(upstream(start, lane)) as blocks:
            for block in blocks:
                yield Block([self._rename(sample) for sample in block.samples], block.trail)

    def count_samples(self, upstream: Counter, deal: Deal) -> list[float]:
        return upstream(deal)

    def describe(self) -> Mapping[str, Any]:
        return {"op": "rename", "names": [list(pair) for pair in self.names]}

    def _rename(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        renamed = dict(sample)
        try:
            moved = {new: renamed.pop(old) for old, new in self.names}
            if clash := moved.keys() & renamed.keys():
                raise ValueError(f"rename would overwrite the fields {sorted(clash)}")
        except (KeyError, ValueError) as error:
            note_sample(error, f"rename({dict(self.names)})", sample)
            raise
        return renamed | moved
