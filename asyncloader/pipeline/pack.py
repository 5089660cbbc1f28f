"""``Pack``: blocks of rows of one length, each of several documents."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..blocks import Block, Column, Columns, Ragged, Trail, offsets_of, origins_of
from ..blocks.memory import stacked, tensor_of
from ..collate.fault import fill_advice, squeeze_advice
from ..collate.pad import PadField, PadOptions
from ..collate.ragged import exact_fill, to_arrays, to_pieces
from ..quantity import as_counts
from ..types import Position, with_entry
from .batching import Batch, Batches, Batching
from .lane import Lane, Opener
from .shuffle import Pool, cut_pools, draw_pool

# Entries of a batch that are not columns, and all entries beside the fields that were packed.
_BOUNDS = ("cu_seqlens", "max_seqlen")
_ADDED = {"segment_ids", "positions", *_BOUNDS}


class PackedCollate:
    """The ``collate_fn`` of ``Pack``: it stacks rows and adds the bounds of their segments."""

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Make a batch of rows.

        Args:
            rows: ``B`` dicts of arrays ``(T, ...)``, with ``segment_ids`` among them.

        Returns:
            Each array as a tensor ``(B, T, ...)``, with ``cu_seqlens`` and ``max_seqlen`` added; see
            ``Pack``.
        """
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


