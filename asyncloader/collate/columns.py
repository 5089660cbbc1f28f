"""``default_collate`` of columns: the batches that it makes of their rows, and no row made.

Rules are looked up as torch does it, by the first value: where a user has registered one over torch's own,
the values of a column are collated one by one, and so as the rule says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..blocks import Column, Ragged
from ..lent_memory import copied
from ..tensors import has_tensors, may_stand_in, tensor_of
from .plain import collate_plain
from .streaming import streaming_rules
from .torchs import torchs

__all__ = ["stack_columns"]


def stack_columns(fields: Mapping[str, Column]) -> Any:
    """The batch that ``default_collate`` makes of the rows; NotImplemented where it may fail or differ."""
    if not len(next(iter(fields.values()))):
        return NotImplemented
    stack = _stack_without_torch
    if not may_stand_in():
        if _rule_of(dict) is not None:
            return NotImplemented
        stack = _stack
    try:
        batch = {name: stack(column) for name, column in fields.items()}
    except Exception:
        return NotImplemented  # it fails with the rows too, which then say where
    return NotImplemented if any(part is NotImplemented for part in batch.values()) else batch


def _stack(column: Column) -> Any:
    column = _even(column)
    if isinstance(column, np.ndarray) and has_tensors(column.dtype) and _has_usual_rules(column):
        return tensor_of(copied(column))
    return torchs().collate(list(column), collate_fn_map=streaming_rules())


def _stack_without_torch(column: Column) -> Any:
    column = _even(column)
    if isinstance(column, np.ndarray) and has_tensors(column.dtype):
        return NotImplemented if _is_refused(column) else tensor_of(copied(column))
    return collate_plain(list(column))


def _even(column: Column) -> Column:
    """An array where all values are of one length; a ValueError where they are not. Others are as rows."""
    return np.asarray(column) if type(column) is Ragged and isinstance(column.values, np.ndarray) else column


def _has_usual_rules(column: np.ndarray[Any, Any]) -> bool:
    """Whether rules of torch's own would stack the values as they are."""
    import torch

    private = torchs()
    if column.ndim > 1:
        is_usual = _rule_of(np.ndarray) is private.collate_numpy_array_fn
        return is_usual and _rule_of(torch.Tensor) is private.collate_tensor_fn
    return not _is_refused(column) and _rule_of(column.dtype.type) is private.collate_numpy_scalar_fn


def _is_refused(column: np.ndarray[Any, Any]) -> bool:
    """A number of type uint64 is refused by torch's rule."""
    return column.ndim == 1 and column.dtype == np.uint64


def _rule_of(kind: type[Any]) -> Any:
    """What collates values of a type: a rule for it, or the first one for a class that it is of."""
    rules = torchs().default_collate_fn_map
    if kind in rules:
        return rules[kind]
    return next((rule for candidates, rule in rules.items() if issubclass(kind, candidates)), None)
