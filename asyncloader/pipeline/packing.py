"""Packing: documents read out of blocks, which of them share a row, and the rows as arrays. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..blocks import Block, Column, Ragged, Trail, offsets_of
from ..collate.fault import fill_advice, squeeze_advice
from ..collate.pad import PadField
from ..collate.ragged import exact_fill, to_arrays, to_pieces
from ..types import Position

PACKED_FIELDS = ("segment_ids", "positions")
"""What a packed block has beside the fields that were packed."""


class DocumentPart(NamedTuple):
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
class PackedRow:
    """One row of a block.

    Attributes:
        parts: Of it, in order.
        tokens: How many it has.
        ended: The documents that end in it, each by its trail and its index there.
        after: Where the lane goes on after it.
        place: Of its first document: a trail, and its index there.
    """

    parts: list[DocumentPart] = field(default_factory=list)
    tokens: int = 0
    ended: list[tuple[Trail, int]] = field(default_factory=list)
    after: Position = field(default_factory=dict)
    place: tuple[Trail, range] = field(init=False)

    def add(self, part: DocumentPart, trail: Trail, index: int) -> None:
        """Append a part of the document that is sample ``index`` of a block."""
        if not self.parts:
            self.place = trail, range(index, index + 1)
        self.parts.append(part)
        self.tokens += part.stop - part.start

    def keep(self) -> None:
        """Copy the tokens, so that those of the other documents can go."""
        self.parts = [
            DocumentPart(tuple(inside[start:stop].copy() for inside in values), 0, stop - start)
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
        self._row = PackedRow()

    def feed(
        self, values: tuple[NDArray[Any], ...], bounds: Sequence[tuple[int, int]], trail: Trail
    ) -> Iterator[PackedRow]:
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
                self._row.add(DocumentPart(values, at, at + taken), trail, index)
                at += taken
                if at == stop:
                    self._row.ended.append((trail, index))
                if self._row.tokens == self._width:
                    if at == stop:
                        self._row.after = {"used": 0, "from": trail.after(index)}
                    else:
                        before = trail.after(index - 1) if index else self._begins
                        self._row.after = {"used": at - first, "from": before}
                    row, self._row = [self._row], PackedRow()
                    yield row.pop()
        self._begins = trail.after(len(bounds) - 1)

    def finish(self) -> Iterator[PackedRow]:
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
    rows: Sequence[PackedRow], names: Sequence[str], fills: Sequence[Any], width: int
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


# Documents: sequences of numbers in one field or several alike, end to end, as packing takes them.


@dataclass(frozen=True, slots=True)
class Documents:
    """The documents of a block.

    Attributes:
        values: For each field the values of all of them, end to end: ``(m, ...)``.
        offsets: ``(n + 1,) int64``: document ``i`` is ``values[offsets[i]:offsets[i + 1]]`` in each.
    """

    values: tuple[NDArray[Any], ...]
    offsets: NDArray[np.int64]


@dataclass(slots=True)
class DocumentReader:
    """Reads documents out of blocks, and sees to it that those of all blocks are alike.

    Args:
        fields: Which they are: what each is filled up with, and its dtype, None for that of the data.
        most: How many tokens a document may have; None for any number.
    """

    fields: Mapping[str, PadField]
    most: int | None = None
    _seen: dict[str, NDArray[Any]] = field(default_factory=dict)

    def read(self, block: Block) -> Iterator[tuple[Block, Documents]]:
        """The documents of a block: all at once, or one by one up to the first that cannot be packed.

        Raises:
            ValueError: A field is missing, no sequence of numbers, of another length than the first field,
                or of another dtype or trailing dimensions than before; or a document is too long. Says of
                which sample.
        """
        try:
            whole = self._read(block)
        except ValueError:
            # What comes before the bad one is good, and may complete a batch.
            for index in range(len(block)):
                part = block.part(index, index + 1)
                yield part, self._read(part)
            raise
        yield block, whole

    def _read(self, block: Block) -> Documents:

        def where(index: int) -> str:
            return f"field {name!r} of {block.trail.place(index)}"

        values: list[NDArray[Any]] = []
        first: NDArray[np.int64] | None = None
        for name, how in self.fields.items():
            inside, offsets = _end_to_end(_column(block, name), how.dtype, where)
            if first is None:
                first = offsets
            elif (unlike := np.flatnonzero(np.diff(first) != np.diff(offsets))).size:
                at, other = int(unlike[0]), next(iter(self.fields))
                raise ValueError(
                    f"{where(at)}: expected the length {np.diff(first)[at]} of field {other!r}, "
                    f"found {np.diff(offsets)[at]}; fields that are packed together go along token by token"
                )
            values.append(self._like_before(name, inside, lambda: where(0)))
        assert first is not None
        if self.most is not None and (above := np.flatnonzero(np.diff(first) > self.most)).size:
            at = int(above[0])
            raise ValueError(
                f"{where(at)}: expected at most {self.most} tokens, found {np.diff(first)[at]}; filter such "
                "documents out, or cut them with overlong='split' or 'truncate'"
            )
        return Documents(tuple(values), first)

    def _like_before(self, name: str, values: NDArray[Any], where: Callable[[], str]) -> NDArray[Any]:
        """Refuse another dtype than that of the documents before; none at all has no dtype."""
        if not len(values):
            return values
        if name not in self._seen:
            value = self.fields[name].value
            try:
                exact_fill(value, values.dtype)
            except ValueError as error:
                raise ValueError(f"{where()}: {error}; {fill_advice(value, values.dtype)}") from None
            self._seen[name] = np.empty((0, *values.shape[1:]), values.dtype)
        seen = self._seen[name]
        if seen.shape[1:] != values.shape[1:]:
            raise ValueError(
                f"{where()}: expected the shape {_shape_of(seen)} as in the documents before, found "
                f"{values.shape}; only the first dimension may differ{squeeze_advice(values.shape)}"
            )
        if seen.dtype != values.dtype:
            raise ValueError(
                f"{where()}: expected tokens of dtype {seen.dtype} as in the documents before, found "
                f'{values.dtype}; give Pack({{"{name}": {{"dtype": "{seen.dtype}"}}}}), which converts '
                "all of them"
            )
        return values


def _end_to_end(
    column: Column, dtype: Any, where: Callable[[int], str]
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """A column of sequences of numbers as one array, of the dtype if given, and their offsets in it."""
    if isinstance(column, np.ndarray) and column.ndim > 1:
        column = Ragged.of(column)
    if isinstance(column, Ragged) and isinstance(column.flat, np.ndarray):
        (values,) = to_pieces([column.flat], dtype, lambda _: where(0))
        return values, column.offsets - column.offsets[0]
    arrays = to_arrays(list(column), where)
    # Without the empty ones, which have no token of any dtype: in a block of their own nothing is held
    # against them either, and what is packed must not depend on how the stream was cut into blocks.
    full = [index for index, array in enumerate(arrays) if len(array)]
    pieces = to_pieces([arrays[index] for index in full], dtype, lambda nth: where(full[nth])) if full else []
    return np.concatenate(pieces or arrays[:1]), offsets_of([len(array) for array in arrays])


def _shape_of(document: NDArray[Any]) -> str:
    """``(T, 80)``: its trailing dimensions behind the one that differs."""
    return f"({', '.join(['T', *map(str, document.shape[1:])])}{',' if document.ndim == 1 else ''})"


def _column(block: Block, name: str) -> Column:
    try:
        return block.column(name)
    except KeyError as error:
        raise ValueError(error.args[0]) from None
    except TypeError:
        kinds = " and ".join(sorted({type(sample).__name__ for sample in block.rows()}))
        raise ValueError(
            f"expected samples that are mappings with a field {name!r}, found {kinds} from "
            f"{block.trail.place(0)} on"
        ) from None
