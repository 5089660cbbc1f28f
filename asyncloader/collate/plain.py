"""torch's rules of collation for plain values, where torch is not imported: see ``tensors``.

Only what is surely collated alike is: anything else is left to torch, which is then imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..lent_memory import stacked
from ..tensors import has_tensors, tensor_of

__all__ = ["are_alike", "collate_plain"]

_NUMBERS = {bool: np.bool_, int: np.int64, float: np.float64}


def collate_plain(values: Sequence[Any]) -> Any:
    """The batch of ``values``; NotImplemented if they hold anything that torch may see otherwise."""
    kinds = set(map(type, values))
    if len(kinds) != 1:
        return NotImplemented
    kind = kinds.pop()
    if kind is dict:
        names = values[0].keys()
        if any(value.keys() != names for value in values):
            return NotImplemented  # torch takes no notice of what the first lacks
        parts = {name: collate_plain([value[name] for value in values]) for name in names}
        return NotImplemented if any(part is NotImplemented for part in parts.values()) else parts
    if kind is list or kind is tuple:
        if len(set(map(len, values))) != 1:
            return NotImplemented
        columns = [collate_plain(column) for column in zip(*values, strict=True)]
        return NotImplemented if any(column is NotImplemented for column in columns) else columns
    if kind is str or kind is bytes:
        return values
    if kind in _NUMBERS:
        try:
            return tensor_of(np.array(values, _NUMBERS[kind]))
        except OverflowError:
            return NotImplemented
    if issubclass(kind, np.bool_ | np.number) and kind is not np.uint64:  # of those torch makes no tensor
        scalars = np.array(values)
        return tensor_of(scalars) if has_tensors(scalars.dtype) else NotImplemented
    if kind is np.ndarray and are_alike(values) and has_tensors(values[0].dtype):
        return tensor_of(stacked(values))
    return NotImplemented


def are_alike(arrays: Sequence[Any]) -> bool:
    """Whether they have one shape and one dtype."""
    first = arrays[0]
    return all(array.shape == first.shape and array.dtype == first.dtype for array in arrays)
