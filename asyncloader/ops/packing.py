"""Packing: which documents share a row, and the rows as arrays. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..blocks import Column, Trail
from ..types import Position

__all__ = ["PACKED_FIELDS", "Part", "Row", "best_fit", "lay_rows", "split_lengths"]

PACKED_FIELDS = ("segment_ids", "positions")
"""What a packed block has beside the fields that were packed."""


class Part(NamedTuple):
    """A run of one document's tokens.

    Attributes:
        values: Of each field, in which it is the run from ``start`` to ``stop``.
        start: Its first token.
        stop: Behind its last.
    """

    values: tuple[NDArray[Any], ...]
    start: int
    stop: int


@dataclass(slots=True)
class Row:
    """One row of a block.

    Attributes:
        parts: Of it, in order.
        tokens: How many it has.
        ended: The documents that end in it, each by its trail and its index there.
        after: Where the lane goes on after it.
        place: Of its first document: a trail, and its index there.
    """

    parts: list[Part] = field(default_factory=list)
    tokens: int = 0
    ended: list[tuple[Trail, int]] = field(default_factory=list)
    after: Position = field(default_factory=dict)
    place: tuple[Trail, range] = field(init=False)

    def add(self, part: Part, trail: Trail, index: int) -> None:
        """Append a part of the document that is sample ``index`` of a block."""
        if not self.parts:
            self.place = trail, range(index, index + 1)
        self.parts.append(part)
        self.tokens += part.stop - part.start

    def keep(self) -> None:
        """Copy the tokens, so that those of the other documents can go."""
        self.parts = [
            Part(tuple(inside[start:stop].copy() for inside in values), 0, stop - start)
            for values, start, stop in self.parts
        ]


class Cutter:
    """Puts documents end to end, and cuts every ``width`` tokens.

    A row's position says where the document that it ends in begins, and how many of its tokens were used.

    Args:
        width: Tokens of a row.
        begins: Position before the first document.
        used: How many tokens of that document are in rows already.
    """

    def __init__(self, width: int, begins: Position, used: int) -> None:
        self._width = width
        self._begins = begins
        self._used = used
        self._row = Row()

    def feed(
        self, values: tuple[NDArray[Any], ...], bounds: Sequence[tuple[int, int]], trail: Trail
    ) -> Iterator[Row]:
        """The rows that these documents complete.

        Args:
            values: Of each field.
            bounds: Where in them each document begins and stops; at least one.
            trail: Of the documents.
        """
        for index, (first, stop) in enumerate(bounds):
            at = self._go_on(first, stop)
            if at == stop:  # an empty one has no token, but is counted
                self._row.ended.append((trail, index))
            while at < stop:
                taken = min(stop - at, self._width - self._row.tokens)
                self._row.add(Part(values, at, at + taken), trail, index)
                at += taken
                if at == stop:
                    self._row.ended.append((trail, index))
                if self._row.tokens == self._width:
                    if at == stop:
                        self._row.after = {"used": 0, "from": trail.after(index)}
                    else:
                        before = trail.after(index - 1) if index else self._begins
                        self._row.after = {"used": at - first, "from": before}
                    row, self._row = [self._row], Row()
                    yield row.pop()
        self._begins = trail.after(len(bounds) - 1)

    def finish(self) -> Iterator[Row]:
        """The last row, if there is one."""
        if self._row.parts:
            self._row.after = {"used": 0, "from": self._begins}
            yield self._row

    def _go_on(self, first: int, stop: int) -> int:
        """The first token of a document that was not used yet."""
        used, self._used = self._used, 0
        if used and first + used >= stop:
            raise ValueError(
                f"the state was saved after {used} tokens of a document that now has {stop - first}; was its "
                "shard written anew, or a function of .map changed?"
            )
        return first + used


def split_lengths(lengths: NDArray[np.int64], most: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Documents cut into parts of at most ``most`` tokens, all but the last of a document that long.

    Args:
        lengths: ``(n,)``, of the documents.
        most: Tokens of a part.

    Returns:
        For each part which document it is of, and how many tokens of it come before: ``(p,) int64`` both.
        An empty document has none.
    """
    counts = -(-lengths // most)
    document = np.repeat(np.arange(len(lengths)), counts)
    nth = np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)
    return document, nth * most


def best_fit(lengths: NDArray[np.int64], capacity: int) -> list[list[int]]:
    """Parts dealt to rows, each into the fullest row that it fits, the longest parts first.

    Best fit decreasing (Johnson, "Near-optimal bin packing algorithms", 1973). Rows are found by the room
    that they have left: a set of bits says which rooms there are, whose lowest bit from the wanted one on is
    the best fit. So a part costs about a microsecond, however many rows there are.

    Args:
        lengths: ``(p,)``, of the parts, from 1 to ``capacity``.
        capacity: Tokens of a row.

    Returns:
        For each row the indices of its parts.
    """
    rows: list[list[int]] = []
    with_room: list[list[int]] = [[] for _ in range(capacity + 1)]
    rooms = 0
    for part in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[part])
        fitting = rooms >> length
        if fitting:
            room = length + (fitting & -fitting).bit_length() - 1
            row = with_room[room].pop()
            if not with_room[room]:
                rooms ^= 1 << room
            rows[row].append(part)
        else:
            room, row = capacity, len(rows)
            rows.append([part])
        if left := room - length:
            with_room[left].append(row)
            rooms |= 1 << left
    return rows


def lay_rows(
    rows: Sequence[Row], names: Sequence[str], fills: Sequence[Any], width: int
) -> dict[str, Column]:
    """Rows as arrays.

    Args:
        rows: ``B`` of them, each of at most ``width`` tokens.
        names: Of the fields, as in the parts.
        fills: What each is filled up with.
        width: ``T``.

    Returns:
        Each field ``(B, T, ...)``; ``segment_ids (B, T) int32``, which count the parts of a row from 1, 0
        where it is filled up; ``positions (B, T) int32``, from 0 in each part and where it is filled up.
    """
    columns: dict[str, Column] = {}
    total = len(rows) * width
    parts = [row.parts for row in rows]
    like = parts[0][0].values
    for at, (name, fill) in enumerate(zip(names, fills, strict=True)):
        laid = np.full((total, *like[at].shape[1:]), fill, like[at].dtype)
        for number, inside in enumerate(parts):
            place = number * width
            for values, start, stop in inside:
                end = place + stop - start
                laid[place:end] = values[at][start:stop]
                place = end
        columns[name] = laid.reshape(len(rows), width, *laid.shape[1:])
    # Each row's parts and then its padding, which may be empty: runs that make up all of the block.
    ids = [chain(range(1, len(inside) + 1), (0,)) for inside in parts]
    run_ids = np.fromiter(chain.from_iterable(ids), np.int32)
    lengths = [
        chain((stop - start for _, start, stop in inside), (width - row.tokens,))
        for row, inside in zip(rows, parts, strict=True)
    ]
    run_lengths = np.fromiter(chain.from_iterable(lengths), np.int64)
    segment_ids = np.repeat(run_ids, run_lengths)
    begins = np.repeat((np.cumsum(run_lengths) - run_lengths).astype(np.int32), run_lengths)
    positions = np.arange(total, dtype=np.int32) - begins
    positions[segment_ids == 0] = 0
    columns["segment_ids"] = segment_ids.reshape(len(rows), width)
    columns["positions"] = positions.reshape(len(rows), width)
    return columns
