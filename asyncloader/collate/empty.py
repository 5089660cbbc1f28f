"""Batches without rows, for ranks that have none left while others go on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

__all__ = ["empty_like", "is_empty"]


def empty_like(batch: Any, collate_fn: Callable[[Any], Any] | None = None) -> Any:
    """A batch of the structure of ``batch``, and of no samples.

    Args:
        batch: Of tensors and arrays ``(B, ...)``, lists of ``B`` strings or objects, numbers of the batch,
            and mappings, tuples and lists of these.
        collate_fn: What made it. Its method ``empty(batch)``, if it has one, is asked instead.

    Returns:
        Its like: tensors and arrays ``(0, ...)`` of the same dtypes and devices, empty lists, and zeros.

    Raises:
        TypeError: Something else is in there, of which nobody here knows what it is without samples.
    """
    make = getattr(collate_fn, "empty", None)
    return make(batch) if callable(make) else _without_rows(batch)


def is_empty(batch: Any) -> bool:
    """Whether a batch has no samples: one that ``uneven="pad"`` made for a rank that had none left.

    Its first tensor or array tells, ``(0, ...)`` or not; without one, its first list.
    """
    for leaf in _leaves(batch):
        return len(leaf) == 0
    return False


def _leaves(value: Any) -> Any:
    """What has a row for each sample, tensors and arrays before lists."""
    if isinstance(value, torch.Tensor | np.ndarray):
        if value.ndim:
            yield value
        return
    values = value.values() if isinstance(value, Mapping) else value
    if isinstance(value, Mapping | list | tuple):
        for inner in values:
            yield from _leaves(inner)
    if isinstance(value, list) and not any(map(_is_nested, value)):
        yield value


def _is_nested(value: Any) -> bool:
    return isinstance(value, torch.Tensor | np.ndarray | Mapping | list | tuple)


def _without_rows(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.new_empty((0, *value.shape[1:])) if value.ndim else torch.zeros_like(value)
    if isinstance(value, np.ndarray):
        return np.empty((0, *value.shape[1:]), value.dtype) if value.ndim else np.zeros_like(value)
    if isinstance(value, Mapping):
        fields = {name: _without_rows(inner) for name, inner in value.items()}
        return fields if type(value) is dict else type(value)(fields)  # type: ignore[call-arg]
    if isinstance(value, tuple):
        inner = [_without_rows(part) for part in value]
        return type(value)(*inner) if hasattr(value, "_fields") else tuple(inner)
    if isinstance(value, list):
        # A list is one of columns, as torch collates samples that are tuples, or one of samples' values.
        return [_without_rows(part) for part in value] if any(map(_is_nested, value)) else []
    if isinstance(value, bool | int | float):
        return type(value)(0)
    if value is None:
        return None
    raise TypeError(
        f"expected a batch of tensors, arrays, lists and numbers, but found a {type(value).__name__}, of "
        'which uneven="pad" cannot know what it is without samples: give collate_fn a method empty(batch)'
    )
