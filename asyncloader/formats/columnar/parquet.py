"""Parquet: the footer first, then of each row group the chunks of the wanted columns.

A position is the number of rows of the shard that were had, whatever a filter keeps of them; reopened there,
it is read from the row group on that the next row is in.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from ...errors import FormatError
from ...types import Layout, Planning, Span
from .._push import describe_bytes
from ..compression import SIGNATURE_BYTES, compression_of
from .footers import Footers, read_footer
from .importing import arrow
from .picking import check_rows
from .row_groups import ParquetDecoder, RowGroup
from .selection import Choice, Selection, choose
from .spans import HeldSpans, merge

__all__ = ["plan_parquet"]

_MAGIC = b"PAR1"
_ENCRYPTED_MAGIC = b"PARE"
_TAIL_BYTES = 8  # the length of the footer, and the magic

# Shows what the shard is if it is no Parquet, and is all of a tiny one.
_HEAD_BYTES = 4 << 10

# Writers up to this one stated lengths of chunks that lack some bytes (PARQUET-816).
_OLD_WRITER = re.compile(r"parquet-mr version 1\.(0|1|2\.[0-8])\b")
_OLD_PADDING_BYTES = 100


def plan_parquet(*, start_sample: int = 0, selection: Selection, footers: Footers | None = None) -> Planning:
    """Plan what to read of a Parquet shard.

    Args:
        start_sample: Rows that were had already.
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
    return _layout_of(footer, head.length, start_sample, selection)


def _layout_of(footer: bytes, length: int, start_sample: int, selection: Selection) -> Layout:
    """What to read of a shard of ``length`` bytes."""
    metadata = _metadata_of(footer)
    choice = choose(selection, metadata.schema.to_arrow_schema())
    chunks = _chunks_of(metadata, choice)
    kept = None if choice.filters is None else _kept_by_statistics(footer, choice.filters)
    spans, groups = [], []
    first = 0
    for index in range(metadata.num_row_groups):
        rows = metadata.row_group(index).num_rows
        if rows < 0:
            raise FormatError(f"parquet: damaged: row group {index} is said to have {rows} rows")
        if first + rows > start_sample and rows and (kept is None or index in kept):
            sized = _spans_of(metadata, index, chunks, length - len(footer))
            spans.append([span for span, _ in sized])
            groups.append(RowGroup(index, first, rows, sum(size for _, size in sized)))
        first += rows
    check_rows(first, start_sample)
    merged, complete = merge(spans)
    decoder = partial(
        ParquetDecoder,
        partial(HeldSpans, merged, length),
        metadata,
        list(zip(groups, complete, strict=True)),
        choice,
        start_sample,
    )
    return Layout(tuple(merged), decoder, samples=first)


def _metadata_of(footer: bytes) -> Any:
    pa = arrow()
    import pyarrow.parquet

    try:
        metadata = pyarrow.parquet.read_metadata(pa.BufferReader(footer))
        metadata.schema.to_arrow_schema()
    except (pa.ArrowException, OSError, ValueError) as error:
        what = str(error).partition("\n")[0]
        raise FormatError(f"parquet: the footer cannot be read: {what}") from error
    return metadata


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


def _chunks_of(metadata: Any, choice: Choice) -> list[int]:
    """The columns as Parquet counts them, where a nested one is several, that pyarrow will read."""
    read = choice.read
    paths = (metadata.schema.column(index).path for index in range(metadata.num_columns))
    return [
        index
        for index, path in enumerate(paths)
        if any(path == name or path.startswith(f"{name}.") for name in read)
    ]


def _kept_by_statistics(footer: bytes, filters: Any) -> set[int]:
    """The row groups that may have rows which meet the filter."""
    import pyarrow.dataset

    fragment = pyarrow.dataset.ParquetFileFormat().make_fragment(arrow().BufferReader(footer))
    return {group.id for group in fragment.subset(filters).row_groups}


def _spans_of(metadata: Any, group: int, chunks: list[int], stop: int) -> list[tuple[Span, int]]:
    """Where the chunks of a row group are, before ``stop``, and how many bytes they decompress to."""
    padding = _OLD_PADDING_BYTES if _OLD_WRITER.match(metadata.created_by or "") else 0
    spans = []
    for index in chunks:
        chunk = metadata.row_group(group).column(index)
        what = f"column {chunk.path_in_schema!r} of row group {group}"
        if chunk.file_path:
            raise FormatError(f"parquet: {what} is in another file, {chunk.file_path!r}")
        _check_codec(chunk.compression, what)
        start: int = chunk.data_page_offset
        if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < start:
            start = chunk.dictionary_page_offset
        end = start + chunk.total_compressed_size
        if not len(_MAGIC) <= start <= end <= stop:
            raise FormatError(f"parquet: damaged: {what} is said to be at bytes {start} to {end} of {stop}")
        if start < end:
            spans.append((Span(start, min(end + padding, stop)), max(0, chunk.total_uncompressed_size)))
    return spans


def _check_codec(codec: str, what: str) -> None:
    try:
        known = codec == "UNCOMPRESSED" or arrow().Codec.is_available(codec.lower())
    except ValueError:  # a codec that pyarrow has not heard of
        known = False
    if not known:
        raise FormatError(f"parquet: {what} is compressed with {codec}, which this pyarrow was built without")
