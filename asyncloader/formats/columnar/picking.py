"""Blocks of Arrow's record batches: the wanted columns of the rows that the filter keeps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ...blocks import Columns, OffsetTrail, PickedTrail, Trail
from ...errors import FormatError
from .cuts import cut
from .importing import arrow
from .selection import Choice, mask_of, without_views

__all__ = ["check_rows", "pick"]


def pick(batch: Any, first: int, start: int, choice: Choice) -> Iterator[Columns]:
    """The blocks of one ``pyarrow.RecordBatch``.

    Args:
        batch: With all columns that ``choice`` reads.
        first: Row of the shard that is the batch's first.
        start: Row of the shard to begin with.
        choice: Which columns and rows.

    Returns:
        Blocks of some MiB at most, none of them empty; their trails count the rows of the shard, whichever
        are kept.
    """
    begin = min(max(start - first, 0), len(batch))
    table = batch.slice(begin).select(list(choice.shown))
    trail: Trail = OffsetTrail(first + begin, None)
    if choice.filters is not None:
        tested = arrow().Table.from_batches(
            [batch.slice(begin).select(list(choice.tested or choice.shown[:1]))]
        )
        kept = np.flatnonzero(mask_of(tested, choice.filters))
        if len(kept) < len(table):
            table = without_views(table).take(arrow().array(kept))
            trail = PickedTrail(trail, kept.tolist())
    for at, size in cut(table):
        features = choice.features
        fields = {name: features.field_of(name, table.column(name).slice(at, size)) for name in choice.shown}
        inside = trail if at == 0 else PickedTrail(trail, range(at, at + size))
        yield Columns(fields, inside)


def check_rows(found: int, start_sample: int) -> None:
    """Hold the rows of a whole shard against those that were had of it before.

    Raises:
        FormatError: They are fewer.
    """
    if found < start_sample:
        raise FormatError(
            f"expected at least {start_sample} rows, as many were read from this shard before; found "
            f"{found}: the shard has changed"
        )
