"""Blocks: runs of consecutive samples, as rows or as columns, with a trail of their positions. Pure.

What is cut, joined or gathered from blocks does not depend on how a stream was cut into them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .columns import Column, Ragged, column_of, join_columns, read_only, settled, take_of
from .trails import Trail, join_trails


@dataclass(slots=True)
class Rows:
    """A run of consecutive samples of any kind, mostly mappings, as an object each.

    The content of a block is never changed, since parts share it.

    Args:
        samples: Each of them.
        trail: Where they came from, and where their stream continues; set anew before a block is passed on.
    """

    samples: list[Any]
    trail: Trail

    def __len__(self) -> int:
        return len(self.samples)

    def part(self, start: int, stop: int) -> Rows:
        """The samples from ``start`` up to ``stop``, with their trail.

        Args:
            start: 0 or more.
            stop: ``start`` or more; beyond the last sample it is the last one.
        """
        return Rows(self.samples[start:stop], self.trail.part(start, stop))

    def take(self, indices: Sequence[int] | NDArray[np.int64]) -> Rows:
        """The samples of these indices, in this order, with their trail.

        Args:
            indices: Each from 0 up to the length; one may come more than once.
        """
        each = indices.tolist() if isinstance(indices, np.ndarray) else indices
        return Rows([self.samples[index] for index in each], self.trail.take(indices))

    def follow(self, trail: Trail) -> Rows:
        """The same samples on another trail."""
        return Rows(self.samples, trail)

    def rows(self) -> list[Any]:
        """The samples, an object each. It may be the block's own list: only read it."""
        return self.samples

    def column(self, name: str) -> Column:
        """One field of all samples.

        Raises:
            KeyError: A sample lacks the field; the message names the fields that it has.
        """
        try:
            return [sample[name] for sample in self.samples]
        except KeyError:
            for index, sample in enumerate(self.samples):
                if name not in sample:
                    raise _lacks_field(name, sample, self.trail, index) from None
            raise


@dataclass(slots=True)
class Columns:
    """A run of consecutive samples with the same fields, as columns; with the methods of ``Rows``.

    Args:
        fields: A column each, all of one length; at least one.
        trail: The trail of the samples.
    """

    fields: Mapping[str, Column]
    trail: Trail

    def __len__(self) -> int:
        return len(next(iter(self.fields.values())))

    def part(self, start: int, stop: int) -> Columns:
        """See ``Rows``; over the same memory."""
        fields = {name: column[start:stop] for name, column in self.fields.items()}
        return Columns(fields, self.trail.part(start, stop))

    def take(self, indices: Sequence[int] | NDArray[np.int64]) -> Columns:
        """See ``Rows``; copies the samples."""
        picked = np.asarray(indices, np.int64)
        fields = {name: take_of(column, picked) for name, column in self.fields.items()}
        return Columns(fields, self.trail.take(picked))

    def follow(self, trail: Trail) -> Columns:
        return Columns(self.fields, trail)

    def rows(self) -> list[Any]:
        """New dicts: numbers as NumPy scalars, which keep their dtype; sequences as views.

        A sequence of sequences is a ``Ragged``, a sequence of objects a list.
        """
        names = tuple(self.fields)
        return [dict(zip(names, row, strict=True)) for row in zip(*self.fields.values(), strict=True)]

    def column(self, name: str) -> Column:
        if name not in self.fields:
            raise _lacks_field(name, self.fields, self.trail, 0)
        return self.fields[name]


Block: TypeAlias = Rows | Columns
"""A run of consecutive samples, and the trail of their positions."""


def _lacks_field(name: str, found: Iterable[object], trail: Trail, index: int) -> KeyError:
    """The error for sample ``index`` of a trail, whose fields are ``found``."""
    return KeyError(f"expected the field {name!r} in {trail.place(index)}, found only {list(found)}")


# --- several blocks ---


def join(blocks: Sequence[Block]) -> Block:
    """One block of the samples of several: columns if all of them have like columns, otherwise rows.

    Columns are alike if they have the same kind, dtype and trailing dimensions.

    Args:
        blocks: At least one.
    """
    if len(blocks) == 1:
        return blocks[0]
    trail = join_trails([(block.trail, len(block)) for block in blocks])
    columns = [block for block in blocks if isinstance(block, Columns)]
    if len(columns) == len(blocks) and (fields := _join_fields(columns)) is not None:
        return Columns(fields, trail)
    samples: list[Any] = []
    for block in blocks:
        samples += block.rows()
    return Rows(samples, trail)


