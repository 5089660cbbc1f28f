"""``default_collate`` of columns: the batches that it makes of their rows, and no row made.

Rules are looked up as torch does it, by the first value: where a user has registered one over torch's own,
the values of a column are collated one by one, and so as the rule says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ..blocks import Column, Ragged
from ..torch_private import (
    collate,
    collate_numpy_array_fn,
    collate_numpy_scalar_fn,
    collate_tensor_fn,
    default_collate_fn_map,
)
from .streaming import streaming_rules

__all__ = ["stack_columns"]


def stack_columns(fields: Mapping[str, Column]) -> Any:
    """The batch that ``default_collate`` makes of the rows; NotImplemented where it may fail or differ."""
    if not len(next(iter(fields.values()))) or _rule_of(dict) is not None:
        return NotImplemented
    try:
        return {name: _stack(column) for name, column in fields.items()}
    except Exception:
        return NotImplemented  # it fails with the rows too, which then say where


def _stack(column: Column) -> Any:
    if type(column) is Ragged and isinstance(column.values, np.ndarray):  # others are lists as rows
        column = np.asarray(column)  # a ValueError where lengths differ
    if isinstance(column, np.ndarray) and _is_plain(column):
        return torch.from_numpy(np.array(column, order="C"))
    return collate(list(column), collate_fn_map=streaming_rules())


def _is_plain(column: np.ndarray[Any, Any]) -> bool:
    """Whether rules of torch's own would stack the values as they are."""
    dtype = column.dtype
    if dtype.kind not in "biufc" or not dtype.isnative:
        return False
    if column.ndim > 1:
        return _rule_of(np.ndarray) is collate_numpy_array_fn and _rule_of(torch.Tensor) is collate_tensor_fn
    # A number of type uint64 is refused by torch's rule.
    return dtype != np.uint64 and _rule_of(dtype.type) is collate_numpy_scalar_fn


def _rule_of(kind: type[Any]) -> Any:
    """What collates values of a type: a rule for it, or the first one for a class that it is of."""
    for candidates in (kind, *default_collate_fn_map):
        if candidates in default_collate_fn_map and issubclass(kind, candidates):
            return default_collate_fn_map[candidates]
    return None
