"""Parquet: the footer first, then of each row group the chunks of the wanted columns.

A position is the number of rows of the shard that were had, whatever a filter keeps of them; reopened there,
it is read from the row group on that the next row is in.
"""

from __future__ import annotations

import re
import sys
from functools import partial
from typing import Any

from ...errors import FormatError
from ...types import Layout, Planning, Span
from .._push import describe_bytes
from ..compression import SIGNATURE_BYTES, compression_of
from .footers import Footers, read_footer
from .importing import arrow, told
from .parquet_footer import Chunk, Group, parse_footer
from .picking import check_rows
from .row_groups import ParquetDecoder, RowGroup
from .selection import Choice, Selection, choose
from .spans import HeldSpans, merge
from .statistics import kept_by_statistics

__all__ = ["plan_parquet"]

_MAGIC = b"PAR1"
_ENCRYPTED_MAGIC = b"PARE"
_TAIL_BYTES = 8  # the length of the footer, and the magic

# Shows what the shard is if it is no Parquet, and is all of a tiny one.
_HEAD_BYTES = 4 << 10

# Writers up to this one stated lengths of chunks that lack some bytes (PARQUET-816).
_OLD_WRITER = re.compile(r"parquet-mr version 1\.(0|1|2\.[0-8])\b")
_OLD_PADDING_BYTES = 100


def plan_parquet(
    *,
    start_sample: int = 0,
    stop_sample: int | None = None,
    selection: Selection,
    footers: Footers | None = None,
) -> Planning:
    """Plan what to read of a Parquet shard.

    Args:
        start_sample: Rows that were had already.
        stop_sample: Row behind the last one that is wanted; whole row groups are read. None for all.
        selection: Which columns and rows are wanted.
        footers: Keeps this one, and may have it already.

    Raises:
        FormatError: It is no Parquet, truncated, encrypted, or lacks what is wanted of it.
        ImportError: pyarrow is not installed.
    """
    arrow()
    head = yield Span(0, _HEAD_BYTES)
    _check_head(head.content, head.length)
    footer = yield from read_footer("parquet", _MAGIC, head, footers)
    wanted = range(start_sample, sys.maxsize if stop_sample is None else stop_sample)
    return _layout_of(footer, head.length, wanted, selection)


def _layout_of(footer: bytes, length: int, wanted: range, selection: Selection) -> Layout:
    """What to read of a shard of ``length`` bytes for the rows that are wanted."""
    parsed = parse_footer(footer[:-_TAIL_BYTES])
    metadata, schema = _metadata_of(footer)
    choice = choose(selection, schema)
    kept = None if choice.filters is None else kept_by_statistics(footer, schema, choice)
    padding = _OLD_PADDING_BYTES if _OLD_WRITER.match(parsed.created_by) else 0
    spans, groups = [], []
    first = 0
    for index, group in enumerate(parsed.groups):
        is_wanted = first < wanted.stop and first + group.rows > wanted.start
        if is_wanted and group.rows and (kept is None or index in kept):
            chunks = _chunks_of(group, index, choice)
            _check_chunks(chunks, index, length - len(footer))
            spans.append([Span(chunk.start, min(chunk.stop + padding, length)) for chunk in chunks])
            groups.append(RowGroup(index, first, group.rows, tuple(chunks)))
        first += group.rows
    check_rows(first, wanted.start)
    merged, complete = merge(spans)
    decoder = partial(
        ParquetDecoder,
        partial(HeldSpans, merged, length),
        metadata,
        list(zip(groups, complete, strict=True)),
        choice,
        wanted.start,
    )
    return Layout(tuple(merged), decoder, samples=first, class_names=choice.features.class_names)


def _metadata_of(footer: bytes) -> tuple[Any, Any]:
    """The footer as pyarrow reads it, and its schema in terms of Arrow."""
    import pyarrow.parquet

    with told("parquet: the footer"):
        metadata = pyarrow.parquet.read_metadata(arrow().BufferReader(footer))
        return metadata, metadata.schema.to_arrow_schema()


def _check_head(start: bytes, length: int) -> None:
    if start.startswith(_MAGIC) and length > len(_MAGIC) + _TAIL_BYTES:
        return
    if start.startswith(_ENCRYPTED_MAGIC):
        raise FormatError("parquet: the footer is encrypted; encrypted shards are not read", offset=0)
    if not length:
        raise FormatError("parquet: truncated: the shard is empty", offset=0)
    if start.startswith(_MAGIC):
        raise FormatError("parquet: truncated: the shard ends before its footer", offset=length)
    hint = describe_bytes(start)
    if compression_of(start[:SIGNATURE_BYTES]) is not None:
        hint += ", and a compressed file cannot be read in parts: decompress it, its columns are compressed"
    raise FormatError(f"parquet: expected the magic {_MAGIC!r}, found {start[:4]!r}{hint}", offset=0)


def _chunks_of(group: Group, index: int, choice: Choice) -> list[Chunk]:
    """Those that pyarrow will read."""
    if any(chunk.path is None for chunk in group.chunks):
        raise FormatError(f"parquet: columns of row group {index} are encrypted; such shards are not read")
    prefixes = tuple(f"{name}." for name in choice.read)
    chunks = [chunk for chunk in group.chunks if f"{chunk.path}.".startswith(prefixes)]
    return [chunk for chunk in chunks if chunk.stop > chunk.start or chunk.is_encrypted]


def _check_chunks(chunks: list[Chunk], group: int, stop: int) -> None:
    """Refuse what cannot be read, and what is not between the magic and ``stop``."""
    for chunk in chunks:
        what = f"column {chunk.path!r} of row group {group}"
        if chunk.is_encrypted:
            raise FormatError(f"parquet: {what} is encrypted; encrypted columns are not read")
        if chunk.file_path:
            raise FormatError(f"parquet: {what} is in another file, {chunk.file_path!r}")
        _check_codec(chunk.codec, what)
        if not len(_MAGIC) <= chunk.start <= chunk.stop <= stop:
            raise FormatError(
                f"parquet: damaged: {what} is said to be at bytes {chunk.start} to {chunk.stop} of {stop}"
            )


def _check_codec(codec: str, what: str) -> None:
    try:
        known = codec == "UNCOMPRESSED" or arrow().Codec.is_available(codec.lower().removesuffix("_raw"))
    except ValueError:  # a codec that pyarrow has not heard of
        known = False
    if not known:
        raise FormatError(f"parquet: {what} is compressed with {codec}, which this pyarrow was built without")
