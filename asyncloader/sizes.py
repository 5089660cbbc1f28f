"""How many bytes a batch holds, for budgets and statistics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .blocks import Ragged

__all__ = ["bytes_of"]

# What a number counts: as much as in an array of its kind, int64 or float64.
_NUMBER_BYTES = 8

# A batch is counted sample by sample, but a list within a sample, of token ids say, by a few of its
# elements: to look at each would take longer than it took to parse them.
_MOST_SAMPLES = 4096
_MOST_ELEMENTS = 16


def bytes_of(batch: Any) -> int:
    """Bytes of the tensors, arrays, ``Ragged``, strings, byte strings and numbers in nested containers.

    A number counts 8, as in an array; what else is there counts 0, and so do the containers themselves.
    In a container within the batch that has more than 16 elements, at most 16 are looked at, from all over
    it, and taken for the others.
    """
    return _size(batch, _MOST_SAMPLES)


def _size(value: Any, most: int = _MOST_ELEMENTS) -> int:
    kind = type(value)
    if kind is str:
        return len(value)
    if kind is dict and len(value) <= most:
        return _sum(value.values())
    if kind is not list:
        if isinstance(value, int | float):
            return _NUMBER_BYTES
        if isinstance(value, bytes | bytearray | str):
            return len(value)
        try:
            size = getattr(value, "nbytes", None)
        except RuntimeError:  # a sparse tensor of torch has none, but its parts do
            is_sparse = getattr(value, "is_sparse", False)
            return value._indices().nbytes + value._values().nbytes if is_sparse else 0
        if isinstance(size, int):
            return size
        if isinstance(value, Ragged):
            return _size(value.flat, most) + value.offsets.nbytes
        if isinstance(value, Mapping):
            value = list(value.values()) if len(value) > most else value.values()
        elif not isinstance(value, list | tuple):
            return 0
    count = len(value)
    if count <= most:
        return _sum(value)
    seen = value[:: -(-count // most)]
    return _sum(seen) * count // len(seen)


def _sum(values: Iterable[Any]) -> int:
    # What parsed JSON is of comes first, here and above, by its type alone: there is much of it, and the
    # questions that fit every kind of value take longer than it took to parse.
    total = 0
    for value in values:
        kind = type(value)
        if kind is int or kind is float:
            total += _NUMBER_BYTES
        else:
            total += len(value) if kind is bytes or kind is str else _size(value)
    return total
