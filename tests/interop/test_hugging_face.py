"""Datasets of Hugging Face's as sources: split by the lanes, and by nothing else."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import asyncloader as al
from asyncloader.plan.topology import Topology

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


def by_shard(topology: Topology) -> Any:
    return numbers().shard(num_shards=topology.lanes, index=topology.lane)


def by_node(topology: Topology) -> Any:
    return distributed.split_dataset_by_node(numbers(), rank=topology.lane, world_size=topology.lanes)


@pytest.mark.parametrize(("workers", "lanes"), [(0, 3), (2, None), (2, 3)])
@pytest.mark.parametrize("make", [by_shard, by_node])
def test_every_sample_comes_once(make: Callable[[Topology], Any], workers: int, lanes: int | None) -> None:
    loader = al.DataLoader(al.from_iterable(make), 8, num_workers=workers, lanes=lanes, collate_fn=list)
    got = [sample["number"] for batch in loader for sample in batch]
    assert sorted(got) == list(range(COUNT))


def test_shards_that_datasets_has_written_keep_its_features(tmp_path: Path) -> None:
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=["cat", "dog"]),
            "even": datasets.Array2D((2, 3), "float32"),
            "grown": datasets.Array2D((None, 3), "int64"),
        }
    )
    pixels = [np.full((4, 5, 3), 10 * index, np.uint8) for index in range(4)]
    columns = {
        "image": [Image.fromarray(each) for each in pixels],
        "label": [0, 1, 0, 1],
        "even": [np.full((2, 3), index, np.float32) for index in range(4)],
        "grown": [np.full((index + 1, 3), index) for index in range(4)],
    }
    datasets.Dataset.from_dict(columns, features=features).to_parquet(tmp_path / "a.parquet")
    dataset = al.from_urls(tmp_path / "a.parquet").decode()
    (batch,) = al.DataLoader(dataset, 4, collate_fn=al.Pad({"grown": 0}))
    assert batch["image"].tolist() == [each.tolist() for each in pixels]
    assert (batch["label"].tolist(), batch["even"].shape) == ([0, 1, 0, 1], (4, 2, 3))
    assert batch["grown"].shape == (4, 4, 3)
    assert batch["grown"].sum() == sum(3 * n * (n + 1) for n in range(4))
    assert dataset.class_names("label") == ["cat", "dog"]
    with pytest.raises(ValueError, match="no names of classes for 'even'; it has them for 'label'"):
        dataset.class_names("even")
