"""Columns of typed values some of which are missing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np

from .ragged import Ragged, Values, offsets_of

__all__ = ["WithNulls"]


class WithNulls(list[Any]):
    """A list of the values of a typed column, because a null was among them where it was decoded.

    It remembers the type. A part of it may have no null any more, and is then the same column as one that was
    cut out of a block without nulls: else what a function is given would depend on where blocks were cut.

    Args:
        values: The entries: None for a null, the others as the column without nulls has them.
        like: The column without nulls, of no entries.
    """

    __slots__ = ("like",)

    like: Values

    def __init__(self, values: Iterable[Any], like: Values) -> None:
        super().__init__(values)
        self.like = like

    def __reduce__(self) -> tuple[Callable[..., WithNulls], tuple[list[Any], Values]]:
        return WithNulls, (list(self), self.like)

    def again(self, values: Iterable[Any]) -> WithNulls:
        """Some of the entries, as a column of this type."""
        return WithNulls(values, self.like)

    def join(self, columns: Sequence[Values]) -> WithNulls | None:
        """One column of several, with nulls or without, this one among them; None if their types differ."""
        kind = _type_of(self.like)
        for column in columns:
            if _type_of(column.like if isinstance(column, WithNulls) else column) != kind:
                return None
        return WithNulls(chain.from_iterable(columns), self.like)

    def settle(self) -> Values:
        """The column without nulls, if there is none among the entries and within them; else itself."""
        like = self.like
        if isinstance(like, np.ndarray):
            kind: type = like.dtype.type if like.ndim == 1 else np.ndarray
            whole = all(isinstance(entry, kind) for entry in self)
            return np.array(self, like.dtype).reshape(len(self), *like.shape[1:]) if whole else self
        values = like.values if isinstance(like, Ragged) else []
        if not isinstance(like, Ragged) or not all(isinstance(entry, type(values)) for entry in self):
            return self
        return Ragged(_end_to_end(self, values), offsets_of(list(map(len, self))))


def _end_to_end(sequences: list[Any], like: Values) -> Values:
    """The values of sequences of one kind."""
    if isinstance(like, np.ndarray):
        return np.concatenate([like[:0], *sequences])
    if isinstance(like, Ragged):
        values = _end_to_end([sequence.flat for sequence in sequences], like.values)
        return Ragged(values, offsets_of([length for each in sequences for length in each.lengths.tolist()]))
    return [entry for sequence in sequences for entry in sequence]


def _type_of(column: Values) -> object:
    if isinstance(column, Ragged):
        return (type(column), _type_of(column.values))
    return (column.dtype, column.shape[1:]) if isinstance(column, np.ndarray) else list
