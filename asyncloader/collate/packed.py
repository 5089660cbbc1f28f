"""Makes a batch of packed rows: tensors, and where each segment begins for variable-length attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..blocks import Column
from ..lent_memory import stacked
from ..tensors import tensor_of

__all__ = ["PackedCollate"]

# Entries of a batch that are not columns.
_BOUNDS = ("cu_seqlens", "max_seqlen")


class PackedCollate:
    """The ``collate_fn`` of ``Pack``.

    Called with ``B`` rows, dicts of arrays ``(T, ...)``, it returns a dict with each of them as a tensor
    ``(B, T, ...)``, and ``cu_seqlens (S + 1,) int32`` and the int ``max_seqlen``: segment ``i`` of the block
    flattened to ``B*T`` tokens is ``cu_seqlens[i]:cu_seqlens[i + 1]``. The padding with which a row ends is a
    segment of its own.
    """

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return self.from_columns({name: stacked([row[name] for row in rows]) for name in rows[0]})

    def from_columns(self, fields: Mapping[str, Column]) -> dict[str, Any]:
        """The same batch from columns ``(B, T, ...)``."""
        arrays = {name: np.asarray(column) for name, column in fields.items()}
        bounds = _segment_bounds(arrays["segment_ids"])
        batch: dict[str, Any] = {name: tensor_of(array) for name, array in arrays.items()}
        batch["cu_seqlens"] = tensor_of(bounds)
        batch["max_seqlen"] = int(np.diff(bounds).max())
        return batch

    @property
    def does_without_torch(self) -> bool:
        """See ``collate_block``; a subclass is the user's."""
        return type(self) is PackedCollate

    def empty(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Such a batch of no rows: no segment, and so the one bound 0."""
        tensors = {name: value[:0].clone() for name, value in batch.items() if name not in _BOUNDS}
        return {**tensors, "cu_seqlens": batch["cu_seqlens"].new_zeros(1), "max_seqlen": 0}


def _segment_bounds(segment_ids: NDArray[np.int32]) -> NDArray[np.int32]:
    """Where segments begin in the flattened block, and its end: ``(S + 1,) int32``."""
    begins = np.ones(segment_ids.shape, bool)
    begins[:, 1:] = segment_ids[:, 1:] != segment_ids[:, :-1]
    return np.append(np.flatnonzero(begins), segment_ids.size).astype(np.int32)
