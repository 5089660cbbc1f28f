"""What is checked in a Parquet shard before pyarrow sees it: the footer, and the headers of pages.

As of version 26, pyarrow ends the process when it reads a column that a damaged footer does not describe, or
describes as encrypted; and it trusts the headers of pages, which may claim gigabytes. So both are parsed
here, in as much of Thrift's compact protocol as they use.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..errors import FormatError
from .decoder import check_unpacked

_BOOLEANS = (1, 2)
_BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(3, 13)
_INTEGERS = (_I16, _I32, _I64)

# For structs that are skipped; Parquet's own are nested some five deep.
_MOST_NESTED = 32

Wanted: TypeAlias = dict[int, Any]
"""The wanted fields of a struct, by their numbers: ``int``, ``str``, ``bool`` (True if the field is there), a
dict for a struct within, or a list of ``str`` or a dict for a list of texts or structs."""

_NAMES = {int: "a number", str: "a text", list: "a list", dict: "a struct"}


class ThriftError(Exception):
    """The bytes are not of the protocol, or not of the expected types."""


class Compact:
    """Reads structs one after another.

    Args:
        content: Their bytes. A claim in them is never trusted beyond the bytes that are there.

    Attributes:
        at: How many bytes were read.
    """

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.at = 0

    def struct(self, wanted: Wanted, depth: int = 0) -> dict[int, Any]:
        """The wanted fields of a struct, by their numbers, as far as it has them; others are skipped.

        Raises:
            ThriftError: The bytes are damaged, or a wanted field has another type.
        """
        found = {}
        field = 0
        while head := self._byte():
            field = field + (head >> 4) if head >> 4 else self._zigzag()
            kind = head & 15
            if (form := wanted.get(field)) is None:
                self._skip(kind, depth)
            elif form is int and kind in _INTEGERS:  # as most are
                found[field] = self._zigzag()
            elif form is bool:
                self._skip(kind, depth)
                found[field] = True
            else:
                found[field] = self._value(kind, form, depth)
        return found

    def _value(self, kind: int, form: Any, depth: int) -> Any:
        """A value of a type, as the protocol numbers types, which should have the form that is wanted."""
        if form is str and kind == _BINARY:
            size = self._varint()
            begin = self.at
            self._skip_bytes(size)
            return str(self._content[begin : self.at], "utf-8", "replace")
        if isinstance(form, list) and kind == _LIST:
            count, inside = self._list_header()
            return [self._value(inside, form[0], depth) for _ in range(count)]
        if isinstance(form, dict) and kind == _STRUCT:
            return self.struct(form, depth + 1)
        name = _NAMES[form if isinstance(form, type) else type(form)]
        raise ThriftError(f"expected {name}, found type {kind}")

    def _skip(self, kind: int, depth: int) -> None:
        if depth > _MOST_NESTED:
            raise ThriftError("structs are nested too deep")
        if kind in _INTEGERS:
            self._varint()
        elif kind == _BINARY:
            self._skip_bytes(self._varint())
        elif kind == _STRUCT:
            while inside := self._byte():
                if not inside >> 4:
                    self._varint()
                self._skip(inside & 15, depth + 1)
        elif kind in (_LIST, _SET):
            count, inside = self._list_header()
            self._skip_all(count, (inside,), depth)
        elif kind == _MAP:
            if count := self._varint():
                kinds = self._byte()
                self._skip_all(count, (kinds >> 4, kinds & 15), depth)
        elif kind == _DOUBLE:
            self._skip_bytes(8)
        elif kind == _BYTE:
            self._skip_bytes(1)
        elif kind not in _BOOLEANS:
            raise ThriftError(f"there is no type {kind}")

    def _skip_all(self, count: int, kinds: tuple[int, ...], depth: int) -> None:
        for _ in range(count):
            for kind in kinds:
                # A boolean outside of a struct takes a byte.
                self._skip(_BYTE if kind in _BOOLEANS else kind, depth + 1)

    def _list_header(self) -> tuple[int, int]:
        header = self._byte()
        count = header >> 4
        return (self._varint() if count == 15 else count), header & 15

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)

    def _varint(self) -> int:
        value = shift = 0
        while (byte := self._byte()) & 0x80:
            value |= (byte & 0x7F) << shift
            shift += 7
            if shift > 63:
                raise ThriftError("a number has more than 64 bits")
        return value | byte << shift

    def _byte(self) -> int:
        at = self.at
        if at >= len(self._content):
            raise ThriftError("it ends in the middle of a value")
        self.at = at + 1
        return self._content[at]

    def _skip_bytes(self, size: int) -> None:
        self.at += size
        if self.at > len(self._content):
            raise ThriftError("it ends in the middle of a value")


# What a value takes in Arrow's memory, by ``Type``: bool, int32, int64, int96, float, double. The types after
# these are bytes, whose lengths vary.
_VALUE_BYTES = (1, 4, 8, 8, 4, 8)


# ``FileMetaData`` of parquet.thrift, and what is in it; and ``PageHeader``.
_COLUMN = {3: [str], **dict.fromkeys((1, 5, 6, 7, 9, 11), int)}
_FOOTER = {4: [{1: [{1: str, 3: _COLUMN, 8: bool, 9: bool}], 3: int}], 6: str}
_PAGE = {1: int, 2: int, 3: int, 5: {1: int}, 7: {1: int}, 8: {1: int}}


@dataclass(frozen=True, slots=True)
class ColumnChunk:
    """The values of one column in one row group; of a nested column there are several.

    Attributes:
        path: The names of the column, joined by dots; None if they are encrypted.
        start: Offset of its first byte.
        stop: Offset behind its last byte.
        decoded_bytes: Size of its decompressed pages.
        values: How many values it has, with nulls and the marks of empty lists.
        value_bytes: The most that a decoded value takes; None for strings and bytes.
        file_path: Path of the file that it is in, if that is another file.
        is_encrypted: Whether it cannot be read without a key.
    """

    path: str | None
    start: int
    stop: int
    decoded_bytes: int
    values: int
    value_bytes: int | None
    file_path: str
    is_encrypted: bool


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A row group.

    Attributes:
        index: Its number in the shard.
        first: Row in the shard of its first row.
        rows: How many rows it has.
        chunks: Those of its columns; of one that is read, of the wanted ones.
    """

    index: int
    first: int
    rows: int
    chunks: list[ColumnChunk]

    @property
    def decoded_bytes(self) -> int:
        """About how many bytes its columns take, by the footer."""
        return sum(chunk.decoded_bytes for chunk in self.chunks)


