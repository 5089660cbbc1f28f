"""Parquet: the footer first, then of each row group the chunks of the wanted columns.

A position is the number of rows of the shard that were read, whatever a filter keeps of them. A shard is
reopened at the row group of the next row.
"""

from __future__ import annotations

import re
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial, reduce
from itertools import combinations
from operator import and_
from typing import Any

from ..blocks import Block
from ..errors import FormatError
from ..types import Layout, Planning, Span
from .arrow_columns import arrow, pyarrow_errors
from .compression import describe_whole
from .decoder import (
    MAX_BLOCK_BYTES,
    Decoder,
    HeldSpans,
    ShardSpec,
    check_reached,
    merge,
    read_footer,
)
from .parquet_guard import ColumnChunk, RowGroup, check_pages, parse_footer
from .selection import Choice, choose, pick

# Each additional column of floats doubles how often the statistics are evaluated.
_MOST_FLOATS = 4

# In the name of a type in which floats may be, at any depth.
_MAY_BE_NAN = re.compile("float|double|extension")


def kept_by_statistics(footer: bytes, schema: Any, choice: Choice) -> set[int] | None:
    """The row groups that may have rows which meet the filter.

    Statistics leave NaN out, and pyarrow assumes that the values of a column lie between its minimum and
    maximum. So the filter is also evaluated with NaN in place of every combination of the float columns that
    it looks at, which is what it would see in such rows.

    Args:
        footer: The footer of the shard.
        schema: Its schema in terms of Arrow.
        choice: The wanted columns and rows, with a filter.

    Returns:
        Their numbers; None if the statistics do not help.
    """
    import pyarrow.dataset

    floats = [name for name in choice.tested if _MAY_BE_NAN.search(str(schema.field(name).type))]
    known = arrow().types.is_floating
    if len(floats) > _MOST_FLOATS or not all(known(schema.field(name).type) for name in floats):
        return None
    kept: set[int] = set()
    parquet = pyarrow.dataset.ParquetFileFormat()
    try:
        for count in range(len(floats) + 1):
            for names in combinations(floats, count):
                fragment = parquet.make_fragment(
                    arrow().BufferReader(footer), partition_expression=_all_nan(schema, names)
                )
                kept |= {group.id for group in fragment.subset(choice.filters).row_groups}
    except (arrow().ArrowException, OSError, ValueError):
        return None  # no constant can be that, such as a NaN that is an integer
    return kept


def _all_nan(schema: Any, names: Iterable[str]) -> Any:
    """The expression that these columns are NaN; None without columns."""
    import pyarrow.compute as pc

    pa = arrow()
    said = [
        pc.field(name) == pc.scalar(pa.scalar(float("nan")).cast(schema.field(name).type)) for name in names
    ]
    return reduce(and_, said) if said else None


# Rows decoded at a time: enough to make the cost of a call for each column negligible.
_MOST_ROWS = 4096

# The rows of a shard that are decoded first, and by how much that number grows at most: 64 rows of 200 KB
# take 12 MiB, and two steps lead to the most. A small group is decoded without this care, if its pages show
# that it is small.
_FIRST_ROWS = 64
_STEP = 8
_SMALL_GROUP_BYTES = 32 << 20

# What rows that are decoded together may take if each held all values of its columns' dictionaries. These
# have mostly 1 MiB, but a short page may refer to a long value again and again.
_MOST_EXPANDED_BYTES = 1 << 30