@dataclass(frozen=True)
class Pack(Batching):
    """Batches ``(B, T)`` with several documents in each row, so that hardly any token is padding.

    Pass it as ``DataLoader(batching=...)``. A batch is a dict with these entries. Other fields are left out,
    since a row has many samples.

    - Each packed field: ``(B, T, ...)``, in its dtype.
    - ``segment_ids (B, T) int32``: 1, 2, ... for the documents of a row; 0 for padding.
    - ``positions (B, T) int32``: from 0 in each document; 0 for padding.
    - ``cu_seqlens (S + 1,) int32``: where each of the ``S`` segments of the block, flattened to ``B*T``
      tokens, begins; and ``B*T``. The padding at the end of a row is a segment too.
    - ``max_seqlen``: an int, the length of the longest segment.

    A ``collate_fn`` of your own gets a list of rows: dicts of arrays ``(T, ...)``, without the last two
    entries.

    Example:
        ```python
        import asyncloader as al

        texts = al.from_iterable([{"tokens": [1] * (number % 90 + 1)} for number in range(2000)])
        loader = al.DataLoader(texts, batching=al.Pack("tokens", length=128, batch_size=8, pool=500))
        batch = next(iter(loader))
        print(batch["tokens"].shape, batch["segment_ids"][0].max())  # (8, 128), documents in the first row
        ```

    Args:
        fields: The sequences to pack: a name, several names, or a mapping of names to padding values. Instead
            of a value, a mapping with ``value`` and ``dtype``, as for ``Pad``. The default value is 0.
            Several fields, such as tokens, labels and a loss mask, are packed token by token, so all of them
            must have the same length in a sample.
        length: Tokens of a row, ``T``. 2048 by default, which small models and most examples use.
        batch_size: Rows of a batch, ``B``. 1 by default, since attention of variable length runs over the
            flattened block.
        pool: How many consecutive samples a lane collects in memory, to choose by length which documents
            share a row (best fit). The order of the rows is drawn by (seed, epoch, lane, pool). No document
            shorter than ``T`` is cut, and with some thousand documents well under 1 % is padding. None:
            documents are put end to end in their order and cut every ``T`` tokens; only the last row of a
            lane is padded.
        overlong: What to do with a document longer than ``T``. ``"split"``: continue it in further rows,
            where each part is a segment with positions from 0; the default, since nothing is lost.
            ``"truncate"``: keep its first ``T`` tokens. ``"raise"``: raise an error.

    Raises:
        TypeError: ``fields`` are not names.
        ValueError: An option is out of range, no field is named, or a field has the name of another entry.
            While iterating: a field is missing, is not a sequence of numbers, is too long, or has another
            dtype than before or another length than the first field; the message names the sample.
    """

    fields: str | Sequence[str] | Mapping[str, float | PadOptions] = "tokens"
    length: int = field(default=2048, kw_only=True)
    batch_size: int = field(default=1, kw_only=True)
    pool: int | None = field(default=None, kw_only=True)
    overlong: Literal["split", "truncate", "raise"] = field(default="split", kw_only=True)
    _fields: dict[str, PadField] = field(init=False, repr=False, compare=False)

    kind = "pack"
    collate_fn = PackedCollate()

    def __post_init__(self) -> None:
        object.__setattr__(self, "_fields", _padding_of(self.fields))
        as_counts(self, "length", "batch_size", "pool")
        if self.overlong not in ("split", "truncate", "raise"):
            raise ValueError(
                f"overlong should be 'split', 'truncate' or 'raise', but got overlong={self.overlong!r}"
            )

    def open(self, upstream: Opener, start: Position, lane: Lane) -> Batches:
        open_rows_of = self._in_order if self.pool is None else self._of_pools
        with closing(open_rows_of(upstream, start, lane.for_columns(True))) as rows:
            open_rows: list[PackedRow] = []
            for row in rows:
                open_rows.append(row)
                del row  # which may hold the tokens of all its pool
                if len(open_rows) == self.batch_size:
                    batch = [self._batch(open_rows)]
                    open_rows = []
                    yield batch.pop()
            if open_rows:
                yield self._batch(open_rows)

    def _converted(self) -> Mapping[str, Any]:
        # Fills as text, since a state is JSON, which has no NaN.
        padding = {
            name: {"value": str(how.value), "dtype": None if how.dtype is None else str(how.dtype)}
            for name, how in self._fields.items()
        }
        return {"fields": padding}

    def _in_order(self, upstream: Opener, start: Position, lane: Lane) -> Generator[PackedRow, None, None]:
        """Documents end to end, cut every ``T`` tokens.

        A row's position says where the document that it ends in begins, and how many of its tokens were used.
        """
        row, used = PackedRow(), lane.saved(start).get("used", 0)
        before: tuple[Trail, int] | None = None  # the document before
        with closing(self._documents(upstream, start, lane)) as documents:
            for (values, first, stop), trail, index in documents:
                at = first + used
                if used and at >= stop:
                    raise ValueError(
                        f"the state was saved after {used} tokens of a document that now has {stop - first}; "
                        "was its shard written anew, or a function of .map changed?"
                    )
                used = 0
                if at == stop:  # an empty one has no token, but is counted
                    row.ended.append((trail, index))
                while at < stop:
                    taken = min(stop - at, self.length - row.tokens)
                    row.add(DocumentPart(values, at, at + taken), trail, index)
                    at += taken
                    if at == stop:
                        row.ended.append((trail, index))
                    if row.tokens == self.length:
                        if at == stop:
                            row.after = trail.after(index)
                        else:
                            row.after = with_entry(_after(before, start), lane.stage, {"used": at - first})
                        full, row = [row], PackedRow()
                        yield full.pop()
                before = trail, index
            if row.parts:
                row.after = with_entry(_after(before, start), lane.stage, {"used": 0})
                yield row

    def _documents(
        self, upstream: Opener, start: Position, lane: Lane
    ) -> Generator[tuple[DocumentPart, Trail, int], None, None]:
        """Whole documents, each with its trail and its index there."""
        reader = self._reader()
        with closing(upstream(start, lane)) as blocks:
            for block in blocks:
                for part, values, offsets in reader.read(block):
                    first, stop = self._bounds(offsets)
                    bounds = zip(first.tolist(), stop.tolist(), strict=True)
                    for index, (begins, ends) in enumerate(bounds):
                        yield DocumentPart(values, begins, ends), part.trail, index
                del block

    def _of_pools(self, upstream: Opener, start: Position, lane: Lane) -> Generator[PackedRow, None, None]:
        """Documents put together by their lengths, pool by pool; a batch may have rows of two pools."""
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
        ((block, values, offsets),) = list(reader.read(pool.samples))
        first, stop = self._bounds(offsets)
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
                row.add(DocumentPart(values, begin[part], end[part]), block.trail, of[part])
                if is_last[part]:
                    row.ended.append((block.trail, of[part]))
            rows.append(row)
        if rows:
            # Those without a token are counted all the same.
            rows[0].ended += [(block.trail, index) for index in np.flatnonzero(lengths == 0).tolist()]
        return rows

    def _batch(self, rows: list[PackedRow]) -> Batch:
        columns = lay_rows(rows, self._fields, self.length)
        first = [row.first for row in rows]
        trail = Trail([row.after for row in rows].__getitem__, lambda: origins_of(first))
        ended = [sample for row in rows for sample in row.ended]
        return Batch(Columns(columns, trail), sum(row.tokens for row in rows), rows[-1].after, ended)

    def _reader(self) -> DocumentReader:
        return DocumentReader(self._fields, self.length if self.overlong == "raise" else None)

    def _bounds(self, offsets: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where each document begins, and where it stops or is cut."""
        first, stop = offsets[:-1], offsets[1:]
        return first, np.minimum(stop, first + self.length) if self.overlong == "truncate" else stop


def _padding_of(fields: Any) -> dict[str, PadField]:
    """What was asked for of each field."""
    listed = isinstance(fields, Iterable) and not isinstance(fields, str)
    names: list[Any] = list(fields) if listed else [fields]
    for name in names:
        if not isinstance(name, str):
            raise TypeError(
                "fields should be a name, a list of names, or a mapping of names to what to fill with, but "
                f"got {type(name).__name__}: {name!r}"
            )
    if not names:
        raise ValueError("fields should name at least one field")
    given: Mapping[str, Any] = fields if isinstance(fields, Mapping) else dict.fromkeys(names, 0)
    if clash := sorted(given.keys() & _ADDED):
        raise ValueError(f"a packed block has {clash} of its own; rename the fields that are packed")
    padding = {name: PadField().with_options(name, how) for name, how in given.items()}
    for name, how in padding.items():
        if how != PadField(how.value, dtype=how.dtype):
            raise ValueError(
                "of a field Pack takes value and dtype, since its rows are of one length, but got "
                f"{name!r}: {how}"
            )
    return padding


# --- rows: parts of documents, and which of them share a row ---


class DocumentPart(NamedTuple):
    """A run of one document's tokens.

    Attributes:
        values: Of each field, in which it is the run from ``start`` to ``stop``.
        start: Its first token.
        stop: Behind its last.
    """

    values: tuple[NDArray[Any], ...]
    start: int
    stop: int


@dataclass(slots=True)
class PackedRow:
    """One row of a block.

    Attributes:
        parts: Of it, in order.
        tokens: How many it has.
        ended: The documents that end in it, each by its trail and its index there.
        after: Where the lane goes on after it.
        first: Its first document, likewise.
    """

    parts: list[DocumentPart] = field(default_factory=list)
    tokens: int = 0
    ended: list[tuple[Trail, int]] = field(default_factory=list)
    after: Position = field(default_factory=list)
    first: tuple[Trail, int] = field(init=False)

    def add(self, part: DocumentPart, trail: Trail, index: int) -> None:
        """Append a part of the document that is sample ``index`` of a block."""
        if not self.parts:
            self.first = trail, index
        self.parts.append(part)
        self.tokens += part.stop - part.start

    def keep(self) -> None:
        """Copy the tokens, so that those of the other documents can go."""
        self.parts = [
            DocumentPart(tuple(inside[start:stop].copy() for inside in values), 0, stop - start)
            for values, start, stop in self.parts
        ]


def _after(document: tuple[Trail, int] | None, start: Position) -> Position:
    return start if document is None else document[0].after(document[1])


def split_lengths(lengths: NDArray[np.int64], most: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Documents cut into parts of at most ``most`` tokens, all but the last of a document that long.

    Args:
        lengths: ``(n,)``, of the documents.
        most: Tokens of a part.

    Returns:
        For each part which document it is of, and how many tokens of it come before: ``(p,) int64`` both.
        An empty document has none.
    """
    counts = -(-lengths // most)
    document = np.repeat(np.arange(len(lengths)), counts)
    nth = np.arange(len(document)) - np.repeat(np.cumsum(counts) - counts, counts)
    return document, nth * most


def best_fit(lengths: NDArray[np.int64], capacity: int) -> list[list[int]]:
    """Parts dealt to rows, each into the fullest row that it fits, the longest parts first.

    Best fit decreasing (Johnson, "Near-optimal bin packing algorithms", 1973). Rows are found by the room
    that they have left: a set of bits says which rooms there are, whose lowest bit from the wanted one on is
    the best fit. So a part costs about a microsecond, however many rows there are.

    Args:
        lengths: ``(p,)``, of the parts, from 1 to ``capacity``.
        capacity: Tokens of a row.

    Returns:
        For each row the indices of its parts.
    """
    rows: list[list[int]] = []
    with_room: list[list[int]] = [[] for _ in range(capacity + 1)]
    rooms = 0
    for part in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[part])
        fitting = rooms >> length
        if fitting:
            room = length + (fitting & -fitting).bit_length() - 1
            row = with_room[room].pop()
            if not with_room[room]:
                rooms ^= 1 << room
            rows[row].append(part)
        else:
            room, row = capacity, len(rows)
            rows.append([part])
        if left := room - length:
            with_room[left].append(row)
            rooms |= 1 << left
    return rows


def lay_rows(rows: Sequence[PackedRow], fields: Mapping[str, PadField], width: int) -> dict[str, Column]:
    """Rows as arrays.

    Args:
        rows: ``B`` of them, each of at most ``width`` tokens.
        fields: What each is filled up with; in the order of the parts' values.
        width: ``T``.

    Returns:
        Each field ``(B, T, ...)``; ``segment_ids (B, T) int32``, which count the parts of a row from 1, 0
        where it is filled up; ``positions (B, T) int32``, from 0 in each part and where it is filled up.
    """
    columns: dict[str, Column] = {}
    total = len(rows) * width
    parts = [row.parts for row in rows]
    like = parts[0][0].values
    for at, (name, how) in enumerate(fields.items()):
        laid = np.full((total, *like[at].shape[1:]), how.value, like[at].dtype)
        for number, inside in enumerate(parts):
            place = number * width
            for values, start, stop in inside:
                end = place + stop - start
                laid[place:end] = values[at][start:stop]
                place = end
        columns[name] = laid.reshape(len(rows), width, *laid.shape[1:])
    # Each row's parts and then its padding, which may be empty: runs that make up all of the block.
    ids = [chain(range(1, len(inside) + 1), (0,)) for inside in parts]
    run_ids = np.fromiter(chain.from_iterable(ids), np.int32)
    lengths = [
        chain((stop - start for _, start, stop in inside), (width - row.tokens,))
        for row, inside in zip(rows, parts, strict=True)
    ]
    run_lengths = np.fromiter(chain.from_iterable(lengths), np.int64)
    segment_ids = np.repeat(run_ids, run_lengths)
    begins = np.repeat((np.cumsum(run_lengths) - run_lengths).astype(np.int32), run_lengths)
    positions = np.arange(total, dtype=np.int32) - begins
    positions[segment_ids == 0] = 0
    columns["segment_ids"] = segment_ids.reshape(len(rows), width)
    columns["positions"] = positions.reshape(len(rows), width)
    return columns


# --- documents: sequences of numbers in one field, or in several of the same lengths ---


Documents: TypeAlias = tuple[Block, tuple[NDArray[Any], ...], NDArray[np.int64]]
"""The documents of a block.

For each field the values of all of them, end to end, ``(m, ...)``, and the offsets, ``(n + 1,) int64``:
document ``i`` is ``values[offsets[i]:offsets[i + 1]]`` in each.
"""


@dataclass(slots=True)
class DocumentReader:
    """Reads documents out of blocks, and sees to it that those of all blocks are alike.

    Args:
        fields: Which they are: what each is filled up with, and its dtype, None for that of the data.
        most: How many tokens a document may have; None for any number.
    """

    fields: Mapping[str, PadField]
    most: int | None = None
    _seen: dict[str, NDArray[Any]] = field(default_factory=dict)

    def read(self, block: Block) -> Iterator[Documents]:
        """The documents of a block: all at once, or one by one up to the first that cannot be packed.

        Raises:
            ValueError: A field is missing, no sequence of numbers, of another length than the first field,
                or of another dtype or trailing dimensions than before; or a document is too long. Says of
                which sample.
        """
        try:
            whole = self._read(block)
        except ValueError:
            # What comes before the bad one is good, and may complete a batch.
            for index in range(len(block)):
                yield self._read(block.part(index, index + 1))
            raise
        yield whole

    def _read(self, block: Block) -> Documents:

        def where(index: int) -> str:
            return f"field {name!r} of {block.trail.place(index)}"

        values: list[NDArray[Any]] = []
        first: NDArray[np.int64] | None = None
        for name, how in self.fields.items():
            inside, offsets = _end_to_end(_column(block, name), how.dtype, where)
            if first is None:
                first = offsets
            elif (unlike := np.flatnonzero(np.diff(first) != np.diff(offsets))).size:
                at, other = int(unlike[0]), next(iter(self.fields))
                raise ValueError(
                    f"{where(at)}: expected the length {np.diff(first)[at]} of field {other!r}, "
                    f"found {np.diff(offsets)[at]}; fields that are packed together go along token by token"
                )
            values.append(self._like_before(name, inside, lambda: where(0)))
        assert first is not None
        if self.most is not None and (above := np.flatnonzero(np.diff(first) > self.most)).size:
            at = int(above[0])
            raise ValueError(
                f"{where(at)}: expected at most {self.most} tokens, found {np.diff(first)[at]}; filter such "
                "documents out, or cut them with overlong='split' or 'truncate'"
            )
        return block, tuple(values), first

    def _like_before(self, name: str, values: NDArray[Any], where: Callable[[], str]) -> NDArray[Any]:
        """Refuse another dtype than that of the documents before; none at all has no dtype."""
        if not len(values):
            return values
        if name not in self._seen:
            value = self.fields[name].value
            try:
                exact_fill(value, values.dtype)
            except ValueError as error:
                raise ValueError(f"{where()}: {error}; {fill_advice(value, values.dtype)}") from None
            self._seen[name] = np.empty((0, *values.shape[1:]), values.dtype)
        seen = self._seen[name]
        if seen.shape[1:] != values.shape[1:]:
            raise ValueError(
                f"{where()}: expected the shape {_shape_of(seen)} as in the documents before, found "
                f"{values.shape}; only the first dimension may differ{squeeze_advice(values.shape)}"
            )
        if seen.dtype != values.dtype:
            raise ValueError(
                f"{where()}: expected tokens of dtype {seen.dtype} as in the documents before, found "
                f'{values.dtype}; give Pack({{"{name}": {{"dtype": "{seen.dtype}"}}}}), which converts '
                "all of them"
            )
        return values


def _end_to_end(
    column: Column, dtype: Any, where: Callable[[int], str]
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """A column of sequences of numbers as one array, of the dtype if given, and their offsets in it."""
    if isinstance(column, np.ndarray) and column.ndim > 1:
        column = Ragged.of(column)
    if isinstance(column, Ragged) and isinstance(column.flat, np.ndarray):
        (values,) = to_pieces([column.flat], dtype, lambda _: where(0))
        return values, column.offsets - column.offsets[0]
    arrays = to_arrays(list(column), where)
    # Without the empty ones, which have no token of any dtype: in a block of their own nothing is held
    # against them either, and what is packed must not depend on how the stream was cut into blocks.
    full = [index for index, array in enumerate(arrays) if len(array)]
    pieces = to_pieces([arrays[index] for index in full], dtype, lambda nth: where(full[nth])) if full else []
    return np.concatenate(pieces or arrays[:1]), offsets_of([len(array) for array in arrays])


def _shape_of(document: NDArray[Any]) -> str:
    """``(T, 80)``: its trailing dimensions behind the one that differs."""
    return f"({', '.join(['T', *map(str, document.shape[1:])])}{',' if document.ndim == 1 else ''})"


def _column(block: Block, name: str) -> Column:
    try:
        return block.column(name)
    except KeyError as error:
        raise ValueError(error.args[0]) from None
    except TypeError:
        kinds = " and ".join(sorted({type(sample).__name__ for sample in block.rows()}))
        raise ValueError(
            f"expected samples that are mappings with a field {name!r}, found {kinds} from "
            f"{block.trail.place(0)} on"
        ) from None
