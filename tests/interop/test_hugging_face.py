"""Datasets of Hugging Face's as sources: split by the lanes, and by nothing else."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import asyncloader as al

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what it imports is deprecated here and there
    datasets: Any = pytest.importorskip("datasets", reason="datasets is in the dependency group 'interop'")
    distributed: Any = pytest.importorskip("datasets.distributed")

pytestmark = [
    pytest.mark.usefixtures("fork_server"),
    pytest.mark.filterwarnings("ignore::Warning:datasets"),
]

COUNT = 100


def read(shards: list[int]) -> Iterator[dict[str, int]]:
    for shard in shards:
        yield from ({"number": 10 * shard + n} for n in range(10))


def numbers() -> Any:
    return datasets.IterableDataset.from_generator(read, gen_kwargs={"shards": list(range(COUNT // 10))})


def by_shard(topology: al.Topology) -> Any:
    return numbers().shard(num_shards=topology.lanes, index=topology.lane)


def by_node(topology: al.Topology) -> Any:
    return distributed.split_dataset_by_node(numbers(), rank=topology.lane, world_size=topology.lanes)


@pytest.mark.parametrize(("workers", "lanes"), [(0, 3), (2, None), (2, 3)])
@pytest.mark.parametrize("make", [by_shard, by_node])
def test_every_sample_comes_once(make: Callable[[al.Topology], Any], workers: int, lanes: int | None) -> None:
    loader = al.DataLoader(al.from_iterable(make), 8, num_workers=workers, lanes=lanes, collate_fn=list)
    got = [sample["number"] for batch in loader for sample in batch]
    assert sorted(got) == list(range(COUNT))