def parse_footer(content: bytes) -> tuple[list[RowGroup], str]:
    """The row groups by a footer, and the name of the writer.

    Raises:
        FormatError: It is damaged.
    """
    groups: list[RowGroup] = []
    first = 0
    try:
        found = Compact(content).struct(_FOOTER)
        for index, each in enumerate(found.get(4, ())):
            groups.append(RowGroup(index, first, each[3], [*map(_chunk_of, each[1])]))
            first += each[3]
    except KeyError as error:
        raise FormatError(f"parquet: damaged: the footer lacks field {error.args[0]} of a struct") from error
    except ThriftError as error:
        raise FormatError(f"parquet: damaged: the footer cannot be read: {error}") from error
    for group in groups:
        if group.rows < 0:
            raise FormatError(f"parquet: damaged: row group {group.index} claims {group.rows} rows")
    return groups, found.get(6, "")


def _chunk_of(found: dict[int, Any]) -> ColumnChunk:
    file_path, is_encrypted = found.get(1, ""), 8 in found or 9 in found
    meta = found.get(3)
    if meta is None:
        if not is_encrypted:
            raise KeyError(3)
        return ColumnChunk(None, 0, 0, 0, 0, None, file_path, True)
    # A dictionary comes before the data. Some writers state 0 if there is none.
    start, dictionary = meta[9], meta.get(11, 0)
    if 0 < dictionary < start:
        start = dictionary
    path = ".".join(meta[3])
    value_bytes = _VALUE_BYTES[meta[1]] if 0 <= meta[1] < len(_VALUE_BYTES) else None
    return ColumnChunk(
        path, start, start + meta[7], max(meta[6], 0), meta[5], value_bytes, file_path, is_encrypted
    )


# Far above what a page of 1 MiB holds if a value takes a bit: 8 million.
_MOST_VALUES = 1 << 28

# A header has some 50 bytes, and the least and the greatest value, which may be long.
_HEADER_BYTES = 256
_MOST_HEADER_BYTES = 16 << 20

_DICTIONARY_PAGE = 2


def check_pages(file: io.RawIOBase, chunks: Sequence[ColumnChunk], group: int) -> tuple[int, int]:
    """Check all pages of a row group that pyarrow will read.

    Args:
        file: The file with their bytes.
        chunks: The chunks of the wanted columns.
        group: Number of the row group, for messages.

    Returns:
        Sizes as far as the headers of pages state them: of all decoded columns, without values from
        dictionaries of strings and bytes; and of these dictionaries, which bounds a row's values in columns
        without lists.

    Raises:
        FormatError: A page would take too much memory, or its header is damaged.
    """
    size_bytes = dictionary_bytes = 0
    for chunk in chunks:
        at, values, number = chunk.start, 0, 0
        while at < chunk.stop and values < chunk.values:
            what = f"parquet: column {chunk.path!r} of row group {group}, page {number}"
            header_bytes, compressed_bytes, page_bytes, page_values, is_dictionary = _page_at(file, at, what)
            if min(compressed_bytes, page_bytes, page_values) < 0:
                raise FormatError(f"{what}: damaged: a size is negative")
            advice = "; otherwise write smaller pages (data_page_size)"
            check_unpacked(what, compressed_bytes, page_bytes, advice)
            # A value of a dictionary takes at least a bit; elsewhere equal values may take nothing.
            most = 8 * page_bytes if is_dictionary else _MOST_VALUES
            if page_values > most:
                raise FormatError(f"{what}: damaged: it claims {page_values} values; at most {most} are read")
            if not is_dictionary:
                values += page_values
                size_bytes += page_bytes if chunk.value_bytes is None else page_values * chunk.value_bytes
            elif chunk.value_bytes is None:
                dictionary_bytes += page_bytes
            at += header_bytes + compressed_bytes
            number += 1
    return size_bytes, dictionary_bytes


def _page_at(file: io.RawIOBase, at: int, what: str) -> tuple[int, int, int, int, bool]:
    """What the header of a page states.

    Returns:
        Length of the header, of the page behind it, and of the decompressed page; how many values it has,
        with nulls and the marks of empty lists; whether they are a dictionary, to which later pages refer.
    """
    size = _HEADER_BYTES
    while True:
        file.seek(at)
        content = file.read(size) or b""
        try:
            thrift = Compact(content)
            found = thrift.struct(_PAGE)
            header = found.get(5) or found.get(7) or found.get(8) or {1: 0}
            return thrift.at, found[3], found[2], header[1], found[1] == _DICTIONARY_PAGE
        except (ThriftError, KeyError) as error:
            if len(content) < size or size >= _MOST_HEADER_BYTES:
                raise FormatError(f"{what}: damaged: the page at byte {at} has no header") from error
        size *= 16
