"""What map-style datasets have: the items of `map_style`, apart from `given`, as that module needs torch."""

from __future__ import annotations

from functools import cache

from map_style import Items

from .given import Source

__all__ = ["items_of"]


class Some(Items):
    """The first of them."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._first = count

    def __len__(self) -> int:
        return self._first


@cache
def items_of(source: Source) -> Some:
    """Made once, so that it can be before the clock starts."""
    return Some(source.samples)
