"""``split``: an iterable dataset dealt exactly to the workers of all ranks."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from torch.utils.data import IterableDataset

from ..plan.topology import process_group, resolve_world
from .worker_info import get_worker_info

__all__ = ["Split", "split"]


class Split(IterableDataset[Any]):
    """See ``split``."""

    def __init__(self, dataset: Iterable[Any], rank: int | None, world_size: int | None) -> None:
        self.dataset = dataset
        self._given = (rank, world_size)

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        world = resolve_world(*self._given, lambda: process_group(sys.modules), os.environ)
        rank, size, worker, workers = world.rank, world.size, 0, 1
        if info is not None:
            worker, workers = info.id, info.num_workers
            if self._given == (None, None):
                rank, size = getattr(info, "rank", rank), getattr(info, "world_size", size)
        return islice(iter(self.dataset), rank * workers + worker, None, size * workers)


def split(dataset: Iterable[Any], *, rank: int | None = None, world_size: int | None = None) -> Split:
    """Deal an iterable dataset to ranks and workers: each sample goes to exactly one of them.

    Every worker runs through the whole dataset and keeps its own part, so this is right for any
    iterable that yields the same sequence everywhere, and cheap where a sample is cheap to skip.

    Args:
        dataset: An iterable with a fixed order.
        rank: This process's rank, with ``world_size``; from ``torch.distributed`` or the launcher's
            environment by default.
        world_size: The number of ranks.
    """
    return Split(dataset, rank, world_size)
