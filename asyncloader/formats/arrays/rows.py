"""Rows of arrays, as columns: the bytes of each array as they come, and the rows that all of them have.

Several arrays come in turns. What of one comes before the others is held as it is stored, so that what was
deflated expands only as its rows are wanted.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...blocks import Block, Column, Columns, OffsetTrail
from ...errors import FormatError
from .._push import MAX_BLOCK_BYTES, MAX_BLOCK_SAMPLES, PushDecoder
from .contents import Deflated, Stored
from .header import ArrayHeader

__all__ = ["ArrayRows", "RowsDecoder"]


@dataclass(frozen=True, slots=True)
class ArrayRows:
    """An array of which rows are read.

    Attributes:
        what: It is, for messages.
        header: Of it.
        fields: Names of the fields that its rows become, each with that of the field inside of a structure;
            None for what is no structure.
        come: The rows that come; of Fortran's order perhaps others around those that are wanted.
        open_content: Makes what takes its bytes.
    """

    what: str
    header: ArrayHeader
    fields: tuple[tuple[str, str | None], ...]
    come: range
    open_content: Callable[[], Stored | Deflated]


class RowsDecoder(PushDecoder):
    """Decode rows as they come.

    Args:
        arrays: Whose rows make a sample; all of one length.
        turns: Which array the bytes are of, by number, and how many of them, one turn after another.
        wanted: The rows that are wanted.
    """

    def __init__(self, arrays: Sequence[ArrayRows], turns: Sequence[tuple[int, int]], wanted: range) -> None:
        super().__init__()
        self._columns = [_Rows(array, wanted) for array in arrays]
        self._turns = deque(turns)
        self._row, self._stop = wanted.start, wanted.stop
        row_bytes = sum(array.header.row_bytes for array in arrays)
        self._most = max(1, min(MAX_BLOCK_SAMPLES, MAX_BLOCK_BYTES // max(row_bytes, 1)))

    def _decode(self, chunk: bytes | memoryview) -> Iterator[Block]:
        rest = memoryview(chunk)
        while rest:
            number, left = self._turns.popleft()
            here, rest = rest[:left], rest[left:]
            if len(here) < left:
                self._turns.appendleft((number, left - len(here)))
            self._columns[number].put(here)
        yield from self._whole()

    def _decode_end(self) -> Iterator[Block]:
        yield from self._whole()
        for column in self._columns:
            column.finish()
        if self._row < self._stop:
            raise FormatError("truncated within a row", sample=self._row)

    def _whole(self) -> Iterator[Block]:
        """The rows of which all arrays have all."""
        while self._row < self._stop:
            most = min(self._most, self._stop - self._row)
            ready = [column.ready(most, self._row) for column in self._columns]
            if not (rows := min(ready)):
                return
            fields = {
                name: values for column in self._columns for name, values in column.take(rows, self._row)
            }
            first, self._row = self._row, self._row + rows
            yield Columns(fields, OffsetTrail(first, None))


class _Rows:
    """The rows of one array."""

    def __init__(self, array: ArrayRows, wanted: range) -> None:
        self._array = array
        self._content = array.open_content()
        self._native = array.header.dtype.newbyteorder("=")
        self._held: NDArray[Any] | None = None
        self._wanted = wanted

    def put(self, chunk: memoryview) -> None:
        self._content.put(chunk)

    def ready(self, most: int, row: int) -> int:
        """How many rows are there, of ``most`` that are wanted; ``row`` comes next, for messages."""
        header = self._array.header
        if not header.by_columns:
            there = self._content.available(most * header.row_bytes) // header.row_bytes
        else:
            size = len(self._array.come) * header.row_bytes
            if self._held is None and self._content.available(size) >= size:
                self._held = self._by_rows(self._content.take(size))
            there = 0 if self._held is None else len(self._held)
        if not there and self._content.fault is not None:
            raise FormatError(f"{self._array.what}: {self._content.fault}", sample=row)
        return min(there, most)

    def take(self, rows: int, row: int) -> Iterator[tuple[str, Column]]:
        """The fields of the next rows, which are there."""
        header = self._array.header
        if self._held is not None:
            values, self._held = np.ascontiguousarray(self._held[:rows]), self._held[rows:]
        else:
            values = self._content.take(rows * header.row_bytes).view(header.dtype)
            values = values.reshape(rows, *header.shape[1:])
        if not header.dtype.isnative:
            values = values.astype(self._native)
        for name, inside in self._array.fields:
            part = values if inside is None else np.ascontiguousarray(values[inside])
            yield name, _column_of(part, f"{self._array.what}: field {name!r}", row)

    def finish(self) -> None:
        """All bytes have come.

        Raises:
            FormatError: They are not those that were promised.
        """
        if fault := self._content.finish():
            raise FormatError(f"{self._array.what}: {fault}")

    def _by_rows(self, content: NDArray[np.uint8]) -> NDArray[Any]:
        """The wanted rows, of bytes in Fortran's order."""
        header, come, wanted = self._array.header, self._array.come, self._wanted
        values = content.view(header.dtype).reshape(*header.shape[:0:-1], len(come)).T
        return values[wanted.start - come.start : wanted.stop - come.start]


def _column_of(values: NDArray[Any], what: str, row: int) -> Column:
    """An array as a column: texts and bytes as Python's own, all else as it is."""
    if values.dtype.kind == "b" and (odd := values.view(np.uint8) > 1).any():
        bad = row + int(np.flatnonzero(odd.reshape(len(values), -1).any(axis=1))[0])
        raise FormatError(f"{what}: damaged: expected a bool of 0 or 1", sample=bad)
    if values.dtype.kind not in "SU":
        return values
    # Of others Python makes no text, and says so in ways that are not for errors of shards.
    if values.dtype.kind == "U" and (values.view(np.uint32) > sys.maxunicode).any():
        raise FormatError(f"{what}: damaged: a character that Unicode does not have", sample=row)
    texts: list[Any] = values.tolist()
    return texts
