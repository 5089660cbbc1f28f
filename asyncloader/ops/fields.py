"""``.select_columns`` and ``.rename``: which fields a sample has, and what they are called."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from ..blocks import Block, Columns, Rows
from ..types import Position
from .checks import check_names
from .op import Blocks, Lane, Op, Opener, note_sample

__all__ = ["Rename", "Select"]


@dataclass(frozen=True)
class Select(Op):
    """Keep only the named fields, in this order."""

    fields: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.fields:
            raise ValueError("select_columns should get at least one field name")
        if any(map(callable, self.fields)):
            raise TypeError(
                "select_columns should get field names, but got a function: .filter(function) keeps the "
                "samples for which it is true"
            )
        check_names("select_columns", self.fields)

    def open(self, upstream: Opener, start: Position, lane: Lane) -> Blocks:
        with closing(upstream(start, lane)) as blocks:
            yield from _change(blocks, self._select, f"select_columns{self.fields}")

    def describe(self) -> Mapping[str, Any]:
        return {"op": "select_columns", "fields": list(self.fields)}

    def _select(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        return {name: _take(sample, name) for name in self.fields}


@dataclass(frozen=True)
class Rename(Op):
    """Give fields other names; the others stay as they are.

    Args:
        names: Pairs of the old name and the new one.
    """

    names: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        pairs = dict(self.names)
        if not pairs:
            raise ValueError("rename should get at least one pair of names")
        check_names("rename", (*pairs, *pairs.values()))
        if len(set(pairs.values())) < len(pairs):
            raise ValueError(f"rename would give two fields the same name: {pairs}")

    def open(self, upstream: Opener, start: Position, lane: Lane) -> Blocks:
        with closing(upstream(start, lane)) as blocks:
            yield from _change(blocks, self._rename, f"rename({dict(self.names)})")

    def describe(self) -> Mapping[str, Any]:
        return {"op": "rename", "names": [list(pair) for pair in self.names]}

    def _rename(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        renamed = dict(sample)
        for old, new in self.names:
            if old not in sample and new in sample:
                raise KeyError(
                    f"expected the field {old!r}, found only {list(sample)}: rename gets the old name first, "
                    f"so write rename({new}={old!r}) to call {new!r} {old!r}"
                )
        moved = {new: _take(sample, old) for old, new in self.names}
        for old, _ in self.names:
            del renamed[old]
        if clash := moved.keys() & renamed.keys():
            raise ValueError(f"rename would overwrite the fields {sorted(clash)}")
        return renamed | moved


def _take(sample: Mapping[str, Any], name: str) -> Any:
    try:
        return sample[name]
    except KeyError:
        if name in sample:
            raise  # a mapping of the user's own, which failed to make the field
        raise KeyError(f"expected the field {name!r}, found only {list(sample)}") from None


def _change(blocks: Iterable[Block], change: Callable[[Any], Any], what: str) -> Blocks:
    """Change every sample, or the mapping of all columns, which has the same fields."""
    for block in blocks:
        if isinstance(block, Columns):
            try:
                fields = change(block.fields)
            except Exception as error:
                note_sample(error, what, block, 0)
                raise
            yield Columns(fields, block.trail)
        else:
            yield from _change_rows(block, change, what)


def _change_rows(block: Block, change: Callable[[Any], Any], what: str) -> Blocks:
    changed: list[Any] = []
    failure: Exception | None = None
    try:
        for sample in block.rows():
            changed.append(change(sample))
    except Exception as error:
        note_sample(error, what, block, len(changed))
        failure = error
    if changed:
        yield Rows(changed, block.trail)
    if failure is not None:
        raise failure  # what came before it was good, and may have completed a batch