class Gather:
    """Cuts a stream of blocks into groups of ``size`` samples.

    Args:
        size: Samples of a group.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._open: list[Block] = []  # the parts of the open group
        self._open_samples = 0

    @property
    def lacking(self) -> int:
        """How many samples the open group still lacks."""
        return self._size - self._open_samples

    def feed(self, block: Block) -> Iterator[Block]:
        """The groups that ``block`` completes.

        The block is added at once; groups are cut as the returned iterator advances. So stopping half-way
        through it does not lose samples.
        """
        if not len(block):
            return iter(())
        head, first_end = self._open, self.lacking
        if len(block) < first_end:
            head.append(block)
            self._open_samples += len(block)
            return iter(())
        ends = range(first_end, len(block) + 1, self._size)
        rest = len(block) - ends[-1]
        self._open = [block.part(ends[-1], len(block))] if rest else []
        self._open_samples = rest
        return _cut(head, block, ends)

    def finish(self) -> Block | None:
        """The last, short group, if there is one; empties the object."""
        parts, self._open, self._open_samples = self._open, [], 0
        return join(parts) if parts else None


def _cut(head: list[Block], block: Block, ends: range) -> Iterator[Block]:
    """The groups of ``block`` that stop at ``ends``; the first one starts with ``head``."""
    start = 0
    for end in ends:
        group = [join([*head, block.part(start, end)])]
        head.clear()  # nothing of a group is held while the caller uses it
        start = end
        yield group.pop()


def _join_fields(blocks: list[Columns]) -> dict[str, Column] | None:
    """Column by column; None if they are not alike."""
    names = blocks[0].fields.keys()
    if any(block.fields.keys() != names for block in blocks):
        return None
    joined: dict[str, Column] = {}
    for name in names:
        column = join_columns([block.fields[name] for block in blocks])
        if column is None:
            return None
        joined[name] = column
    return joined


# --- columns for functions ---


def columns_of(block: Block) -> dict[str, Column]:
    """The columns of a block for a function; rows are converted by ``column_of``.

    The dict is the function's own. The memory of columns is not: other blocks may use it. So arrays are
    read-only, also those made of rows; otherwise a function that writes would fail with some formats only.

    Raises:
        TypeError: A sample is no mapping.
        ValueError: The samples have no fields, or different fields.
    """
    if isinstance(block, Columns):
        return {name: read_only(settled(column)) for name, column in block.fields.items()}
    rows = block.rows()
    for index, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise TypeError(
                f"expected samples that are mappings, found {type(row).__qualname__} at "
                f"{block.trail.place(index)}; make them dicts with .map"
            )
        if row.keys() != rows[0].keys() or not row:
            raise ValueError(
                f"expected the same fields in all samples, found {list(rows[0])} in {block.trail.place(0)} "
                f"and {list(row)} in {block.trail.place(index)}; make them alike with .select or .map"
            )
    return {name: read_only(column_of([row[name] for row in rows])) for name in rows[0]}


# How many bytes a batch holds, for budgets and statistics.

# The size of a number: that in an array of its kind, int64 or float64.
_NUMBER_BYTES = 8

# Each sample of a batch is counted, but only a few elements of a list within a sample, such as token ids:
# counting each would take longer than parsing them.
_MOST_SAMPLES = 4096
_MOST_ELEMENTS = 16


def bytes_of(batch: Any) -> int:
    """Bytes of the tensors, arrays, ``Ragged``, strings, byte strings and numbers in nested containers.

    A number counts 8, as in an array; other objects count 0, and so do the containers themselves. In a
    container within the batch with more than 16 elements, at most 16 from all over it are counted, and stand
    for the others.
    """
    return _size(batch, _MOST_SAMPLES)


def _size(value: Any, most: int = _MOST_ELEMENTS) -> int:
    if type(value) is not list and type(value) is not tuple:
        if isinstance(value, int | float):
            return _NUMBER_BYTES
        if isinstance(value, bytes | bytearray | str):
            return len(value)
        try:
            size = getattr(value, "nbytes", None)
        except RuntimeError:  # a sparse tensor of torch has none, but its parts do
            is_sparse = getattr(value, "is_sparse", False)
            return value._indices().nbytes + value._values().nbytes if is_sparse else 0
        if isinstance(size, int):
            return size
        if isinstance(value, Ragged):
            return _size(value.flat, most) + value.offsets.nbytes
        if isinstance(value, Mapping):
            value = list(value.values()) if len(value) > most else value.values()
        elif not isinstance(value, list | tuple):
            return 0
    count = len(value)
    if count <= most:
        return _sum(value)
    seen = value[:: -(-count // most)]
    return _sum(seen) * count // len(seen)


def _sum(values: Iterable[Any]) -> int:
    # The types of parsed JSON come first, by identity: there are many such values, and general type checks
    # take longer than parsing them.
    total = 0
    for value in values:
        kind = type(value)
        if kind is int or kind is float:
            total += _NUMBER_BYTES
        elif kind is str or kind is bytes:
            total += len(value)
        elif kind is dict and len(value) <= _MOST_ELEMENTS:
            total += _sum(value.values())
        else:
            total += _size(value)
    return total
