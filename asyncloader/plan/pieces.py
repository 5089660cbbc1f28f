"""Pieces: what lanes are dealt. Whole shards, or equal runs of samples where these are counted.

The shards stand in the epoch's order. Without counts or sizes lane ``l`` of ``L`` gets the shards ``l``,
``l + L``, and so on. With sizes whole shards go to lanes so that these come out about equal, and each lane
reads its own in the epoch's order. With counts the samples of all shards, one shard after another, are cut
into ``L`` runs. The first ones have one sample more if they cannot all be equal: so every lane has as many
batches as every other, or the first ones one more, and the global order of batches is the same for any
number of ranks to the epoch's end. A ``Cut`` says which bytes of a shard hold the samples of a piece, as far
as an index contains that.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from .lanes import Deal, draw_order, take_share

# Orders that are kept: those of the repetitions that lanes are in at a time. Each takes 8 bytes a shard, and
# 8 more with counts or sizes.
_MOST_KEPT = 2

# Shards whose sizes differ by less than a thousandth of a lane count as equal, and stay in the epoch's order.
# With exact sizes a lane would have the same shards in every epoch, and samples of different lanes are never
# in one batch.
_PARTS_OF_LANE = 1000


class Piece(NamedTuple):
    """A run of samples of one shard.

    Attributes:
        shard: Its number among the dataset's.
        first: Index in the shard of the first sample.
        stop: Index behind the last one; None for all samples, however many.
    """

    shard: int
    first: int = 0
    stop: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """The pieces of one lane, in the order in which it reads them; each is made on access.

    Args:
        shards: Their shards, ``(n,) int64``.
        counts: Samples of each shard of the dataset, ``(shards,) int64``; None if they are whole, of any
            length.
        first: Index of the first sample in the first shard.
        stop: Index behind the last sample in the last shard; None for all of it.
    """

    shards: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64] | None = None
    first: int = 0
    stop: int | None = None

    def __len__(self) -> int:
        return len(self.shards)

    def __getitem__(self, nth: int) -> Piece:
        shard = int(self.shards[nth])
        if self.counts is None:
            return Piece(shard)
        is_last = nth == len(self.shards) - 1
        stop = self.stop if is_last and self.stop is not None else int(self.counts[shard])
        return Piece(shard, self.first if nth == 0 else 0, stop)

    def __iter__(self) -> Iterator[Piece]:
        return map(self.__getitem__, range(len(self.shards)))


class Dealing:
    """Deals the shards of a dataset to lanes.

    Args:
        shards: How many there are.
        counts: Samples of each, ``(shards,) int64``, to cut lanes by; None deals whole shards.
        sizes: How large each is, ``(shards,) int64``, in any unit, to deal whole shards by; None deals them
            in turn.
    """

    def __init__(
        self,
        shards: int,
        counts: npt.NDArray[np.int64] | None = None,
        sizes: npt.NDArray[np.int64] | None = None,
    ) -> None:
        self._shards = shards
        self._counts = counts
        self._sizes = sizes
        #: How many samples all shards have together; 0 if they are not counted.
        self.samples = 0 if counts is None else int(counts.sum())
        # A lane that is opened finds what was computed for another one. None of these refers to the dealing,
        # so that it is freed as soon as it is dropped.
        self._order = lru_cache(_MOST_KEPT)(partial(_draw_order, shards))
        self._lane_of_each = lru_cache(_MOST_KEPT)(partial(_deal_whole, shards, sizes, self._order))
        self._samples_before = lru_cache(_MOST_KEPT)(partial(_add_up, counts, self._order))

    def of_lane(self, lane: int, lanes: int, order_key: tuple[int, ...] | None) -> Pieces:
        """The pieces of one lane.

        Args:
            lane: The lane.
            lanes: Number of lanes.
            order_key: What draws the epoch's order of shards, such as ``(seed, epoch)``; None keeps the given
                one.
        """
        order = self._order(order_key)
        if self._counts is None:
            if self._sizes is None or lanes == 1:
                return Pieces(order[lane::lanes])
            return Pieces(order[self._lane_of_each(lanes, order_key) == lane])
        begins = self._samples_before(order_key)
        begin = lane * (self.samples // lanes) + min(lane, self.samples % lanes)
        end = begin + take_share(self.samples, lane, lanes)
        # Shards without samples belong to the lane where they stand, so that each is read, and checked, once.
        low = int(begins.searchsorted(begin, "left"))
        high = len(order) if lane == lanes - 1 else int(begins.searchsorted(end, "left"))
        if begin < end and (low == len(order) or begins[low] > begin):
            low -= 1  # this lane begins inside of the shard before
        if low >= high:
            return Pieces(order[:0])
        first = max(begin - int(begins[low]), 0)
        stop = min(end - int(begins[high - 1]), int(self._counts[order[high - 1]]))
        return Pieces(order[low:high], self._counts, first, stop)

    def count_lanes(self, deal: Deal, counts: npt.NDArray[np.int64] | None = None) -> list[float]:
        """The samples of each lane of ``deal``.

        Args:
            deal: The lanes.
            counts: Samples of each shard; those that lanes are cut by if None.
        """
        if self._counts is not None:
            return [take_share(self.samples, lane, deal.lane_count) for lane in deal.lanes]
        assert counts is not None, "the samples are not counted"
        order = self._order(deal.order_key)
        sums = np.zeros(deal.lane_count, np.int64)
        np.add.at(sums, self._lane_of_each(deal.lane_count, deal.order_key), counts[order])
        return [int(sums[lane]) for lane in deal.lanes]

    def __reduce__(self) -> Any:
        return Dealing, (self._shards, self._counts, self._sizes)  # without what was computed


_OrderOf: TypeAlias = Callable[[tuple[int, ...] | None], npt.NDArray[np.int64]]


def _draw_order(shards: int, key: tuple[int, ...] | None) -> npt.NDArray[np.int64]:
    """All shards in the epoch's order, ``(shards,) int64``."""
    return np.arange(shards) if key is None else draw_order(shards, *key)


