"""What the user wants of each shard: some columns, the rows that a filter keeps, images or their files."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

import numpy as np

from ..blocks import Columns, OffsetTrail, Trail
from ..errors import FormatError
from .arrow_columns import Features, arrow, check_pyarrow, cut, features_of, pyarrow_errors
from .decoder import Selection

_UNKNOWN = re.compile(r"No match for FieldRef\.Name\((.*?)\) in ")


# A string, and a reference by position, in the text of an expression.
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')
_POSITION = re.compile(r"FieldPath\(")


@dataclass(frozen=True)
class Choice:
    """What is wanted of one shard whose schema is known.

    Attributes:
        shown: Names of the columns that become fields, in their order.
        tested: Names of the columns that the filter looks at.
        filters: See ``Selection``.
        features: What the schema's metadata say of columns.
    """

    shown: tuple[str, ...]
    tested: tuple[str, ...]
    filters: Any
    features: Features = field(default_factory=Features)

    @property
    def read(self) -> list[str]:
        """Names of all columns that are read."""
        return list(dict.fromkeys((*self.shown, *self.tested)))


def make_selection(columns: Iterable[str] | None, filters: Any) -> Selection:
    """Check what the user wants, without looking at a shard.

    Args:
        columns: Names; None for all.
        filters: An expression of ``pyarrow.compute``, or what ``pyarrow.parquet`` takes: a list of tuples
            ``(column, op, value)`` that must all hold, or a list of such lists, one of which must hold.

    Raises:
        TypeError: A name is no string, or the filters have another type.
        ValueError: There is no column, a column is named twice, or the filter is not valid.
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
                f"filters={filters} refers to a column by its position, which changes if fewer are read; "
                "name the column, as in pyarrow.compute.field('n')"
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
    _check_lists(filters)
    try:
        return pyarrow.parquet.filters_to_expression(filters)
    except (ValueError, TypeError, IndexError) as error:
        raise ValueError(f"{what}: {error}") from error


def _check_lists(filters: Any) -> None:
    """Refuse a string as the list of ``in``: pyarrow would take its letters for the values."""
    for group in filters:
        for term in group if group and isinstance(group, list) else [group]:
            if (
                isinstance(term, tuple | list)
                and len(term) == 3
                and term[1] in ("in", "not in")
                and isinstance(term[2], str | bytes)
            ):
                raise ValueError(
                    f"filters: {term[1]!r} takes a list of values, but got {term!r}; write "
                    f"({term[0]!r}, {term[1]!r}, [{term[2]!r}])"
                )


def choose_names(columns: tuple[str, ...] | None, names: tuple[str, ...]) -> tuple[str, ...]:
    """The wanted columns of one shard that has the columns ``names``.

    Raises:
        FormatError: A wanted column is missing or ambiguous, or there is no column at all.
    """
    shown = names if columns is None else columns
    counts = Counter(names)
    for name in shown:
        if name not in counts:
            raise FormatError(missing_column("columns", name, names))
        if counts[name] > 1:
            raise FormatError(f"there are several columns {name!r} in this shard; it has {_listed(names)}")
    if not shown:
        raise FormatError("there is no column in this shard")
    return shown


def choose(selection: Selection, schema: Any) -> Choice:
    """Check the selection with the schema of one shard.

    Raises:
        FormatError: A column is missing, or the filter cannot be applied to the columns.
    """
    with pyarrow_errors("the schema"):
        names = tuple(schema.names)
    shown = choose_names(selection.columns, names)
    tested = () if selection.filters is None else _tested(selection.filters, schema)
    return Choice(shown, tested, selection.filters, features_of(schema))


def _tested(filters: Any, schema: Any) -> tuple[str, ...]:
    """The columns without which the filter cannot be applied."""
    pa = arrow()
    failures = (pa.ArrowException, TypeError, ValueError, KeyError)
    text = str(filters)
    tested = []
    try:
        # A name that is not in the text is not in the expression; others may be part of a word or value.
        table = pa.schema([field for field in schema if field.name in text]).empty_table()
        mask_of(table, filters)
        for name in table.column_names:
            try:
                mask_of(table.drop_columns(name), filters)
            except failures:
                tested.append(name)
        # pyarrow compares some types only if there is a row.
        row = [pa.nulls(1, schema.field(name).type) for name in tested]
        mask_of(pa.Table.from_arrays(row, tested) if row else table, filters)
    except failures as error:
        what = str(error).partition("\n")[0]
        if unknown := _UNKNOWN.match(what):
            raise FormatError(missing_column("filters", unknown[1], schema.names)) from error
        raise FormatError(
            f"filters={filters} cannot be applied to this shard: {what}; it has "
            f"{_listed(schema.names, schema.types)}"
        ) from error
    return tuple(tested)


def mask_of(table: Any, filters: Any) -> Any:
    """Whether each row of a ``pyarrow.Table`` meets the filter; a null does not, as in SQL."""
    from pyarrow import acero

    # Table.filter uses the threads of pyarrow's own pool, and does not return the places of rows.
    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(without_views(table)))
    test = acero.Declaration("project", acero.ProjectNodeOptions([filters], ["keep"]))
    kept = acero.Declaration.from_sequence([source, test]).to_table(use_threads=False).column("keep")
    return kept.fill_null(False).to_numpy()


def without_views(table: Any) -> Any:
    """The same table or batch with views as plain strings and bytes, which pyarrow can compare and pick."""
    pa = arrow()
    for view, plain in (("string_view", "large_string"), ("binary_view", "large_binary")):
        kind = getattr(pa, view)()
        for index, field_ in enumerate(table.schema):
            if field_.type == kind:
                column = table.column(index).cast(getattr(pa, plain)())
                table = table.set_column(index, field_.name, column)
    return table


def missing_column(option: str, name: str, names: Iterable[str]) -> str:
    """A message about a column that the user named and the shard lacks."""
    names = list(names)
    near = [each for each in names if each.lower() == name.lower()] or get_close_matches(name, names)
    ask = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
    return f"there is no column {name!r}, which {option} names, in this shard{ask}; it has {_listed(names)}"


def _listed(names: Iterable[str], types: Iterable[Any] | None = None) -> str:
    shown = [repr(name) for name in names]
    if types is not None:
        shown = [f"{name} ({kind})" for name, kind in zip(shown, types, strict=True)]
    more = len(shown) - _MOST_NAMES
    return ", ".join(shown[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


# As many names as are still readable.
_MOST_NAMES = 30


def pick(batch: Any, first: int, start: int, choice: Choice) -> Iterator[Columns]:
    """The blocks of one ``pyarrow.RecordBatch``.

    Args:
        batch: A batch with all columns that ``choice`` reads.
        first: Row in the shard of the batch's first row.
        start: Row in the shard to begin with.
        choice: The wanted columns and rows.

    Returns:
        Blocks of some MiB at most, none of them empty. Their trails count all rows of the shard, not only
        those that are kept.
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
            trail = trail.take(kept)
    for at, size in cut(table):
        features = choice.features
        fields = {name: features.field_of(name, table.column(name).slice(at, size)) for name in choice.shown}
        yield Columns(fields, trail if at == 0 else trail.part(at, at + size))
