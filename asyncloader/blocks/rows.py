"""Blocks of rows: an object for each sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .block import Column, lacks_field
from .regrouped import PickedTrail
from .trails import Trail

__all__ = ["Rows"]


@dataclass(slots=True)
class Rows:
    """Samples of any kind, mostly mappings; see ``Block``."""

    samples: list[Any]
    trail: Trail

    def __len__(self) -> int:
        return len(self.samples)

    def part(self, start: int, stop: int) -> Rows:
        return Rows(self.samples[start:stop], PickedTrail(self.trail, range(start, stop)))

    def take(self, indices: Sequence[int]) -> Rows:
        return Rows([self.samples[index] for index in indices], PickedTrail(self.trail, indices))

    def follow(self, trail: Trail) -> Rows:
        return Rows(self.samples, trail)

    def rows(self) -> list[Any]:
        return self.samples

    def column(self, name: str) -> Column:
        try:
            return [sample[name] for sample in self.samples]
        except KeyError:
            for index, sample in enumerate(self.samples):
                if name not in sample:
                    raise lacks_field(name, sample, self.trail, index) from None
            raise