def _deal_whole(
    shards: int,
    sizes: npt.NDArray[np.int64] | None,
    order_of: _OrderOf,
    lanes: int,
    key: tuple[int, ...] | None,
) -> npt.NDArray[np.int64]:
    """The lane of each whole shard, in the epoch's order: ``(shards,) int64``."""
    if sizes is None or lanes == 1:
        return np.arange(shards) % lanes
    return _deal_by_size(sizes[order_of(key)], lanes)


def _add_up(
    counts: npt.NDArray[np.int64] | None, order_of: _OrderOf, key: tuple[int, ...] | None
) -> npt.NDArray[np.int64]:
    """How many samples come before each shard, in the epoch's order: ``(shards,) int64``."""
    assert counts is not None, "the samples are not counted"
    begins = np.zeros(len(counts), np.int64)
    np.cumsum(counts[order_of(key)[:-1]], out=begins[1:])
    return begins


def _deal_by_size(sizes: npt.NDArray[np.int64], lanes: int) -> npt.NDArray[np.int64]:
    """The lane of each of the shards, ``(shards,) int64``: the largest first, each to the one with the least.

    Graham, "Bounds on multiprocessing timing anomalies", SIAM J. Appl. Math. 17 (1969). Of equal lanes the
    one with fewer shards is next, so that the first ``lanes`` shards go to as many lanes. In the end lanes
    are numbered by what they have, the most first: each rank has every ``n``-th lane, so ranks then differ
    by no more than lanes do.
    """
    alike = max(int(sizes.sum()) // (lanes * _PARTS_OF_LANE), 1)
    largest_first = np.argsort(-(sizes // alike), kind="stable")
    least = [(0, 0, lane) for lane in range(lanes)]
    dealt = []
    for size in sizes[largest_first].tolist():
        has, shards, lane = least[0]
        dealt.append(lane)
        heapq.heapreplace(least, (has + size, shards + 1, lane))
    numbers = np.empty(lanes, np.int64)
    numbers[[lane for *_, lane in sorted(least, key=lambda one: (-one[0], -one[1], one[2]))]] = range(lanes)
    found = np.empty(len(sizes), np.int64)
    found[largest_first] = numbers[dealt]
    return found


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


def cut_piece(
    piece: Piece,
    start: Mapping[str, Any],
    offsets: Sequence[tuple[int, int]] = (),
    samples: int | None = None,
) -> Cut | None:
    """What to read of a shard for ``piece`` from ``start`` on; None if nothing of it is left.

    Args:
        piece: Which samples.
        start: The sample and the byte of a position; neither at the beginning of the piece.
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
        place = bisect_right(offsets, first, key=itemgetter(0))
        sample, byte = offsets[place - 1] if place else (0, 0)
    stop_byte = None
    if stop is not None and (place := bisect_left(offsets, stop, key=itemgetter(0))) < len(offsets):
        stop_byte = offsets[place][1]
    return Cut(first, stop, sample, byte, stop_byte)
