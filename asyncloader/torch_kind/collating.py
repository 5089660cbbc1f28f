"""torch's rules of collation as its workers have them here: the same batches, made where they are sent from.

In a worker torch's rule for tensors allocates from torch's own transport, new pages for each batch. And its
rules for numbers take four times as long as NumPy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..lent_memory import empty
from ..torch_private import collate_float_fn, collate_int_fn, collate_tensor_fn, default_collate_fn_map

__all__ = ["use_own_rules"]


def use_own_rules() -> None:
    """Put our rules in the place of torch's, in all of this process; those of users stay."""
    for kind, torchs, ours in _RULES:
        if default_collate_fn_map.get(kind) is torchs:
            default_collate_fn_map[kind] = ours


def _stack(tensors: Sequence[torch.Tensor], *, collate_fn_map: Any = None) -> Any:
    """torch's rule, but for whose memory the batch is made in."""
    first = tensors[0]
    is_plain = type(first) is torch.Tensor and first.device.type == "cpu" and first.layout == torch.strided
    if not is_plain or first.is_quantized or first.is_nested:
        return collate_tensor_fn(tensors, collate_fn_map=collate_fn_map)
    shape = len(tensors), *first.shape
    if first.nbytes:
        memory = torch.from_numpy(empty((len(tensors) * first.nbytes,), np.uint8))
        batch = memory.view(first.dtype).view(shape)
    else:
        batch = torch.empty(shape, dtype=first.dtype)
    # Checks and promotes as torch's rule does, which gives ``out`` as well.
    return torch.stack(list(tensors), out=batch)


def _take_integers(numbers: Sequence[Any], *, collate_fn_map: Any = None) -> Any:
    array = _array_of(numbers)
    if array is None or array.dtype not in (np.int64, np.bool_):  # too large, or not all of them integers
        return collate_int_fn(numbers, collate_fn_map=collate_fn_map)
    return torch.from_numpy(array)


def _take_floats(numbers: Sequence[Any], *, collate_fn_map: Any = None) -> Any:
    array = _array_of(numbers)
    if array is None or array.dtype != np.float64:
        return collate_float_fn(numbers, collate_fn_map=collate_fn_map)
    return torch.from_numpy(array)


def _array_of(numbers: Sequence[Any]) -> NDArray[Any] | None:
    try:
        return np.array(numbers)
    except (RuntimeError, TypeError, ValueError):  # there is something else among them
        return None


_RULES = [
    (torch.Tensor, collate_tensor_fn, _stack),
    (int, collate_int_fn, _take_integers),
    (float, collate_float_fn, _take_floats),
]
