"""What a user's type checker sees: checked by mypy --strict, never run.

Each line is something that people write. A change that breaks one breaks somebody's build.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, assert_type

import numpy as np
import numpy.typing as npt
import torch

import asyncloader as al
from asyncloader import testing
from asyncloader.observe.statistics import Statistics
from asyncloader.plan.topology import Topology
from asyncloader.tools.convert import Converted


def double(sample: dict[str, Any]) -> dict[str, Any]:
    return sample


async def fetch(sample: dict[str, Any]) -> dict[str, Any]:
    return sample


def lengthen(batch: dict[str, Any]) -> dict[str, Any]:
    tokens: al.Ragged = batch["tokens"]
    return {**batch, "length": tokens.lengths, "again": al.Ragged(tokens.values, tokens.offsets)}


def is_long(batch: dict[str, Any]) -> npt.NDArray[np.bool_]:
    return np.asarray(batch["length"] > 10)


def stack(samples: list[Any]) -> torch.Tensor:
    return torch.stack(samples)


class Double:
    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        return sample


# --- recipes ---

assert_type(al.from_urls("train-{000..127}.tar"), al.Dataset)
assert_type(al.from_urls(Path("train.tar")), al.Dataset)
assert_type(al.from_urls(["a.tar", Path("b.tar")], format="tar"), al.Dataset)
assert_type(al.from_urls(f"{n}.tar" for n in range(3)), al.Dataset)
assert_type(al.from_urls("s3://bucket/a.tar", storage_options={"region": "eu-west-1"}), al.Dataset)

recipe = al.from_urls("train.tar")
assert_type(recipe.map(double), al.Dataset)
assert_type(recipe.map(fetch, concurrency=16), al.Dataset)
assert_type(recipe.map(Double()), al.Dataset)
assert_type(recipe.map(lambda sample: sample["json"]), al.Dataset)
assert_type(recipe.filter(lambda sample: sample["cls"] > 3), al.Dataset)
assert_type(recipe.shuffle(10_000, seed=0), al.Dataset)
assert_type(recipe.select_columns("jpg", "cls").rename(jpg="image"), al.Dataset)
assert_type(recipe.rename({"input.jpg": "image"}, cls="label"), al.Dataset)
assert_type(recipe.decode(), al.Dataset)
assert_type(recipe.decode({"flac": len}, concurrency=4), al.Dataset)
assert_type(recipe.repeat(), al.Dataset)
assert_type(recipe.repeat(2).take(100), al.Dataset)

assert_type(recipe.map_batches(lengthen, batch_size=64, concurrency=2), al.Dataset)
assert_type(recipe.filter_batches(is_long, batch_size=64), al.Dataset)
recipe.map_batches(lengthen)  # type: ignore[call-arg]  # of how many samples
recipe.map_batches(is_long, batch_size=64)  # type: ignore[arg-type]  # gives no columns
recipe.map("double")  # type: ignore[arg-type]  # not a function
recipe.shuffle("many")  # type: ignore[arg-type]  # not a number
recipe.select_columns(3)  # type: ignore[arg-type]  # not a name
recipe._stages = recipe._stages  # type: ignore[misc]  # frozen


# --- mixtures ---

assert_type(al.mix([recipe, recipe], weights=[3, 1], seed=1, stop="all"), al.Dataset)
assert_type(al.mix({"web": recipe, "books": recipe}, weights={"web": 0.7, "books": 0.3}), al.Dataset)
assert_type(al.mix([recipe, recipe], weights={0: [1, 0], 3: [1, 1]}).shuffle(100), al.Dataset)
assert_type(al.mix([recipe, recipe], weights=lambda epoch: [1, epoch]), al.Dataset)
assert_type(al.concat([recipe, recipe]), al.Dataset)
assert_type(al.zip_datasets({"image": recipe, "text": recipe}, strict=False), al.Dataset)
al.mix([recipe], stop="never")  # type: ignore[arg-type]  # not an end
al.concat([[1, 2]])  # type: ignore[list-item]  # not a recipe


# --- sources of one's own ---


class Numbers(al.AsyncIterableDataset):
    async def __aiter__(self) -> AsyncIterator[int]:
        for number in al.get_topology().split(range(10)):
            yield number


def lines(topology: Topology) -> Iterator[str]:
    yield from topology.split(["a", "b"])


async def rows(topology: Topology) -> AsyncIterator[str]:
    yield "a"


assert_type(al.from_iterable(Numbers()), al.Dataset)
assert_type(al.from_iterable(lines), al.Dataset)
assert_type(al.from_iterable(rows), al.Dataset)
assert_type(al.from_iterable(lambda topology: topology.split(range(9))), al.Dataset)
assert_type(al.get_topology(), Topology)
assert_type(Topology(1, 4).split([1.5]), Iterator[float])


# --- the loader ---

# What a batch is, nobody can tell from a recipe: Any, unless a function that collates says it.
loader: al.DataLoader[Any] = al.DataLoader(recipe, batch_size=64, num_workers=4, pin_memory=True)
stacked: al.DataLoader[torch.Tensor] = al.DataLoader(recipe, 64, collate_fn=stack)
padded: al.DataLoader[dict[str, Any]] = al.DataLoader(recipe, 64, collate_fn=al.Pad({"tokens": 0}))
assert_type(next(iter(al.DataLoader(recipe, 64, collate_fn=al.Pad({"tokens": 0})))), dict[str, Any])

tensors = al.DataLoader(recipe, collate_fn=stack, device="cuda", lanes=64, memory_limit="1 GiB")
for batch in tensors:
    assert_type(batch, torch.Tensor)
assert_type(next(iter(tensors)), torch.Tensor)
assert_type(tensors.state_dict(), dict[str, Any])
assert_type(tensors.load_state_dict({}), None)
assert_type(tensors.set_epoch(3), None)
assert_type(tensors.statistics, Statistics)
assert_type(tensors.close(), None)

# A loader of tensors is a loader of objects: its parameter is covariant.
objects: al.DataLoader[object] = tensors

assert_type(al.DataLoader(recipe), al.DataLoader[Any])
assert_type(al.DataLoader([1, 2], collate_fn=stack), al.DataLoader[torch.Tensor])

al.DataLoader(recipe, batching=al.TokenBatches(length="tokens", max_tokens=16_384, pool=8192))
al.DataLoader(recipe, batching=al.TokenBatches(length=lambda sample: len(sample["text"]), max_tokens=9))
al.DataLoader(recipe, batching=al.Buckets(length="seconds", bounds=[2.5, 5], batch_sizes=[32, 16, 8]))
al.DataLoader(recipe, batching=al.Pack({"tokens": 0, "labels": {"value": -100}}, length=2048))
al.DataLoader(recipe, batching=al.Pack(["tokens", "labels"], overlong="truncate", pool=1000))
al.DataLoader(recipe, batching=64)  # type: ignore[arg-type]  # that is batch_size
al.Pack("tokens", overlong="cut")  # type: ignore[arg-type]  # none of the three
al.TokenBatches("tokens", max_tokens=9)  # type: ignore[call-arg]  # all go by name

al.DataLoader(recipe, collate_fn=3)  # type: ignore[arg-type]  # not a function
al.DataLoader(3)  # type: ignore[arg-type]  # not a dataset of any kind
al.DataLoader(recipe, num_wrokers=4)  # type: ignore[call-arg]  # misspelt
al.DataLoader(recipe, 64, num_workers="4")  # type: ignore[arg-type]  # not a number
al.DataLoader([1, 2], 64, memory_limit=0.5)  # type: ignore[arg-type]  # bytes are whole
al.DataLoader(recipe, 64, False, None, None, 0, stack, False, False, 0, None, None, None, 2)  # type: ignore[call-arg]  # the rest go by name


class Labelled(al.DataLoader[torch.Tensor]):
    """A subclass with a signature of its own."""

    def __init__(self, label: str, dataset: al.Dataset, **options: Any) -> None:
        self.label = label
        super().__init__(dataset, collate_fn=stack, **options)


assert_type(next(iter(Labelled("a", recipe, batch_size=2))), torch.Tensor)
with Labelled("a", dataset=recipe) as labelled:
    assert_type(labelled, Labelled)

with al.DataLoader(recipe, collate_fn=stack) as managed:
    assert_type(next(iter(managed)), torch.Tensor)


async def main() -> None:
    async for batch in tensors:
        assert_type(batch, torch.Tensor)
    async with tensors as managed:
        assert_type(await anext(aiter(managed)), torch.Tensor)
    async with testing.check_leaks():
        assert_type(await anext(aiter(tensors)), torch.Tensor)


asyncio.run(main())


# --- collating ---

assert_type(al.Pad({"tokens": 0, "labels": {"value": -100, "side": "left"}})([{}]), dict[str, Any])
assert_type(al.default_collate([1, 2]), Any)
assert_type(al.default_convert([1, 2]), Any)
al.Pad({"tokens": {"side": "middle"}})  # type: ignore[dict-item]  # left or right


# --- shards ---

with al.ShardWriter(Path("shard-%05d.tar"), samples_per_shard=1000) as writer:
    assert_type(writer, al.ShardWriter)
    assert_type(writer.write({"__key__": "a", "txt": "text"}), None)
assert_type(
    al.convert("s3://b/x/", Path("out"), to="parquet", columns=["id"], types={"id": "int"}), Converted
)
assert_type(al.convert(Path("pictures"), "s3://b/y", labels=True).samples, int)


# --- errors ---

try:
    next(iter(tensors))
except al.StoreError as store_error:
    assert_type(store_error.shard, str | None)
    assert_type(store_error.status, int | None)
    assert_type(store_error.offset, int | None)
except al.FormatError as format_error:
    assert_type(format_error.sample, int | None)
except al.WorkerDiedError as died:
    assert_type(died.worker, int | None)
    assert_type(died.exitcode, int | None)


# --- testing ---

with testing.serve({"a.tar": b""}, [testing.CutAt(1000, times=1)], latency_s=0.05) as server:
    assert_type(server, testing.Server)
    assert_type(server.url_of("a.tar"), str)
    assert_type(server.counters.bytes_sent, int)
    assert_type(server.requests, list[testing.LoggedRequest])
