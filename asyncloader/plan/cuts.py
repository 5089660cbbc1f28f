"""Cuts: which bytes of a shard hold the samples of a piece, as far as an index tells."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from ..types import Position
from .pieces import Piece

__all__ = ["Cut", "cut_piece"]


@dataclass(frozen=True, slots=True)
class Cut:
    """What is read of a shard for a piece, from a position in it on.

    Attributes:
        first: Index in the shard of the first sample that is wanted.
        stop: Index behind the last one; None for all up to the shard's end.
        sample: Index of the first one that is decoded; those before ``first`` are dropped.
        byte: Its offset, 0 where only the shard's beginning is known.
        stop_byte: Offset behind the last byte that is needed; None for all up to the shard's end.
    """

    first: int = 0
    stop: int | None = None
    sample: int = 0
    byte: int = 0
    stop_byte: int | None = None

    @property
    def start(self) -> Position:
        """The position of the first sample that is wanted, from the byte on that is read."""
        return {"sample": self.first, "byte": self.byte}


def cut_piece(
    piece: Piece, start: Position, offsets: Sequence[tuple[int, int]] = (), samples: int | None = None
) -> Cut | None:
    """What to read of a shard for ``piece`` from ``start`` on; None if there is no more of it.

    Args:
        piece: Which samples.
        start: A position in the shard; none for the beginning of the piece.
        offsets: Where a decoder may begin: pairs of a sample and a byte, both rising.
        samples: How many the shard has; None if that is not known, and then the piece is the whole of it.
    """
    first: int = start.get("sample", piece.first)
    stop = None if piece.stop == samples else piece.stop
    if stop is not None and first >= stop:
        return None
    if "byte" in start:
        sample, byte = first, start["byte"]
    else:
        place = bisect_right(offsets, first, key=_sample_of)
        sample, byte = offsets[place - 1] if place else (0, 0)
    stop_byte = None
    if stop is not None and (place := bisect_left(offsets, stop, key=_sample_of)) < len(offsets):
        stop_byte = offsets[place][1]
    return Cut(first, stop, sample, byte, stop_byte)


def _sample_of(offset: tuple[int, int]) -> int:
    return offset[0]
