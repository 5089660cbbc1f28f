"""Takes a batch apart into the leaves that can be pinned, and builds one like it from others.

Laws:

* The rules are those of torch's own pin-memory thread, in its order (torch 2.13,
  ``torch/utils/data/_utils/pin_memory.py``): whatever has a ``pin_memory`` method, tensors first of all,
  is a leaf; text stays; mappings, tuples and other sequences are copied with their type kept; the rest
  is passed on as it is. Added to them: dataclass instances are copied with their type kept.
* The batch is read once and never changed: a dataset may still own what it is made of.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, Sequence
from operator import itemgetter
from typing import Any, TypeAlias

__all__ = ["Build", "take_apart"]

#: Makes a batch of the old one's structure out of new leaves, given in the order of the old ones.
Build: TypeAlias = Callable[[Sequence[Any]], Any]

# What needs no look at its abstract base classes: those cost a microsecond each, and a batch may hold
# lists of thousands of keys. bytearray is a mutable sequence, which torch would copy byte by byte.
_PLAIN = frozenset({str, bytes, bytearray, int, float, bool, complex, type(None)})


def take_apart(batch: Any) -> tuple[list[Any], Build]:
    """Find the leaves of ``batch``.

    Returns:
        The leaves, tensors and other objects with a ``pin_memory`` method, and what builds a batch of
        the same structure from as many new ones.
    """
    leaves: list[Any] = []
    build = _part(batch, leaves)
    return leaves, build if build is not None else lambda _: batch


def _part(value: Any, leaves: list[Any]) -> Build | None:
    """What builds the new ``value``; None if that is the old one."""
    if type(value) in _PLAIN:
        return None
    if hasattr(value, "pin_memory"):
        leaves.append(value)
        return itemgetter(len(leaves) - 1)
    if isinstance(value, (str, bytes, bytearray)):
        return None
    if isinstance(value, Mapping):
        return _mapping(value, leaves)
    if isinstance(value, Sequence):
        return _sequence(value, leaves)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _dataclass(value, leaves)
    return None


def _mapping(old: Mapping[Any, Any], leaves: list[Any]) -> Build:
    parts = [(key, item, _part(item, leaves)) for key, item in old.items()]

    def build(new: Sequence[Any]) -> Any:
        items = {key: item if part is None else part(new) for key, item, part in parts}
        try:
            if not isinstance(old, MutableMapping):
                return type(old)(items)  # type: ignore[call-arg]  # as torch does; the TypeError is caught
            # A copy, not a new one: the type may have more to it than its items.
            clone = copy.copy(old)
            clone.update(items)
        except TypeError:
            return items
        return clone

    return build


def _sequence(old: Sequence[Any], leaves: list[Any]) -> Build:
    parts = [(item, _part(item, leaves)) for item in old]

    def build(new: Sequence[Any]) -> Any:
        items = [item if part is None else part(new) for item, part in parts]
        if isinstance(old, tuple):
            return type(old)(*items) if hasattr(old, "_fields") else type(old)(items)
        try:
            if not isinstance(old, MutableSequence):
                return type(old)(items)  # type: ignore[call-arg]  # as torch does; the TypeError is caught
            clone = copy.copy(old)
            for index, item in enumerate(items):
                clone[index] = item
        except TypeError:  # A range cannot be built from its items.
            return items
        return clone

    return build


def _dataclass(old: Any, leaves: list[Any]) -> Build:
    # A field that was never set, or was deleted, has nothing to walk.
    names = [field.name for field in dataclasses.fields(old) if hasattr(old, field.name)]
    parts = [(name, _part(getattr(old, name), leaves)) for name in names]

    def build(new: Sequence[Any]) -> Any:
        # Not dataclasses.replace: it would run __post_init__ again, refuses fields with init=False and
        # asks for every InitVar. object's own __setattr__ is how a frozen dataclass sets its fields.
        clone = copy.copy(old)
        for name, part in parts:
            if part is not None:
                object.__setattr__(clone, name, part(new))
        return clone

    return build
