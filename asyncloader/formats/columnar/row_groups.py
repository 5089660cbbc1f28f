"""Row groups of Parquet, decoded as their chunks come."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ...blocks import Block
from ...errors import FormatError
from .._push import MAX_BLOCK_BYTES, PushDecoder
from .importing import told
from .pages import check_pages
from .parquet_footer import Chunk
from .picking import pick
from .selection import Choice
from .spans import HeldSpans

__all__ = ["ParquetDecoder", "RowGroup"]

# Rows decoded at a time: enough that what a call costs in each column is lost among them.
_MOST_ROWS = 4096

# Those of a shard that are decoded first, and how many times more, at most, it is the next time: 64 rows of
# 200 KB take 12 MiB, and two steps lead to the most. A group that takes no more than so much as a whole needs
# no such care, if its pages tell.
_FIRST_ROWS = 64
_STEP = 8
_SMALL_GROUP_BYTES = 32 << 20

# Of the rows that are decoded at a time, if each had all that its columns' dictionaries have. These are of
# 1 MiB mostly; but a short page may name a long value again and again.
_MOST_EXPANDED_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A row group to be read.

    Attributes:
        index: Its number in the shard.
        first: Row of the shard that is its first.
        rows: How many it has.
        chunks: Of its wanted columns.
    """

    index: int
    first: int
    rows: int
    chunks: tuple[Chunk, ...]

    @property
    def decoded_bytes(self) -> int:
        """About how many its wanted columns take, as the footer has it."""
        return sum(chunk.decoded_bytes for chunk in self.chunks)


class ParquetDecoder(PushDecoder):
    """Decode row groups as their chunks come.

    Args:
        open_file: Makes the file that the chunks are put into.
        metadata: Of the whole shard, as pyarrow has it.
        groups: Those to be read, in the order in which their chunks come; each with the number of bytes after
            which it is there.
        choice: Which columns and rows are wanted.
        start_sample: Rows of the shard that were had already.
    """

    def __init__(
        self,
        open_file: Callable[[], HeldSpans],
        metadata: Any,
        groups: Sequence[tuple[RowGroup, int]],
        choice: Choice,
        start_sample: int,
    ) -> None:
        super().__init__()
        self._file = open_file()
        self._metadata = metadata
        self._groups = deque(groups)
        self._choice = choice
        self._start = start_sample
        self._reader: Any = None
        self._rows = _FIRST_ROWS

    def _decode(self, chunk: bytes | memoryview) -> Iterator[Block]:
        self._file.feed(chunk)
        while self._groups and self._groups[0][1] <= self._file.fed:
            group, complete = self._groups.popleft()
            yield from self._decode_group(group)
            self._file.drop(complete)

    def _decode_end(self) -> Iterator[Block]:
        yield from self._decode(b"")  # row groups without a byte
        if self._groups:
            raise FormatError("parquet: truncated within a row group", sample=self._groups[0][0].first)

    def _decode_group(self, group: RowGroup) -> Iterator[Block]:
        first = group.first
        with told(f"parquet: row group {group.index}", group.first):
            for batch in self._batches(group):
                yield from pick(batch, first, self._start, self._choice)
                first += len(batch)
        if first != group.first + group.rows:
            raise FormatError(
                f"parquet: damaged: row group {group.index} should have {group.rows} rows, found "
                f"{first - group.first}",
                sample=first,
            )

    def _batches(self, group: RowGroup) -> Iterator[Any]:
        """What pyarrow makes of a row group: as many rows at a time as fit a block, by those before.

        What the footer tells of sizes is before values are taken out of dictionaries. pyarrow has no way to
        change the number of rows but to begin again: those that were had are decoded once more.
        """
        decoded = check_pages(self._file, group.chunks, group.index)
        fit = min(
            MAX_BLOCK_BYTES * group.rows // max(group.decoded_bytes, decoded.size_bytes, 1),
            _MOST_EXPANDED_BYTES // max(decoded.dictionary_bytes, 1),
            _MOST_ROWS,
        )
        if not decoded.dictionary_bytes and decoded.size_bytes <= _SMALL_GROUP_BYTES:
            self._rows = fit
        self._rows = max(1, min(self._rows, fit))
        had = 0
        while had < group.rows:
            rows, at = self._rows, 0
            batches = self._opened().iter_batches(
                rows, row_groups=[group.index], columns=self._choice.read, use_threads=False
            )
            for batch in batches:
                at += len(batch)
                if at <= had:
                    continue
                new = batch.slice(len(batch) - (at - had))
                had = at
                yield new
                # The least of the group's: large rows that were had must not come again in larger numbers.
                fit = max(1, min(MAX_BLOCK_BYTES * len(batch) // max(batch.nbytes, 1), fit))
                if fit < rows // _STEP or (fit >= 2 * rows and 2 * had < group.rows):
                    self._rows = min(fit, rows * _STEP)
                    break
            else:
                return

    def _opened(self) -> Any:
        import pyarrow.parquet

        if self._reader is None:
            # What is read of the file is what was fed: nothing ahead of it, no footer.
            self._reader = pyarrow.parquet.ParquetFile(
                self._file, metadata=self._metadata, pre_buffer=False, page_checksum_verification=True
            )
        return self._reader
