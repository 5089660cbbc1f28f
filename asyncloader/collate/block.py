"""Collates a block: straight from its columns where both sides can, otherwise from rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..blocks import Block, Column, Columns
from .entries import telling_entries

__all__ = ["collate_block"]


def collate_block(fn: Callable[[Any], Any], block: Block, place_of: Callable[[int], str]) -> Any:
    """What ``fn`` makes of the samples of a block.

    A function may have a method ``from_columns(fields)``, which gives the same batch as the function does
    from rows, or NotImplemented where it cannot. Whatever is wrong with the samples is left to the rows: so
    there is one place that says it.

    Args:
        fn: Any ``collate_fn``.
        block: The samples.
        place_of: Says of a sample, by its index, where it came from.
    """
    if isinstance(block, Columns):
        batch = _from_columns(fn, block.fields)
        if batch is not NotImplemented:
            return batch
    rows = list(block.rows())  # the function may change it
    with telling_entries(rows, place_of):
        return fn(rows)


def _from_columns(fn: Callable[[Any], Any], fields: Mapping[str, Column]) -> Any:
    from_columns = getattr(fn, "from_columns", None)
    return NotImplemented if from_columns is None else from_columns(fields)
