"""Pads the one field that a batching goes by, where nobody has said how to collate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from ..blocks import Column
from .block import collate_columns
from .pad import Pad

__all__ = ["PadLongest"]


@dataclass(frozen=True)
class PadLongest:
    """A ``collate_fn``: ``Pad`` of a field if it holds sequences; the default, if it holds their lengths.

    Args:
        field: Its name. It is filled with 0.
        multiple_of: Widths are rounded up to a multiple of it.
    """

    field: str
    multiple_of: int = 1

    def __call__(self, samples: Sequence[Any]) -> Any:
        first = samples[0].get(self.field) if samples and isinstance(samples[0], Mapping) else None
        is_number = isinstance(first, Real | np.number) or getattr(first, "ndim", None) == 0
        return self._choose(is_number)(samples)

    def from_columns(self, fields: Mapping[str, Column]) -> Any:
        """The same batch from columns, where what was chosen can make it; otherwise NotImplemented."""
        column = fields.get(self.field)
        chosen = self._choose(isinstance(column, np.ndarray) and column.ndim == 1)
        return collate_columns(chosen, fields)

    def _choose(self, is_number: bool) -> Callable[[Any], Any]:
        if not is_number:
            return Pad({self.field: 0}, multiple_of=self.multiple_of)
        from .streaming import streaming_collate

        return streaming_collate
