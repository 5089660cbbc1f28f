"""Collates a block: straight from its columns where both sides can, otherwise from rows."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from ..blocks import Block, Column, Columns
from ..stopwatch import COLLATE, DECODE
from ..tensors import standing_in
from .columns import stack_columns
from .default import default_collate
from .entries import telling_entries
from .streaming import streaming_collate

__all__ = ["collate_block", "collate_columns", "does_without_torch", "takes_columns"]


def collate_block(
    fn: Callable[[Any], Any],
    block: Block,
    place_of: Callable[[int], str],
    enter: Callable[[str], object] = str,
) -> Any:
    """What ``fn`` makes of the samples of a block.

    Whatever is wrong with the samples is left to the rows: so there is one place that says it.

    Args:
        fn: Any ``collate_fn``.
        block: The samples.
        place_of: Says of a sample, by its index, where it came from.
        enter: Is told at which stage it is: to make rows of columns is not what ``fn`` does.
    """
    if "torch" not in sys.modules and does_without_torch(fn):
        with standing_in():
            return _collate_block(fn, block, place_of, enter)
    return _collate_block(fn, block, place_of, enter)


def _collate_block(
    fn: Callable[[Any], Any], block: Block, place_of: Callable[[int], str], enter: Callable[[str], object]
) -> Any:
    if isinstance(block, Columns):
        batch = collate_columns(fn, block.fields)
        if batch is not NotImplemented:
            return batch
        enter(DECODE)
        rows = list(block.rows())
        enter(COLLATE)
    else:
        rows = list(block.rows())  # a list of its own, which the function may change
    with telling_entries(rows, place_of):
        return fn(rows)


def does_without_torch(fn: Callable[[Any], Any]) -> bool:
    """Whether a function of ours makes batches of plain values without torch, and calls none of the user's.

    Such a one says ``does_without_torch``.
    """
    return fn is streaming_collate or fn is default_collate or bool(getattr(fn, "does_without_torch", False))


def collate_columns(fn: Callable[[Any], Any], fields: Mapping[str, Column]) -> Any:
    """What ``fn`` makes of the rows of these columns, without rows; NotImplemented where that cannot be.

    A function may have a method ``from_columns(fields)``, which gives the same batch as the function does
    from rows, or NotImplemented where it cannot. ``default_collate`` is known here, torch's own too.
    """
    if _is_default(fn):
        return stack_columns(fields)
    from_columns = getattr(fn, "from_columns", None)
    return NotImplemented if from_columns is None else from_columns(fields)


def takes_columns(fn: Callable[[Any], Any]) -> bool:
    """Whether a function has a use for columns that would have to be made; ``default_collate`` has none."""
    return hasattr(fn, "from_columns")


def _is_default(fn: Callable[[Any], Any]) -> bool:
    """Whether it is ``default_collate``, ours or torch's; who has torch's has imported it."""
    torchs = getattr(sys.modules.get("torch.utils.data"), "default_collate", None)
    return fn is streaming_collate or fn is default_collate or (fn is torchs and torchs is not None)
