"""The index of a folder of MDS: which shards there are, and what each of them should be. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

import msgspec

from ...errors import FormatError
from ..columnar.selection import Selection
from .config import check_columns
from .rows import COMPRESSIONS

__all__ = ["IndexedFile", "IndexedShard", "parse_index"]

_VERSION = 2

# A table counts in 32 bits. Lengths are kept in 64.
_Samples: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 32) - 1)]
_Length: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


class IndexedFile(msgspec.Struct, rename={"size_bytes": "bytes"}):
    """A file of a shard.

    Attributes:
        basename: Its name in the folder.
        size_bytes: Its length.
        hashes: Digests of its bytes in hexadecimal digits, by algorithm.
    """

    basename: str
    size_bytes: _Length
    hashes: dict[str, str] = {}


class _Entry(msgspec.Struct):
    samples: _Samples
    format: str
    version: int
    raw_data: IndexedFile | None = None
    zip_data: IndexedFile | None = None
    compression: str | None = None
    column_names: list[str] = []
    column_encodings: list[str] = []
    column_sizes: list[int | None] = []
    separator: str | None = None


class _Index(msgspec.Struct):
    version: int
    shards: list[_Entry]


@dataclass(frozen=True, slots=True)
class IndexedShard:
    """A shard.

    Attributes:
        file: Which of its files is to be read.
        format: That file's, a name in ``formats``.
        samples: How many it has.
        raw: What that file is when it is decompressed, where it is compressed and the index says so.
    """

    file: IndexedFile
    format: str
    samples: int
    raw: IndexedFile | None = None


def parse_index(
    content: bytes, selection: Selection, is_there: Callable[[str], bool] | None = None
) -> Iterator[IndexedShard]:
    """The shards of an index.

    Args:
        content: The file.
        selection: Which columns are wanted: that all shards have them is checked.
        is_there: Whether a file is in the folder; None where that takes a request. A shard that was
            compressed may have been decompressed beside the original: its raw file is read if it is there,
            else the compressed one.

    Raises:
        FormatError: It is not sound, of another version or format, or a wanted column is not read.
    """
    try:
        index = msgspec.json.decode(content, type=_Index)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise FormatError(f"index: expected the index.json of MDS: {error}") from error
    _check_version("", index.version)
    checked: tuple[Any, ...] = ()
    for number, entry in enumerate(index.shards):
        place = f"shards[{number}]"
        _check_version(f"{place}.", entry.version)
        _check_format(place, entry)
        columns = entry.column_names, entry.column_encodings, entry.column_sizes
        if columns != checked:  # mostly all have the same
            names = ("names", "encodings", "sizes")
            described = {f"column_{name}": value for name, value in zip(names, columns, strict=True)}
            check_columns({"version": _VERSION, "format": "mds", **described}, selection)
            checked = columns
        yield _shard_of(place, entry, is_there)


def _shard_of(place: str, entry: _Entry, is_there: Callable[[str], bool] | None) -> IndexedShard:
    raw, packed = entry.raw_data, entry.zip_data
    if raw is not None and (packed is None or (is_there is not None and is_there(raw.basename))):
        return IndexedShard(raw, "mds", entry.samples)
    if packed is None:
        raise FormatError(f"index: {place}: expected raw_data or zip_data, found neither")
    family = (entry.compression or "").partition(":")[0]
    if family not in COMPRESSIONS:
        raise FormatError(
            f"index: {place}.compression: expected one of {', '.join(COMPRESSIONS)}, found "
            f"{entry.compression!r}"
        )
    return IndexedShard(packed, f"mds.{family}", entry.samples, raw)


def _check_version(place: str, version: int) -> None:
    if version != _VERSION:
        raise FormatError(f"index: {place}version: expected {_VERSION}, found {version}")


# What reads the formats of streaming that are text.
_TEXTS = {"json": "jsonl", "csv": "csv", "tsv": "tsv", "xsv": "csv"}


def _check_format(place: str, entry: _Entry) -> None:
    format, separator = entry.format, entry.separator
    if format == "mds":
        return
    if format not in _TEXTS:
        raise FormatError(f"index: {place}.format: expected 'mds', found {format!r}")
    text = f"index: {place}: these shards are text, in streaming's format {format!r}: "
    said = ""
    if format == "xsv":
        if separator is None or len(separator) != 1:
            raise FormatError(
                f"{text}their fields are separated by {separator!r}, and only one character is read as that; "
                "write them anew with such a one, or as MDS"
            )
        said = f", delimiter={separator!r}"
    raise FormatError(f"{text}read their data files with al.from_urls(..., format={_TEXTS[format]!r}{said})")
