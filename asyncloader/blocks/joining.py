"""Joins blocks, and cuts a stream of them into groups of equal size. Pure.

Groups cut from one stream are the same however the stream was cut into blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np

from .block import Block, Column
from .columns import Columns
from .nulls import WithNulls
from .parsed import Objects
from .ragged import Ragged, offsets_of
from .regrouped import JoinedTrail
from .rows import Rows

__all__ = ["Gather", "join", "join_columns"]


def join(blocks: Sequence[Block]) -> Block:
    """One block of the samples of several: columns, if all of them are of like ones; otherwise rows.

    Columns are alike that have the same kind, dtype and trailing dimensions.

    Raises:
        ValueError: No block.
    """
    if not blocks:
        raise ValueError("there is nothing to join")
    if len(blocks) == 1:
        return blocks[0]
    trail = JoinedTrail([(block.trail, range(len(block))) for block in blocks])
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
        self._open: list[Block] = []  # of the group that is not whole
        self._open_samples = 0

    @property
    def lacking(self) -> int:
        """How many samples the open group still lacks."""
        return self._size - self._open_samples

    def feed(self, block: Block) -> Iterator[Block]:
        """The groups that ``block`` completes.

        The block is taken in at once; groups are cut as the returned iterator is advanced. So whoever
        stops half-way through it has not upset the stream.
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
        """The last group, which is short, if there is one; leaves nothing behind."""
        parts, self._open, self._open_samples = self._open, [], 0
        return join(parts) if parts else None


def _cut(head: list[Block], block: Block, ends: range) -> Iterator[Block]:
    """The groups of ``block`` that stop at ``ends``; the first one starts with ``head``."""
    start = 0
    for end in ends:
        group = [join([*head, block.part(start, end)])]
        head.clear()  # nothing of a group is held while it is made use of
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


def join_columns(columns: Sequence[Column]) -> Column | None:
    """One column of several; None if they are not alike."""
    nulls = next((column for column in columns if isinstance(column, WithNulls)), None)
    if nulls is not None:
        return nulls.join(columns)
    arrays = [column for column in columns if isinstance(column, np.ndarray)]
    if len(arrays) == len(columns):
        alike = len({(array.dtype, array.shape[1:]) for array in arrays}) == 1
        return np.concatenate(arrays) if alike else None
    if len(set(map(type, columns))) > 1:
        return None
    ragged = [column for column in columns if isinstance(column, Ragged)]
    if len(ragged) == len(columns):
        values = join_columns([column.flat for column in ragged])
        if values is None:
            return None
        return ragged[0].over(values, offsets_of(np.concatenate([column.lengths for column in ragged])))
    entries = chain.from_iterable(columns)
    return Objects(entries) if isinstance(columns[0], Objects) else list(entries)
