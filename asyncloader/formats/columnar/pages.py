"""Pages of Parquet by their headers: one that would become gigabytes is refused before it does.

pyarrow believes the headers, has no bound of its own, and no way to be given one. The footer may say
anything: what counts is what stands before each page.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...errors import FormatError
from .parquet_footer import Chunk
from .thrift import Compact, DamagedError

__all__ = ["Decoded", "check_pages"]

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
class Decoded:
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


def check_pages(file: io.RawIOBase, chunks: Sequence[Chunk], group: int) -> Decoded:
    """Look at all pages of a row group that are to be read.

    Args:
        file: Where their bytes are.
        chunks: Of the wanted columns.
        group: Number of the row group, for messages.

    Raises:
        FormatError: A page would take too much memory, or its header is damaged.
    """
    decoded = Decoded()
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


def _pages(file: io.RawIOBase, chunk: Chunk, what: str) -> Iterator[_Page]:
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
        except (DamagedError, KeyError) as error:
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
