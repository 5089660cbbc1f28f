"""32 points of a line, as a map-style dataset and as streams, and what a training has to show for itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import asyncloader as al

__all__ = [
    "COUNT",
    "KINDS",
    "AsyncPoints",
    "Points",
    "assert_trained",
    "inputs",
    "loss_of",
    "point",
    "write_shards",
]

COUNT, SHARDS = 32, 4


def point(number: int) -> dict[str, Any]:
    """A sample: its number, and a point of y = 2 + 3x."""
    return {"number": number, "x": number / COUNT, "y": 2 + 3 * number / COUNT}


class Points(torch.utils.data.Dataset[dict[str, Any]]):
    """Map style."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> dict[str, Any]:
        return point(index)


class AsyncPoints:
    """Map style, asynchronously."""

    def __len__(self) -> int:
        return COUNT

    async def __getitem__(self, index: int) -> dict[str, Any]:
        return point(index)


class PointsOfLane:
    """An iterable that yields its lane's part."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        # 13 has no divisor in common with 32: all numbers, well mixed.
        return al.get_topology().split(point(13 * place % COUNT) for place in range(COUNT))


def write_shards(folder: Path) -> list[str]:
    """Shards of one length, since ranks must take as many steps each."""
    paths = [folder / f"points-{shard}.jsonl" for shard in range(SHARDS)]
    for shard, path in enumerate(paths):
        numbers = range(shard, COUNT, SHARDS)
        path.write_text("".join(json.dumps(point(number)) + "\n" for number in numbers))
    return list(map(str, paths))


def _map_style(folder: Path, workers: int, **options: Any) -> al.DataLoader[Any]:
    return al.DataLoader(Points(), batch_size=4, shuffle=True, num_workers=workers, **options)


def _async_map_style(folder: Path, workers: int, **options: Any) -> al.DataLoader[Any]:
    return al.DataLoader(AsyncPoints(), batch_size=4, shuffle=True, num_workers=workers, **options)


def _from_urls(folder: Path, workers: int, **options: Any) -> al.DataLoader[Any]:
    recipe = al.from_urls(write_shards(folder)).select_columns("number", "x", "y").shuffle(8)
    return al.DataLoader(recipe, batch_size=4, num_workers=workers, **options)


def _by_tokens(folder: Path, workers: int, **options: Any) -> al.DataLoader[Any]:
    recipe = al.from_urls(write_shards(folder)).select_columns("number", "x", "y").shuffle(8)
    batching = al.TokenBatches(length=_one, max_tokens=4, pool=8)
    return al.DataLoader(recipe, batching=batching, num_workers=workers, **options)


def _one(sample: dict[str, Any]) -> int:
    return 1


def _from_iterable(folder: Path, workers: int, **options: Any) -> al.DataLoader[Any]:
    return al.DataLoader(al.from_iterable(PointsOfLane()), batch_size=4, num_workers=workers, **options)


#: Makes a loader of (a folder to write to, the number of workers, further options).
KINDS: dict[str, Callable[..., al.DataLoader[Any]]] = {
    "map style": _map_style,
    "async map style": _async_map_style,
    "from_urls": _from_urls,
    "from_iterable": _from_iterable,
    "by tokens": _by_tokens,
}


def inputs(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """The model's input, ``(B, 1) float32``."""
    return batch["x"].float().unsqueeze(1)


def loss_of(model: Callable[[torch.Tensor], torch.Tensor], batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """The mean squared error of a batch."""
    return torch.nn.functional.mse_loss(model(inputs(batch)), batch["y"].float().unsqueeze(1))


def assert_trained(epochs: Sequence[Sequence[int]], losses: Sequence[float]) -> None:
    """Every sample came once in each epoch, and the loss fell.

    Args:
        epochs: The numbers seen in each epoch.
        losses: Of each step.
    """
    assert epochs
    for seen in epochs:
        assert sorted(seen) == list(range(COUNT))
    steps = len(losses) // len(epochs)
    assert sum(losses[-steps:]) < sum(losses[:steps]) / 2
