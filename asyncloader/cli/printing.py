"""What commands print: JSON, tables, sizes for people, and bars where a terminal is."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any, TypeVar

from ..observe.report import open_bar
from ..quantity import bytes_text as size_of
from ..quantity import printable

__all__ = ["age_of", "counted", "print_json", "print_lines", "print_table", "seen", "size_of", "with_bar"]

T = TypeVar("T")


def print_json(value: Any) -> None:
    """One JSON document, indented, on standard output; what a terminal would obey stands as JSON escapes."""
    document = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    for line in document.split("\n"):
        print(line if line.isprintable() else "".join(map(_in_json, line)))


def _in_json(each: str) -> str:
    """A character of a JSON document; outside of its strings all can be printed."""
    return each if each.isprintable() else json.dumps(each)[1:-1]


def print_lines(*lines: str) -> None:
    """Lines on standard output, whatever is in the names that they tell: see ``printable``."""
    for line in lines:
        print(printable(line))


def print_table(rows: Iterable[Sequence[str]], right: Sequence[int] = ()) -> None:
    """Rows of cells in columns, two spaces apart.

    Args:
        rows: Of equal lengths.
        right: Numbers of the columns that end at one place rather than begin there: those of numbers.
    """
    rows = [[*map(printable, row)] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.rjust(width) if number in right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())


def age_of(seconds: float) -> str:
    """How long something is ago, in its largest unit."""
    for unit, length_s in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length_s:
            return f"{seconds / length_s:.0f} {unit}"
    return f"{seconds:.0f} s"


def counted(count: int, noun: str, several: str | None = None) -> str:
    """``1 shard``, ``2 shards``; ``several`` where an s is not enough."""
    return f"{count:,} {noun if count == 1 else several or noun + 's'}"


def seen(
    shards: Iterable[T], command: str, total: int, line: Callable[[T], str], *, as_json: bool
) -> list[T]:
    """All shards that a command looks at, beside a bar, and with a line for each unless JSON is to come.

    Args:
        shards: As they become known.
        command: Its name.
        total: How many there are.
        line: What is said of one.
        as_json: Whether JSON is asked for, which is printed when all are known.
    """
    found = []
    for shard in with_bar(shards, command, total, "shards", prints=not as_json):
        found.append(shard)
        if not as_json:
            print_lines(line(shard))
    return found


def with_bar(
    things: Iterable[T], description: str, total: int, unit: str, *, prints: bool = False
) -> Iterator[T]:
    """The things, with a bar on standard error as they pass; none where that is no terminal.

    Args:
        things: What is worked at.
        description: Stands before the bar.
        total: How many there are.
        unit: What they are.
        prints: Whether a line is printed for each, which on a terminal says how far it is without a bar.
    """
    if not sys.stderr.isatty() or (prints and sys.stdout.isatty()):
        yield from things
        return
    with closing(open_bar(description, total, f" {unit}")) as bar:
        for thing in things:
            bar.update()
            yield thing
