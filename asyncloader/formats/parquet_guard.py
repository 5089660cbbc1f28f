"""What is read of a Parquet shard before pyarrow may see it: the footer, and the headers of pages.

pyarrow ends the process when it is asked for a column that a damaged footer does not describe, or describes
encrypted, as of version 26; and it believes the headers of pages, one of which may claim gigabytes. So both
are read here, in as much of Thrift's compact protocol as they take.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..errors import FormatError

_BOOLEANS = (1, 2)
_BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(3, 13)
_INTEGERS = (_I16, _I32, _I64)

# Of what is skipped; Parquet's own structs are nested some five deep.
_MOST_NESTED = 32

Read: TypeAlias = Callable[[int], Any]
"""Reads a value of a type, as the protocol numbers types."""


class ThriftError(Exception):
    """The bytes are not of the protocol, or not what is expected of them."""


class Compact:
    """Reads values one after another.

    Args:
        content: Their bytes. No claim in them is believed beyond the bytes there are.
    """

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    @property
    def at(self) -> int:
        """How many bytes were read."""
        return self._at

    def struct(self, wanted: Mapping[int, Read]) -> dict[int, Any]:
        """The wanted fields of a struct, by their numbers, as far as it has them.

        Raises:
            DamagedError: As all methods.
        """
        found = {}
        field = 0
        while kind := self._byte():
            field = field + (kind >> 4) if kind >> 4 else self._zigzag()
            read = wanted.get(field)
            if read is None:
                self._skip(kind & 15, 0)
            else:
                found[field] = read(kind & 15)
        return found

    def number(self, kind: int) -> int:
        """An integer."""
        if kind not in _INTEGERS:
            raise ThriftError(f"expected a number, found type {kind}")
        return self._zigzag()

    def text(self, kind: int) -> str:
        """A text."""
        if kind != _BINARY:
            raise ThriftError(f"expected a text, found type {kind}")
        return str(self._take(self._varint()), "utf-8", "replace")

    def list_of(self, read: Callable[[int], Any]) -> Read:
        """Reads a list, its entries by ``read``."""

        def read_list(kind: int) -> list[Any]:
            if kind != _LIST:
                raise ThriftError(f"expected a list, found type {kind}")
            count, inside = self._list_header()
            return [read(inside) for _ in range(count)]

        return read_list

    def struct_of(self, wanted: Mapping[int, Read]) -> Read:
        """Reads a struct; see ``struct``."""

        def read_struct(kind: int) -> dict[int, Any]:
            if kind != _STRUCT:
                raise ThriftError(f"expected a struct, found type {kind}")
            return self.struct(wanted)

        return read_struct

    def presence(self, kind: int) -> bool:
        """True, of whatever is there."""
        self._skip(kind, 0)
        return True

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
                # Where it is no field, a boolean takes a byte.
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
        at = self._at
        if at >= len(self._content):
            raise ThriftError("it ends in the middle of a value")
        self._at = at + 1
        return self._content[at]

    def _take(self, size: int) -> bytes:
        begin = self._at
        self._skip_bytes(size)
        return self._content[begin : self._at]

    def _skip_bytes(self, size: int) -> None:
        self._at += size
        if self._at > len(self._content):
            raise ThriftError("it ends in the middle of a value")


# By the numbers in ``CompressionCodec``.
_CODECS = ("UNCOMPRESSED", "SNAPPY", "GZIP", "LZO", "BROTLI", "LZ4", "ZSTD", "LZ4_RAW")

# What a value takes in Arrow's memory, by ``Type``: bool, int32, int64, int96, float, double. Then come those
# that are as long as they are, of one length or not.
_VALUE_BYTES = (1, 4, 8, 8, 4, 8)


@dataclass(frozen=True, slots=True)
class ColumnChunk:
    """The values of one column in one row group; of a nested column there are several.

    Attributes:
        path: Of the column, its names joined by dots; None if that is encrypted.
        codec: Compression, as Parquet calls it.
        start: Offset of its first byte.
        stop: Behind its last one.
        decoded_bytes: Of its pages when they are decompressed.
        values: How many there are, nulls and the marks of empty lists among them.
        value_bytes: What a value takes when it is decoded, at most; None for strings and bytes.
        file_path: Of the file it is in, if it is another one.
        is_encrypted: It cannot be read without a key.
    """

    path: str | None
    codec: str
    start: int
    stop: int
    decoded_bytes: int
    values: int
    value_bytes: int | None
    file_path: str
    is_encrypted: bool


@dataclass(frozen=True, slots=True)
class GroupChunks:
    """A row group: its number of rows, and its chunks."""

    rows: int
    chunks: list[ColumnChunk]


@dataclass(frozen=True, slots=True)
class ParquetFooter:
    """The row groups, and who wrote them."""

    groups: list[GroupChunks]
    created_by: str


def parse_footer(content: bytes) -> ParquetFooter:
    """Read a footer.

    Raises:
        FormatError: It is damaged.
    """
    thrift = Compact(content)
    meta = {
        3: thrift.list_of(thrift.text),
        **dict.fromkeys((1, 4, 5, 6, 7, 9, 11), thrift.number),
    }
    chunk = {1: thrift.text, 3: thrift.struct_of(meta), 8: thrift.presence, 9: thrift.presence}
    group = {1: thrift.list_of(thrift.struct_of(chunk)), 3: thrift.number}
    try:
        found = thrift.struct({4: thrift.list_of(thrift.struct_of(group)), 6: thrift.text})
        groups = [GroupChunks(each[3], list(map(_chunk_of, each[1]))) for each in found.get(4, ())]
    except KeyError as error:
        raise FormatError(f"parquet: damaged: the footer lacks field {error.args[0]} of a struct") from error
    except ThriftError as error:
        raise FormatError(f"parquet: damaged: the footer cannot be read: {error}") from error
    for number, each in enumerate(groups):
        if each.rows < 0:
            raise FormatError(f"parquet: damaged: row group {number} is said to have {each.rows} rows")
    return ParquetFooter(groups, found.get(6, ""))


def _chunk_of(found: dict[int, Any]) -> ColumnChunk:
    file_path, is_encrypted = found.get(1, ""), 8 in found or 9 in found
    meta = found.get(3)
    if meta is None:
        if not is_encrypted:
            raise KeyError(3)
        return ColumnChunk(None, _CODECS[0], 0, 0, 0, 0, None, file_path, True)
    # A dictionary comes before the data, and some writers say 0 where there is none.
    start, dictionary = meta[9], meta.get(11, 0)
    if 0 < dictionary < start:
        start = dictionary
    codec = _CODECS[meta[4]] if 0 <= meta[4] < len(_CODECS) else f"codec {meta[4]}"
    path = ".".join(meta[3])
    value_bytes = _VALUE_BYTES[meta[1]] if 0 <= meta[1] < len(_VALUE_BYTES) else None
    return ColumnChunk(
        path, codec, start, start + meta[7], max(meta[6], 0), meta[5], value_bytes, file_path, is_encrypted
    )


# As of a line of JSON. Writers make pages of 1 MiB; of large values, such as images, some put a thousand into
# one, which compress little.
_MOST_PAGE_BYTES = 256 << 20
_MOST_RATIO = 100

# Far above what a page of 1 MiB holds where a value takes a bit: 8 million.
_MOST_VALUES = 1 << 28

# A header has some 50 bytes, and the least and the greatest value besides, which may be long.
_HEADER_BYTES = 256
_MOST_HEADER_BYTES = 16 << 20

_DICTIONARY_PAGE = 2


@dataclass(frozen=True, slots=True)
class _Page:
    """What the header of a page says.

    Attributes:
        is_dictionary: Whether it has the values that pages after it name by number.
        header_bytes: Of the header.
        compressed_bytes: Of what follows it.
        page_bytes: Of that when it is decompressed.
        values: How many there are, nulls and the marks of empty lists among them.
    """

    is_dictionary: bool
    header_bytes: int
    compressed_bytes: int
    page_bytes: int
    values: int


@dataclass(slots=True)
class DecodedSizes:
    """What the wanted columns of a row group become, as far as the headers of their pages tell.

    Attributes:
        size_bytes: All of them together, but for what is named in dictionaries of strings and bytes.
        dictionary_bytes: Of these dictionaries: a row has, in each column that is no list, no more.
    """

    size_bytes: int = 0
    dictionary_bytes: int = 0

    def add(self, page: _Page, value_bytes: int | None) -> None:
        """Count one more page of values of so many bytes each; None for strings and bytes."""
        if value_bytes is not None:
            self.size_bytes += 0 if page.is_dictionary else page.values * value_bytes
        elif page.is_dictionary:
            self.dictionary_bytes += page.page_bytes
        else:
            self.size_bytes += page.page_bytes


def check_pages(file: io.RawIOBase, chunks: Sequence[ColumnChunk], group: int) -> DecodedSizes:
    """Look at all pages of a row group that are to be read.

    Args:
        file: Where their bytes are.
        chunks: Of the wanted columns.
        group: Number of the row group, for messages.

    Raises:
        FormatError: A page would take too much memory, or its header is damaged.
    """
    decoded = DecodedSizes()
    for chunk in chunks:
        what = f"parquet: column {chunk.path!r} of row group {group}"
        for number, page in enumerate(_pages(file, chunk, what)):
            _check(page, f"{what}, page {number}")
            decoded.add(page, chunk.value_bytes)
    return decoded


def _check(page: _Page, what: str) -> None:
    if min(page.compressed_bytes, page.page_bytes, page.values) < 0:
        raise FormatError(f"{what}: damaged: a size is negative")
    most = max(_MOST_PAGE_BYTES, _MOST_RATIO * page.compressed_bytes)
    if page.page_bytes > most:
        raise FormatError(
            f"{what}: {page.compressed_bytes} bytes are to become {page.page_bytes}; at most {most} are "
            "decompressed: it is damaged, or made to use up memory; else write smaller pages (data_page_size)"
        )
    # A value of a dictionary takes a bit, at least; elsewhere equal ones may take nothing.
    most = 8 * page.page_bytes if page.is_dictionary else _MOST_VALUES
    if page.values > most:
        raise FormatError(f"{what}: damaged: it claims {page.values} values; at most {most} are read")


def _pages(file: io.RawIOBase, chunk: ColumnChunk, what: str) -> Iterator[_Page]:
    """Those that pyarrow will read: until the values are there that the footer promises."""
    at, values = chunk.start, 0
    while at < chunk.stop and values < chunk.values:
        page = _page_at(file, at, what)
        yield page
        values += 0 if page.is_dictionary else page.values
        at += page.header_bytes + page.compressed_bytes


def _page_at(file: io.RawIOBase, at: int, what: str) -> _Page:
    size = _HEADER_BYTES
    while True:
        file.seek(at)
        content = file.read(size) or b""
        try:
            return _parsed(content)
        except (ThriftError, KeyError) as error:
            if len(content) < size or size >= _MOST_HEADER_BYTES:
                raise FormatError(f"{what}: damaged: the page at byte {at} has no header") from error
        size *= 16


def _parsed(content: bytes) -> _Page:
    thrift = Compact(content)
    counted = thrift.struct_of({1: thrift.number})
    found = thrift.struct(
        {1: thrift.number, 2: thrift.number, 3: thrift.number, 5: counted, 7: counted, 8: counted}
    )
    header = found.get(5) or found.get(7) or found.get(8) or {1: 0}
    return _Page(found[1] == _DICTIONARY_PAGE, thrift.at, found[3], found[2], header[1])
