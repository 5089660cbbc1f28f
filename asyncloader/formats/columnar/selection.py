"""What of each shard the user wants: some columns, and the rows that a filter keeps."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...errors import FormatError
from .importing import arrow, check_pyarrow, told

__all__ = ["EVERYTHING", "Choice", "Selection", "choose", "make_selection", "mask_of"]


@dataclass(frozen=True)
class Selection:
    """What is wanted of every shard.

    Attributes:
        columns: Names, in the order of the fields of a sample; None for all there are.
        filters: A ``pyarrow.compute.Expression`` that a row has to meet; None for every row.
    """

    columns: tuple[str, ...] | None = None
    filters: Any = field(default=None, compare=False)  # == between two of them makes a third

    def describe(self) -> Mapping[str, Any]:
        """What makes two selections the same to a saved state, as JSON values."""
        described: dict[str, Any] = {}
        if self.columns is not None:
            described["columns"] = list(self.columns)
        if self.filters is not None:
            described["filters"] = text = str(self.filters)
            if "..." in text:  # long lists of values are shown in part
                content = memoryview(self.filters.__reduce__()[1][0])
                described["filters_digest"] = hashlib.blake2b(content, digest_size=16).hexdigest()
        return described


EVERYTHING = Selection()

# How an expression shows strings, and a reference by position.
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_POSITION = re.compile(r"FieldPath\(")


@dataclass(frozen=True)
class Choice:
    """What is wanted of one shard, whose schema is known.

    Attributes:
        shown: Names of the columns that become fields, in their order.
        tested: Names of those that the filter looks at.
        filters: As in ``Selection``.
    """

    shown: tuple[str, ...]
    tested: tuple[str, ...]
    filters: Any

    @property
    def read(self) -> list[str]:
        """Names of all columns that have to be read."""
        return list(dict.fromkeys((*self.shown, *self.tested)))


def make_selection(columns: Iterable[str] | None, filters: Any) -> Selection:
    """Check what the user wants, without a look at any shard.

    Args:
        columns: Names; None for all.
        filters: An expression of ``pyarrow.compute``, or a list of tuples ``(column, op, value)`` that must
            all hold, or of such lists, of which one must hold, as ``pyarrow.parquet`` takes them.

    Raises:
        TypeError: Names that are no strings, or filters of another kind.
        ValueError: No column, one named twice, or a filter that is not sound.
        ImportError: pyarrow is not installed.
    """
    if columns is not None:
        if isinstance(columns, str | bytes) or not isinstance(columns, Iterable):
            raise TypeError(f"columns should be a list of names, but got {columns!r}")
        columns = tuple(columns)
        for name in columns:
            if not isinstance(name, str):
                raise TypeError(f"columns should be a list of names, but got {type(name).__name__}: {name!r}")
        if not columns:
            raise ValueError("columns should name at least one column, or be None for all of them")
        if len(set(columns)) < len(columns):
            raise ValueError(f"columns names one twice: {', '.join(columns)}")
    return Selection(columns, None if filters is None else _expression(filters))


def _expression(filters: Any) -> Any:
    check_pyarrow()
    import pyarrow.compute
    import pyarrow.parquet

    if isinstance(filters, pyarrow.compute.Expression):
        if _POSITION.search(_QUOTED.sub("", str(filters))):
            raise ValueError(
                f"filters={filters} takes a column by its position, which is another one where fewer are "
                "read; name the column, as in pyarrow.compute.field('n')"
            )
        return filters
    what = (
        "filters should be an expression such as pyarrow.compute.field('n') > 3, or a list of tuples such as "
        f"[('n', '>', 3)], but got {filters!r}"
    )
    if not isinstance(filters, list | tuple):
        raise TypeError(what)
    if filters and isinstance(filters[0], str):
        raise ValueError(
            f"filters should be a list of tuples, but got one alone: write filters=[{filters!r}]"
        )
    try:
        return pyarrow.parquet.filters_to_expression(filters)
    except (ValueError, TypeError, IndexError) as error:
        raise ValueError(f"{what}: {error}") from error


def choose(selection: Selection, schema: Any) -> Choice:
    """Hold the selection against the schema of one shard.

    Raises:
        FormatError: It has no such column, or the filter cannot be applied to those it has.
    """
    with told("the schema"):
        names = tuple(schema.names)
    shown = names if selection.columns is None else selection.columns
    there = f"it has {_listed(names)}"
    for name in shown:
        if name not in names:
            raise FormatError(f"there is no column {name!r} in this shard; {there}")
        if names.count(name) > 1:
            raise FormatError(f"there are several columns {name!r} in this shard; {there}")
    if not shown:
        raise FormatError("there is no column in this shard")
    tested = () if selection.filters is None else _tested(selection.filters, schema, there)
    return Choice(shown, tested, selection.filters)


def _tested(filters: Any, schema: Any, there: str) -> tuple[str, ...]:
    """The columns without which the filter cannot be applied."""
    pa = arrow()
    try:
        mask_of(schema.empty_table(), filters)
    except (pa.ArrowException, TypeError, ValueError, KeyError) as error:
        what = str(error).partition("\n")[0]
        raise FormatError(f"filters={filters} cannot be applied to this shard: {what}; {there}") from error
    text = str(filters)
    tested = []
    for name in schema.names:
        # One that is not in the text is not in the expression; of the others some are only part of a word.
        if name in text:
            others = schema.remove(schema.get_field_index(name))
            try:
                mask_of(others.empty_table(), filters)
            except (pa.ArrowException, TypeError, ValueError, KeyError):
                tested.append(name)
    return tuple(tested)


def mask_of(table: Any, filters: Any) -> Any:
    """For each row of a ``pyarrow.Table`` whether it meets the filter; a null does not, as in SQL."""
    from pyarrow import acero

    # Not Table.filter: it goes through the threads of pyarrow's own pool, and gives no places of rows.
    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(table))
    test = acero.Declaration("project", acero.ProjectNodeOptions([filters], ["keep"]))
    kept = acero.Declaration.from_sequence([source, test]).to_table(use_threads=False).column("keep")
    return kept.fill_null(False).to_numpy()


def _listed(names: Iterable[str]) -> str:
    shown = [repr(name) for name in names]
    more = len(shown) - _MOST_NAMES
    return ", ".join(shown[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


# As many as a person looks at.
_MOST_NAMES = 30
