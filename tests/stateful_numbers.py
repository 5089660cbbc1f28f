"""Datasets of torch's kinds that know where they are."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.utils.data import IterableDataset

__all__ = ["CountsItems", "IteratesItself", "KnowsWhere", "StatefulNumbers", "part_of_worker"]


class KnowsWhere:
    """Has a state of one number: how many samples were taken of a pass that is not over."""

    at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]

    def rest_of(self, numbers: range) -> Iterator[int]:
        """The numbers behind those that were taken."""
        at, self.at = self.at, 0
        for place in range(at, len(numbers)):
            self.at = place + 1
            yield numbers[place]
        self.at = 0


class StatefulNumbers(KnowsWhere, IterableDataset[int]):
    """The numbers below ``count``, dealt to ranks and workers."""

    def __init__(self, count: int, rank: int = 0, ranks: int = 1) -> None:
        self.count, self.rank, self.ranks = count, rank, ranks

    def __iter__(self) -> Iterator[int]:
        return self.rest_of(part_of_worker(self.count, self.rank, self.ranks))


class IteratesItself(KnowsWhere, IterableDataset[int]):
    """The numbers below ``count``, once: it is its own iterator and does not begin anew."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> IteratesItself:
        return self

    def __next__(self) -> int:
        if self.at == self.count:
            raise StopIteration
        self.at += 1
        return self.at - 1


class CountsItems(KnowsWhere):
    """Map style: the index of an item, and how many this copy of the dataset gave before."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[int, int]:
        self.at += 1
        return index, self.at - 1


def part_of_worker(count: int, rank: int = 0, ranks: int = 1) -> range:
    """Those of the numbers below ``count`` that are this worker's of this rank."""
    info = torch.utils.data.get_worker_info()
    worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
    return range(rank * workers + worker, count, ranks * workers)
