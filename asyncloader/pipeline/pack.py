"""``Pack``: blocks of rows of one length, each of several documents."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..blocks import Column, Columns, JoinedTrail
from ..blocks.memory import stacked, tensor_of
from ..collate.pad import PadField, PadOptions
from ..plan.lanes import UnknownCount
from ..quantity import as_counts
from ..types import Position
from .batching import Batch, Batches
from .lane import START, Lane, Opener
from .packing import (
    PACKED_FIELDS,
    Cutter,
    DocumentPart,
    DocumentReader,
    Documents,
    PackedRow,
    best_fit,
    lay_rows,
    split_lengths,
)
from .shuffle import Pool, cut_pools, draw_pool

# Makes a batch of packed rows: tensors, and where each segment begins for variable-length attention.

# Entries of a batch that are not columns.
_BOUNDS = ("cu_seqlens", "max_seqlen")


class PackedCollate:
    """The ``collate_fn`` of ``Pack``.

    Called with ``B`` rows, dicts of arrays ``(T, ...)``, it returns a dict with each of them as a tensor
    ``(B, T, ...)``, and ``cu_seqlens (S + 1,) int32`` and the int ``max_seqlen``: segment ``i`` of the block
    flattened to ``B*T`` tokens is ``cu_seqlens[i]:cu_seqlens[i + 1]``. The padding with which a row ends is a
    segment of its own.
    """

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return self.from_columns({name: stacked([row[name] for row in rows]) for name in rows[0]})

    def from_columns(self, fields: Mapping[str, Column]) -> dict[str, Any]:
        """The same batch from columns ``(B, T, ...)``."""
        arrays = {name: np.asarray(column) for name, column in fields.items()}
        bounds = _segment_bounds(arrays["segment_ids"])
        batch: dict[str, Any] = {name: tensor_of(array) for name, array in arrays.items()}
        batch["cu_seqlens"] = tensor_of(bounds)
        batch["max_seqlen"] = int(np.diff(bounds).max())
        return batch

    @property
    def does_without_torch(self) -> bool:
        """See ``collate_block``; a subclass is the user's."""
        return type(self) is PackedCollate

    def empty(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Such a batch of no rows: no segment, and so the one bound 0."""
        tensors = {name: value[:0].clone() for name, value in batch.items() if name not in _BOUNDS}
        return {**tensors, "cu_seqlens": batch["cu_seqlens"].new_zeros(1), "max_seqlen": 0}


def _segment_bounds(segment_ids: NDArray[np.int32]) -> NDArray[np.int32]:
    """Where segments begin in the flattened block, and its end: ``(S + 1,) int32``."""
    begins = np.ones(segment_ids.shape, bool)
    begins[:, 1:] = segment_ids[:, 1:] != segment_ids[:, :-1]
    return np.append(np.flatnonzero(begins), segment_ids.size).astype(np.int32)


RowStream: TypeAlias = Generator[PackedRow, None, None]

# What collation adds to a batch, which so is no name for a field.
_TAKEN = (*PACKED_FIELDS, "cu_seqlens", "max_seqlen")


@dataclass(frozen=True)
class Pack:
    """Blocks ``(B, T)`` of several documents a row, so that hardly any token is padding.

    Give it to ``DataLoader(batching=...)``. A batch has each packed field ``(B, T, ...)``;
    ``segment_ids (B, T) int32``, which count the documents of a row from 1, 0 for padding;
    ``positions (B, T) int32``, from 0 in each document; ``cu_seqlens (S + 1,) int32``, where each of the
    ``S`` segments of the block flattened to ``B*T`` begins, and its end, with the padding at a row's end as a
    segment of its own; and ``max_seqlen``, an int. Other fields of samples are left out: a row is of many.

    A ``collate_fn`` of your own gets a list of rows, dicts of arrays ``(T, ...)`` without the last two.

    Args:
        fields: The sequences to pack: a name, several names, or a mapping of names to what padding is filled
            with: a number, or a mapping with ``value`` and ``dtype``, as of ``Pad``; 0 where nothing is said.
            Several fields go along token by token, such as tokens, labels and a loss mask.
        length: ``T``. 2048, which small models and most examples use.
        batch_size: Rows of a batch, ``B``. 1, for variable-length attention runs over the flattened block.
        pool: Put documents together by their lengths: so many consecutive samples of a lane are laid into
            rows by best fit, which come in an order drawn by (seed, epoch, lane, pool). No document shorter
            than ``T`` is cut, and some thousand documents waste well under one per cent. A lane holds one
            pool in memory. None: documents are put end to end in the order in which they come and cut every
            ``T`` tokens; then only the lane's last row is filled up.
        overlong: What to do with a document longer than ``T``: ``"split"`` it over several rows, in each
            of which its part is a segment with positions from 0; ``"truncate"`` it to its first ``T``; or
            ``"raise"``. ``"split"``, so that nothing is lost.

    Raises:
        TypeError: ``fields`` are no names.
        ValueError: An option out of range, no field, or one with a name that a block has anyway. While it
            runs: a field that is missing, no sequence of numbers, of another dtype than before or of another
            length than the first field, or too long; says of which sample.
    """

    fields: str | Sequence[str] | Mapping[str, float | PadOptions] = "tokens"
    length: int = field(default=2048, kw_only=True)
    batch_size: int = field(default=1, kw_only=True)
    pool: int | None = field(default=None, kw_only=True)
    overlong: Literal["split", "truncate", "raise"] = field(default="split", kw_only=True)
    _fields: dict[str, PadField] = field(init=False, repr=False, compare=False)

    samples_per_batch = None
    collate_fn = PackedCollate()

    def __post_init__(self) -> None:
        object.__setattr__(self, "_fields", _padding_of(self.fields))
        as_counts(self, "length", "batch_size", "pool")
        if self.overlong not in ("split", "truncate", "raise"):
            raise ValueError(
                f"overlong should be 'split', 'truncate' or 'raise', but got overlong={self.overlong!r}"
            )

    def open(self, upstream: Opener, start: Position, lane: Lane) -> Batches:
        lane = lane.for_columns(True)
        rows = (
            self._in_order(upstream, start, lane)
            if self.pool is None
            else self._of_pools(upstream, start, lane)
        )
        names, fills = list(self._fields), [how.value for how in self._fields.values()]
        with closing(rows):
            open_rows: list[PackedRow] = []
            for row in rows:
                open_rows.append(row)
                del row  # which may hold the tokens of all its pool
                if len(open_rows) == self.batch_size:
                    batch = [_batch(open_rows, names, fills, self.length)]
                    open_rows = []
                    yield batch.pop()
            if open_rows:
                yield _batch(open_rows, names, fills, self.length)

    def count_batches(self, count_samples: object) -> int:
        raise UnknownCount("how many blocks Pack makes depends on how long the documents are")

    def describe(self) -> Mapping[str, Any]:
        return {
            "batching": {
                "kind": "pack",
                # Text, for a state is JSON, which has no NaN.
                "fields": {
                    name: {"value": str(how.value), "dtype": None if how.dtype is None else str(how.dtype)}
                    for name, how in self._fields.items()
                },
                "length": self.length,
                "batch_size": self.batch_size,
                "pool": self.pool,
                "overlong": self.overlong,
            }
        }

    def _in_order(self, upstream: Opener, start: Position, lane: Lane) -> RowStream:
        """Documents end to end, cut every ``T`` tokens."""
        begins = start.get("from", START)
        reader, cutter = self._reader(), Cutter(self.length, begins, start.get("used", 0))
        with closing(upstream(begins, lane)) as blocks:
            for block in blocks:
                for part, documents in reader.read(block):
                    first, stop = self._bounds(documents)
                    bounds = zip(first.tolist(), stop.tolist(), strict=True)
                    yield from cutter.feed(documents.values, list(bounds), part.trail)
                del block
        yield from cutter.finish()

    def _of_pools(self, upstream: Opener, start: Position, lane: Lane) -> RowStream:
        """Documents put together by their lengths, pool by pool; batches go on from pool to pool."""
        assert self.pool is not None
        reader, waiting = self._reader(), 0
        with closing(cut_pools(upstream, start, lane, self.pool)) as pools:
            for pool in pools:
                rows = self._fit(pool, reader)
                order = draw_pool(pool, len(rows), lane)[pool.emitted :]
                waiting = (waiting + len(order)) % self.batch_size
                for nth, drawn in enumerate(order):
                    row = rows[drawn]
                    row.after = pool.span.after(pool.emitted + nth + 1, len(rows))
                    if nth >= len(order) - waiting:
                        row.keep()  # while the next pool fills
                    yield row
                    del row
                del pool, rows

    def _fit(self, pool: Pool, reader: DocumentReader) -> list[PackedRow]:
        """The rows of a pool."""
        # A pool with a bad document is read one by one up to that, so this is the whole of a good one.
        ((block, documents),) = list(reader.read(pool.samples))
        first, stop = self._bounds(documents)
        lengths = stop - first
        document, before = split_lengths(lengths, self.length)
        part_lengths = np.minimum(lengths[document] - before, self.length)
        starts = first[document] + before
        begin, end, of = starts.tolist(), (starts + part_lengths).tolist(), document.tolist()
        is_last = (before + part_lengths == lengths[document]).tolist()
        rows = []
        for inside in best_fit(part_lengths, self.length):
            row = PackedRow()
            for part in inside:
                row.add(DocumentPart(documents.values, begin[part], end[part]), block.trail, of[part])
                if is_last[part]:
                    row.ended.append((block.trail, of[part]))
            rows.append(row)
        if rows:
            # Those without a token are counted all the same.
            rows[0].ended += [(block.trail, index) for index in np.flatnonzero(lengths == 0).tolist()]
        return rows

    def _reader(self) -> DocumentReader:
        return DocumentReader(self._fields, self.length if self.overlong == "raise" else None)

    def _bounds(self, documents: Documents) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where each document begins, and where it stops or is cut."""
        first, stop = documents.offsets[:-1], documents.offsets[1:]
        return first, np.minimum(stop, first + self.length) if self.overlong == "truncate" else stop


def _batch(rows: list[PackedRow], names: list[str], fills: list[float], width: int) -> Batch:
    columns = lay_rows(rows, names, fills, width)
    trail = JoinedTrail([row.place for row in rows])
    ended = [sample for row in rows for sample in row.ended]
    return Batch(Columns(columns, trail), rows[-1].after, len(ended), sum(row.tokens for row in rows), ended)


def _padding_of(fields: object) -> dict[str, PadField]:
    """What was asked for of each field."""
    if isinstance(fields, str):
        fields = [fields]
    given = dict(fields) if isinstance(fields, Mapping) else dict.fromkeys(_names(fields), 0)
    if not given:
        raise ValueError("fields should name at least one field")
    _names(given)
    if clash := sorted(given.keys() & set(_TAKEN)):
        raise ValueError(f"a packed block has {clash} of its own; rename the fields that are packed")
    padding = {name: PadField().with_options(name, how) for name, how in given.items()}
    for name, how in padding.items():
        if how != PadField(how.value, dtype=how.dtype):
            raise ValueError(
                "of a field Pack takes value and dtype, since its rows are of one length, but got "
                f"{name!r}: {how}"
            )
    return padding


def _names(fields: Any) -> list[str]:
    names = list(fields) if isinstance(fields, Iterable) else [fields]
    for name in names:
        if not isinstance(name, str):
            raise TypeError(
                "fields should be a name, a list of names, or a mapping of names to what to fill with, but "
                f"got {type(name).__name__}: {name!r}"
            )
    return names
