"""What a stream's source hears of torch's workers: it has its lane, and is told of no other parts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from torch.utils.data import IterableDataset, get_worker_info

import asyncloader as al
from asyncloader.plan.topology import Topology

COUNT = 60

WORKERS = pytest.mark.parametrize("workers", [0, 2])


class Splits:
    """As datasets of other libraries do: takes the part that it is asked for, and of it its worker's."""

    def __init__(self, numbers: range = range(COUNT)) -> None:
        self.numbers = numbers

    def shard(self, num_shards: int, index: int) -> Splits:
        return Splits(self.numbers[index::num_shards])

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        numbers = self.numbers if info is None else self.numbers[info.id :: info.num_workers]
        yield from numbers


class SplitsAsynchronously(Splits):
    __iter__ = None  # type: ignore[assignment]

    def shard(self, num_shards: int, index: int) -> SplitsAsynchronously:
        return SplitsAsynchronously(self.numbers[index::num_shards])

    async def __aiter__(self) -> AsyncIterator[int]:
        for number in Splits.__iter__(self):
            yield number


def lazily(topology: Topology) -> Any:
    return Splits().shard(topology.lanes, topology.lane)


def at_once(topology: Topology) -> Any:
    return list(Splits().shard(topology.lanes, topology.lane))


def asynchronously(topology: Topology) -> Any:
    return SplitsAsynchronously().shard(topology.lanes, topology.lane)


def numbers_of(loader: al.DataLoader[Any]) -> list[int]:
    return sorted(number for batch in loader for number in batch)


@WORKERS
@pytest.mark.parametrize("lanes", [1, 2, 4])
@pytest.mark.parametrize("make", [lazily, at_once, asynchronously])
def test_what_the_topology_splits_is_not_split_again_by_the_workers(
    make: Callable[[Topology], Any], workers: int, lanes: int
) -> None:
    loader = al.DataLoader(
        al.from_iterable(make), 7, num_workers=workers, lanes=lanes, collate_fn=list, drop_last=False
    )
    for _ in range(2):
        assert numbers_of(loader) == list(range(COUNT))


def test_one_lane_of_several_workers_is_all_of_an_object_that_looks_at_them() -> None:
    loader = al.DataLoader(al.from_iterable(Splits()), 7, num_workers=2, lanes=1, collate_fn=list)
    assert numbers_of(loader) == list(range(COUNT))


class AsksBoth:
    def __iter__(self) -> Iterator[int]:
        topology = al.get_topology()
        yield from Splits().shard(topology.lanes, topology.lane)


class AsksBothAsynchronously:
    async def __aiter__(self) -> AsyncIterator[int]:
        topology = al.get_topology()
        async for number in SplitsAsynchronously().shard(topology.lanes, topology.lane):
            yield number


class AsksLater:
    def __iter__(self) -> Iterator[int]:
        yield from al.get_topology().split(range(COUNT))
        yield from Splits()


@pytest.mark.parametrize("source", [AsksBoth(), AsksBothAsynchronously(), AsksLater()])
def test_an_object_that_asks_for_its_part_both_ways_is_refused(source: Any) -> None:
    loader = al.DataLoader(al.from_iterable(source), 7, num_workers=2, collate_fn=list)
    with pytest.raises(RuntimeError, match="called both") as caught:
        list(loader)
    message = str(caught.value)
    assert type(source).__name__ in message
    assert (
        "get_topology()" in message and "get_worker_info()" in message and "from_iterable(lambda" in message
    )
    # Without workers there is nothing to mistake.
    assert len(numbers_of(al.DataLoader(al.from_iterable(AsksBoth()), 7, lanes=2, collate_fn=list))) == COUNT


def test_an_object_that_looks_at_the_workers_alone_is_told_of_a_function() -> None:
    loader = al.DataLoader(al.from_iterable(Splits()), 7, num_workers=2, collate_fn=list)
    with pytest.raises(
        RuntimeError, match=r"never called asyncloader.* goes into a function: from_iterable\("
    ):
        list(loader)


def test_functions_of_the_recipe_and_of_the_loader_still_see_their_worker() -> None:
    def seen(sample: Any) -> Any:
        info = get_worker_info()
        assert info is not None
        return info.id, info.num_workers

    async def seen_asynchronously(sample: Any) -> Any:
        return (*sample, *seen(sample))

    def collate(samples: Any) -> Any:
        return [(*sample, *seen(sample)) for sample in samples]

    recipe = al.from_iterable(lazily).map(seen).map(seen_asynchronously, concurrency=2)
    loader = al.DataLoader(recipe, 10, num_workers=2, collate_fn=collate)
    got = {sample for batch in loader for sample in batch}
    assert got == {(0, 2) * 3, (1, 2) * 3}


def test_a_dataset_of_the_torch_kind_still_sees_its_worker() -> None:
    class Torchs(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            yield from Splits()

    for dataset in (Torchs(), SplitsAsynchronously()):
        loader: al.DataLoader[Any] = al.DataLoader(dataset, 7, num_workers=2, collate_fn=list)
        assert numbers_of(loader) == list(range(COUNT))


async def _counts_asynchronously() -> AsyncIterator[int]:
    for number in range(4):
        yield number


@pytest.mark.parametrize("make", [lambda topology: range(4), lambda topology: _counts_asynchronously()])
def test_a_function_that_never_looks_at_its_lane_is_refused(make: Any) -> None:
    loader = al.DataLoader(al.from_iterable(make), None, lanes=2)
    with pytest.raises(RuntimeError, match="never looked at the lane"):
        list(loader)
    assert list(al.DataLoader(al.from_iterable(make), None)) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "make",
    [
        lambda topology: topology.split(range(4)),
        lambda topology: range(topology.lane, 4, 2),
        lambda topology: (n for n in range(4) if n % topology.lanes == topology.lane),
    ],
)
def test_a_function_that_looks_at_its_lane_is_believed(make: Any) -> None:
    assert sorted(al.DataLoader(al.from_iterable(make), None, lanes=2)) == [0, 1, 2, 3]
