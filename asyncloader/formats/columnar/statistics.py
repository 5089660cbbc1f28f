"""Which row groups of Parquet may have rows that a filter keeps, by the statistics in the footer."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from itertools import combinations
from operator import and_
from typing import Any

from .importing import arrow
from .selection import Choice

__all__ = ["kept_by_statistics"]

# Each one more doubles how often the statistics are looked at.
_MOST_FLOATS = 4


def kept_by_statistics(footer: bytes, schema: Any, choice: Choice) -> set[int] | None:
    """The row groups that may have rows which meet the filter.

    Statistics leave NaN out, and pyarrow takes the values of a column to lie between its minimum and maximum.
    So it is asked again with NaN in place of each column of floats that the filter looks at, and of each
    several of them: what it makes of the filter is then what it would make of such rows.

    Args:
        footer: Of the shard.
        schema: In terms of Arrow.
        choice: With a filter.

    Returns:
        Their numbers; None if the statistics tell nothing.
    """
    import pyarrow.dataset

    floats = [name for name in choice.tested if _may_be_nan(schema.field(name).type)]
    known = arrow().types.is_floating
    if len(floats) > _MOST_FLOATS or not all(known(schema.field(name).type) for name in floats):
        return None
    kept: set[int] = set()
    parquet = pyarrow.dataset.ParquetFileFormat()
    try:
        for count in range(len(floats) + 1):
            for names in combinations(floats, count):
                fragment = parquet.make_fragment(
                    arrow().BufferReader(footer), partition_expression=_all_nan(schema, names)
                )
                kept |= {group.id for group in fragment.subset(choice.filters).row_groups}
    except (arrow().ArrowException, OSError, ValueError):
        return None  # what cannot be said of a constant, such as that NaN is an integer
    return kept


def _all_nan(schema: Any, names: Iterable[str]) -> Any:
    """An expression that says so of these columns; None if there are none."""
    import pyarrow.compute as pc

    pa = arrow()
    said = [
        pc.field(name) == pc.scalar(pa.scalar(float("nan")).cast(schema.field(name).type)) for name in names
    ]
    return reduce(and_, said) if said else None


def _may_be_nan(kind: Any) -> bool:
    """Whether there are floats in such a column, however deep."""
    if arrow().types.is_dictionary(kind) or arrow().types.is_run_end_encoded(kind):
        return _may_be_nan(kind.value_type)
    if hasattr(kind, "storage_type"):
        return _may_be_nan(kind.storage_type)
    inside = (kind.field(index).type for index in range(kind.num_fields))
    return arrow().types.is_floating(kind) or any(map(_may_be_nan, inside))
