"""Collates a block: straight from its columns where both sides can, otherwise from rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from ..blocks import Block, Column, Columns
from .entries import telling_entries

__all__ = ["collate_block", "collate_columns", "takes_columns"]


def collate_block(fn: Callable[[Any], Any], block: Block, place_of: Callable[[int], str]) -> Any:
    """What ``fn`` makes of the samples of a block.

    Whatever is wrong with the samples is left to the rows: so there is one place that says it.

    Args:
        fn: Any ``collate_fn``.
        block: The samples.
        place_of: Says of a sample, by its index, where it came from.
    """
    if isinstance(block, Columns):
        batch = collate_columns(fn, block.fields)
        if batch is not NotImplemented:
            return batch
    rows = list(block.rows())  # the function may change it
    with telling_entries(rows, place_of):
        return fn(rows)


def collate_columns(fn: Callable[[Any], Any], fields: Mapping[str, Column]) -> Any:
    """What ``fn`` makes of the rows of these columns, without rows; NotImplemented where that cannot be.

    A function may have a method ``from_columns(fields)``, which gives the same batch as the function does
    from rows, or NotImplemented where it cannot. ``default_collate`` is known here, torch's own too.
    """
    if any(fn is default for default in _defaults()):
        from .columns import stack_columns

        return stack_columns(fields)
    from_columns = getattr(fn, "from_columns", None)
    return NotImplemented if from_columns is None else from_columns(fields)


def takes_columns(fn: Callable[[Any], Any]) -> bool:
    """Whether a function has a use for columns that would have to be made; ``default_collate`` has none."""
    return hasattr(fn, "from_columns")


@cache
def _defaults() -> tuple[Callable[[Any], Any], ...]:
    """``default_collate``, ours and torch's; imported only now: ``import asyncloader`` loads no torch."""
    import torch.utils.data

    from .default import default_collate
    from .streaming import streaming_collate

    return streaming_collate, default_collate, torch.utils.data.default_collate
