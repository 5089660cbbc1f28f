"""What a Parquet footer says of the chunks: where they are, how compressed, of which column.

pyarrow knows as much, but it ends the process when it is asked for a column that a damaged footer does not
describe, or describes encrypted; as of version 26. So this much is read here (``parquet.thrift``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...errors import FormatError
from .thrift import Compact, DamagedError

__all__ = ["Chunk", "Group", "ParquetFooter", "parse_footer"]

# By the numbers in ``CompressionCodec``.
_CODECS = ("UNCOMPRESSED", "SNAPPY", "GZIP", "LZO", "BROTLI", "LZ4", "ZSTD", "LZ4_RAW")

# What a value takes in Arrow's memory, by ``Type``: bool, int32, int64, int96, float, double. Then come those
# that are as long as they are, of one length or not.
_VALUE_BYTES = (1, 4, 8, 8, 4, 8)


@dataclass(frozen=True, slots=True)
class Chunk:
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
class Group:
    """A row group: its number of rows, and its chunks."""

    rows: int
    chunks: list[Chunk]


@dataclass(frozen=True, slots=True)
class ParquetFooter:
    """The row groups, and who wrote them."""

    groups: list[Group]
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
        groups = [Group(each[3], list(map(_chunk_of, each[1]))) for each in found.get(4, ())]
    except KeyError as error:
        raise FormatError(f"parquet: damaged: the footer lacks field {error.args[0]} of a struct") from error
    except DamagedError as error:
        raise FormatError(f"parquet: damaged: the footer cannot be read: {error}") from error
    for number, each in enumerate(groups):
        if each.rows < 0:
            raise FormatError(f"parquet: damaged: row group {number} is said to have {each.rows} rows")
    return ParquetFooter(groups, found.get(6, ""))


def _chunk_of(found: dict[int, Any]) -> Chunk:
    file_path, is_encrypted = found.get(1, ""), 8 in found or 9 in found
    meta = found.get(3)
    if meta is None:
        if not is_encrypted:
            raise KeyError(3)
        return Chunk(None, _CODECS[0], 0, 0, 0, 0, None, file_path, True)
    # A dictionary comes before the data, and some writers say 0 where there is none.
    start, dictionary = meta[9], meta.get(11, 0)
    if 0 < dictionary < start:
        start = dictionary
    codec = _CODECS[meta[4]] if 0 <= meta[4] < len(_CODECS) else f"codec {meta[4]}"
    path = ".".join(meta[3])
    value_bytes = _VALUE_BYTES[meta[1]] if 0 <= meta[1] < len(_VALUE_BYTES) else None
    return Chunk(
        path, codec, start, start + meta[7], max(meta[6], 0), meta[5], value_bytes, file_path, is_encrypted
    )
