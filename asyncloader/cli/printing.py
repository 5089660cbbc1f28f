"""The output of commands: JSON, lines, tables, and progress bars on terminals."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from ..observe.report import open_bar
from ..quantity import printable

T = TypeVar("T")


def print_json(value: Any) -> None:
    """Print a JSON document, indented. In its strings, all that is not printable ASCII is escaped."""
    print(json.dumps(value, indent=2, allow_nan=False).replace("\x7f", r"\u007f"))


def print_lines(*lines: str) -> None:
    """Print lines; control characters in them are escaped, see ``printable``."""
    for line in lines:
        print(printable(line))


def print_table(rows: Iterable[Sequence[str]], right: Sequence[int] = ()) -> None:
    """Print rows of cells in columns, two spaces apart.

    Args:
        rows: Rows of equal lengths.
        right: Indexes of the columns to align to the right.
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
    """A duration in its largest unit."""
    for unit, length_s in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length_s:
            return f"{seconds / length_s:.0f} {unit}"
    return f"{seconds:.0f} s"


def counted(count: int, noun: str) -> str:
    """``1 shard``, ``2 shards``."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def seen(
    shards: Iterable[T], command: str, total: int, line: Callable[[T], str], *, as_json: bool
) -> list[T]:
    """All results of a command, with a progress bar, and a printed line for each without JSON.

    Args:
        shards: The results.
        command: Its name.
        total: How many there are.
        line: Makes the line of a result.
        as_json: Whether JSON was requested, which is printed at the end.
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
    """Yield the things, with a progress bar if standard error is a terminal.

    Args:
        things: The things.
        description: The text before the bar.
        total: How many there are.
        unit: Their name.
        prints: Whether a line is printed for each. On a terminal there is no bar then.
    """
    shown = sys.stderr.isatty() and not (prints and sys.stdout.isatty())
    with open_bar(description, total, f" {unit}", shown=shown) as bar:
        for thing in things:
            bar.update()
            yield thing