class ParquetDecoder(Decoder):
    """Decode row groups as their chunks come.

    Args:
        spans: What will be fed of the shard, in this order.
        length: Length of the shard.
        metadata: pyarrow's metadata of the whole shard.
        groups: The groups to read, in the order in which their chunks come; each with the number of fed bytes
            after which it is complete.
        choice: Which columns and rows are wanted.
        start_sample: Rows of the shard that were already read.
    """

    def __init__(
        self,
        spans: Sequence[Span],
        length: int,
        metadata: Any,
        groups: Sequence[tuple[RowGroup, int]],
        choice: Choice,
        start_sample: int,
    ) -> None:
        import pyarrow.parquet

        self._file = HeldSpans(spans, length)
        with pyarrow_errors("parquet: the footer"):
            # pyarrow may read only what was fed: nothing ahead of it, and no footer.
            self._reader = pyarrow.parquet.ParquetFile(
                self._file, metadata=metadata, pre_buffer=False, page_checksum_verification=True
            )
        self._groups = deque(groups)
        self._choice = choice
        self._start = start_sample
        self._rows = _FIRST_ROWS

    def _decode(self, chunk: bytes | memoryview) -> Iterator[Block]:
        self._file.feed(chunk)
        while self._groups and self._groups[0][1] <= self._file.fed:
            group, complete = self._groups.popleft()
            first = group.first
            with pyarrow_errors(f"parquet: row group {group.index}", group.first):
                for batch in self._batches(group):
                    yield from pick(batch, first, self._start, self._choice)
                    first += len(batch)
            if first != group.first + group.rows:
                raise FormatError(
                    f"parquet: damaged: expected {group.rows} rows in row group {group.index}, found "
                    f"{first - group.first}",
                    sample=first,
                )
            self._file.drop(complete)

    def finish(self) -> Iterator[Block]:
        yield from self._decode(b"")  # row groups without a byte
        if self._groups:
            raise FormatError("parquet: truncated within a row group", sample=self._groups[0][0].first)

    def _batches(self, group: RowGroup) -> Iterator[Any]:
        """The batches of a row group: as many rows at a time as fit a block, estimated from those before.

        The sizes in the footer do not count how often a value of a dictionary is used. pyarrow can change
        the number of rows only by beginning again: the rows that were read are then decoded once more.
        """
        size_bytes, dictionary_bytes = check_pages(self._file, group.chunks, group.index)
        fit = min(
            MAX_BLOCK_BYTES * group.rows // max(group.decoded_bytes, size_bytes, 1),
            _MOST_EXPANDED_BYTES // max(dictionary_bytes, 1),
            _MOST_ROWS,
        )
        if not dictionary_bytes and size_bytes <= _SMALL_GROUP_BYTES:
            self._rows = fit
        self._rows = max(1, min(self._rows, fit))
        had = 0
        while had < group.rows:
            rows, at = self._rows, 0
            batches = self._reader.iter_batches(
                rows, row_groups=[group.index], columns=self._choice.read, use_threads=False
            )
            for batch in batches:
                at += len(batch)
                if at <= had:
                    continue
                new = batch.slice(len(batch) - (at - had))
                had = at
                yield new
                # The least of the group: large rows that were read must not be decoded in larger numbers.
                fit = max(1, min(MAX_BLOCK_BYTES * len(batch) // max(batch.nbytes, 1), fit))
                if fit < rows // _STEP or (fit >= 2 * rows and 2 * had < group.rows):
                    self._rows = min(fit, rows * _STEP)
                    break
            else:
                return


_MAGIC = b"PAR1"
_ENCRYPTED_MAGIC = b"PARE"
_TAIL_BYTES = 8  # the length of the footer, and the magic

# Shows what the shard is if it is no Parquet, and is all of a tiny shard.
_HEAD_BYTES = 4 << 10

# Writers up to this version stated lengths of chunks that lack some bytes (PARQUET-816).
_OLD_WRITER = re.compile(r"parquet-mr version 1\.(0|1|2\.[0-8])\b")
_OLD_PADDING_BYTES = 100


def plan_parquet(spec: ShardSpec) -> Planning:
    """Plan what to read of a Parquet shard: whole row groups.

    Raises:
        FormatError: It is no Parquet, truncated, encrypted, or lacks a wanted column.
        ImportError: pyarrow is not installed.
    """
    arrow()
    head = yield Span(0, _HEAD_BYTES)
    _check_head(head.content, head.length)
    footer = yield from read_footer("parquet", _MAGIC, head, spec)
    length = head.length
    wanted = range(spec.start_sample, sys.maxsize if spec.stop_sample is None else spec.stop_sample)
    row_groups, created_by = parse_footer(footer[:-_TAIL_BYTES])
    import pyarrow.parquet

    with pyarrow_errors("parquet: the footer"):
        metadata = pyarrow.parquet.read_metadata(arrow().BufferReader(footer))
        schema = metadata.schema.to_arrow_schema()
    choice = choose(spec.selection, schema)
    kept = None if choice.filters is None else kept_by_statistics(footer, schema, choice)
    padding = _OLD_PADDING_BYTES if _OLD_WRITER.match(created_by) else 0
    spans, groups, rows = [], [], 0
    for group in row_groups:
        rows = group.first + group.rows
        is_wanted = group.first < wanted.stop and rows > wanted.start
        if is_wanted and group.rows and (kept is None or group.index in kept):
            chunks = _chunks_of(group, choice, length - len(footer))
            spans.append([Span(chunk.start, min(chunk.stop + padding, length)) for chunk in chunks])
            groups.append(replace(group, chunks=chunks))
    check_reached(rows, wanted.start, "rows")
    merged, complete = merge(spans)
    decoder = partial(
        ParquetDecoder,
        merged,
        length,
        metadata,
        list(zip(groups, complete, strict=True)),
        choice,
        wanted.start,
    )
    return Layout(tuple(merged), decoder, samples=rows, class_names=choice.features.class_names)


def _check_head(start: bytes, length: int) -> None:
    if start.startswith(_MAGIC) and length > len(_MAGIC) + _TAIL_BYTES:
        return
    if start.startswith(_ENCRYPTED_MAGIC):
        raise FormatError("parquet: the footer is encrypted; encrypted shards are not supported", offset=0)
    if not length:
        raise FormatError("parquet: truncated: the shard is empty", offset=0)
    if start.startswith(_MAGIC):
        raise FormatError("parquet: truncated: the shard ends before its footer", offset=length)
    hint = describe_whole(start, "Parquet")
    raise FormatError(f"parquet: expected the magic {_MAGIC!r}, found {start[:4]!r}{hint}", offset=0)


def _chunks_of(group: RowGroup, choice: Choice, stop: int) -> list[ColumnChunk]:
    """The chunks that pyarrow will read, each between the magic and ``stop``."""
    prefixes = tuple(f"{name}." for name in choice.read)
    chunks = []
    for chunk in group.chunks:
        if chunk.path is not None and not f"{chunk.path}.".startswith(prefixes):
            continue
        column = "a column" if chunk.path is None else f"column {chunk.path!r}"  # if encrypted
        what = f"{column} of row group {group.index}"
        if chunk.is_encrypted:
            raise FormatError(f"parquet: {what} is encrypted; encrypted columns are not supported")
        if chunk.stop <= chunk.start:
            continue
        if chunk.file_path:
            raise FormatError(f"parquet: {what} is in another file, {chunk.file_path!r}")
        if not len(_MAGIC) <= chunk.start <= chunk.stop <= stop:
            raise FormatError(
                f"parquet: damaged: the footer places {what} at bytes {chunk.start} to {chunk.stop} of {stop}"
            )
        chunks.append(chunk)
    return chunks
