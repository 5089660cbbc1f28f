"""torch's own collation, with errors that say which field of which sample they are about.

torch's functions do the work, so what a user registered in ``default_collate_fn_map`` holds here too. They
are imported only now: ``import asyncloader`` must not import torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from types import ModuleType
from typing import Any

from ._fault import explain
from .torchs import torchs

__all__ = ["default_collate", "default_convert", "note_field"]


def default_collate(batch: Sequence[Any]) -> Any:
    """Stack a list of samples into a batch, by the rules of ``torch.utils.data.default_collate``.

    Args:
        batch: ``B`` samples of like structure. The first one decides: its keys, its types.

    Returns:
        The structure of one sample with every leaf batched: tensors and NumPy arrays of shape ``S``
        become a tensor ``(B, *S)`` of their dtype, a Python ``int`` ``(B,) int64``, ``float``
        ``(B,) float64``, ``bool`` ``(B,) bool``. Strings and bytes, such as ``__key__`` and
        ``__url__``, stay a list. Mappings, namedtuples and lists keep their type, a tuple becomes a
        list.

    Raises:
        Exception: What torch raises, unchanged in type and message: RuntimeError for unequal shapes
            or lengths, TypeError for a type without a rule, KeyError for a field that a later sample
            lacks, IndexError for an empty batch. A note names the field and the entries.
    """
    if "torch" not in sys.modules and (plain := _without_torch(batch)) is not NotImplemented:
        return plain
    try:
        return _writable().collate_writable(batch)
    except Exception as error:
        note_field(error, batch, _writable().collate_writable)
        raise


def default_convert(sample: Any) -> Any:
    """Turn a sample's arrays into tensors, by the rules of ``torch.utils.data.default_convert``.

    Args:
        sample: One sample, not batched (``batch_size=None``).

    Returns:
        The sample with NumPy arrays and scalars as tensors of the same shape and dtype, sharing the
        array's memory where torch can, but for arrays that cannot be written, which are copied: a tensor
        can be written to, and torch would warn. Python numbers, strings, bytes, arrays of strings or objects
        and whatever else are left as they are. A tuple becomes a list.

    Raises:
        Exception: What torch raises, unchanged in type and message: TypeError for a dtype that it
            lacks. A note names the field.
    """
    import torch.utils.data

    torch_convert: Callable[[Any], Any] = torch.utils.data.default_convert  # untyped there
    try:
        return _writable().convert_writable(sample, torch_convert)
    except Exception as error:
        note_field(error, [sample], lambda values: torch_convert(values[0]))
        raise


@cache
def _writable() -> ModuleType:
    """The functions that do the work, of which this file does without until it is called: they want NumPy."""
    from . import writable

    return writable


def _without_torch(batch: Sequence[Any]) -> Any:
    """The batch with stand-ins for tensors, where they are allowed; else NotImplemented."""
    from ..tensors import may_stand_in
    from .plain import collate_plain

    return collate_plain(batch) if may_stand_in() else NotImplemented


def note_field(error: Exception, batch: Sequence[Any], attempt: Callable[[Any], Any]) -> None:
    """Add the place to ``error``; torch's message stays, so that code which matches it still does."""
    rules = torchs().default_collate_fn_map
    leaf_types = tuple(kind for kinds in rules for kind in (kinds if isinstance(kinds, tuple) else (kinds,)))
    # Samples are the user's objects and may fail in any way when they are looked at again. The error
    # that matters is already on its way; a failed diagnosis must not replace it.
    with suppress(Exception):
        error.add_note(explain(batch, attempt, lambda value: isinstance(value, leaf_types)))
