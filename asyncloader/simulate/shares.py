"""What each lane reads of which shard, as the plan deals it: the samples, and the bytes that these take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..plan.counts import Deal
from ..plan.pieces import Dealing
from .setting import Setting

__all__ = ["LaneStart", "Share", "count_lanes", "deal_shares"]


class Share(NamedTuple):
    """Samples of one shard that a lane reads.

    Attributes:
        shard: Its number.
        shard_bytes: Length of the shard.
        start_byte: Of the first of them.
        stop_byte: Behind the last.
        samples: How many.
    """

    shard: int
    shard_bytes: int
    start_byte: int
    stop_byte: int
    samples: int


class LaneStart(NamedTuple):
    """Where a lane begins, if not at its first sample.

    Attributes:
        batches: Delivered before.
        samples: In those.
    """

    batches: int = 0
    samples: int = 0


def deal_shares(setting: Setting, starts: Mapping[int, LaneStart]) -> dict[int, list[Share]]:
    """The shares of each lane, from where it begins on; within a window from the window's first sample on."""
    dealing, _ = _dealing(setting, is_indexed=setting.is_indexed)
    key = _deal(setting).order_key
    shares: dict[int, list[Share]] = {}
    for lane in range(setting.lane_count):
        skip = starts.get(lane, LaneStart()).samples
        skip -= skip % setting.window if setting.window else 0
        shares[lane] = []
        for piece in dealing.of_lane(lane, setting.lane_count, key):
            size = setting.shards[piece.shard]
            stop = size.samples if piece.stop is None else piece.stop
            first = min(piece.first + skip, stop)
            skip -= first - piece.first
            if first < stop or not size.samples:  # one without samples is read all the same
                begin, end = (_offset(sample, *size) for sample in (first, stop))
                shares[lane].append(Share(piece.shard, size.size_bytes, begin, end, stop - first))
    return shares


def count_lanes(setting: Setting, *, is_indexed: bool) -> list[int]:
    """The samples of each lane, with an index or without one."""
    dealing, counts = _dealing(setting, is_indexed=is_indexed)
    return [int(count) for count in dealing.count_lanes(_deal(setting), counts)]


def _dealing(setting: Setting, *, is_indexed: bool) -> tuple[Dealing, npt.NDArray[np.int64]]:
    """What deals the shards, by an index or by their sizes, and the samples of each."""
    sizes, counts = np.array(setting.shards, np.int64).T
    return Dealing(len(counts), counts if is_indexed else None, sizes), counts


def _deal(setting: Setting) -> Deal:
    """All lanes, in the first epoch."""
    return Deal(tuple(range(setting.lane_count)), setting.lane_count, epoch=0, order_seed=setting.seed)


def _offset(sample: int, size_bytes: int, samples: int) -> int:
    return size_bytes * sample // samples if samples else (size_bytes if sample else 0)
