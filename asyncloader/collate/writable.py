"""torch's functions, of arrays that cannot be written to, as those over the bytes of a shard are: of copies.

torch makes tensors over their memory, in which a training may then write, and warns of it, also where it
copies them in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..tensors import has_tensors
from .torchs import torchs

__all__ = ["as_writable", "collate_writable", "convert_writable"]


def as_writable(array: NDArray[Any]) -> NDArray[Any]:
    """The array, or a copy of it."""
    return array if array.flags.writeable else array.copy()


def collate_writable(batch: Sequence[Any]) -> Any:
    """What torch's ``default_collate`` makes of a batch, by the rules that users have extended."""
    rules = dict(torchs().default_collate_fn_map)
    if rules.get(np.ndarray) is torchs().collate_numpy_array_fn:
        rules[np.ndarray] = _stack_writable
    return torchs().collate(batch, collate_fn_map=rules)


def _stack_writable(arrays: Sequence[Any], *, collate_fn_map: Any = None) -> Any:
    # What is no array among them is for torch to refuse, in its own words.
    writable = [as_writable(array) if isinstance(array, np.ndarray) else array for array in arrays]
    return torchs().collate_numpy_array_fn(writable, collate_fn_map=collate_fn_map)


def convert_writable(value: Any, convert: Callable[[Any], Any]) -> Any:
    """What ``convert``, torch's ``default_convert``, makes of a value, walked as it does."""
    kind = type(value)
    if kind is np.ndarray:
        return convert(as_writable(value) if has_tensors(value.dtype) else value)
    if kind is dict:
        return {name: convert_writable(part, convert) for name, part in value.items()}
    if kind is list or kind is tuple:
        return [convert_writable(part, convert) for part in value]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return kind(*(convert_writable(part, convert) for part in value))
    return convert(value)
