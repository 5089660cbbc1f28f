"""Shards of numbers, and loaders of them that pass over what is bad: for tests of ``al.SkipErrors``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import asyncloader as al

__all__ = ["EACH", "LANES", "MANY", "SHARDS", "drained", "loader_of", "numbers_of", "write_numbers"]

SHARDS, EACH = 4, 11
LANES = 2
MANY = 1000


def write_numbers(folder: Path, shards: int = SHARDS) -> list[str]:
    paths = [folder / f"{shard}.jsonl" for shard in range(shards)]
    for shard, path in enumerate(paths):
        lines = [
            json.dumps({"n": shard * EACH + at, "__key__": f"k{shard * EACH + at}"}) for at in range(EACH)
        ]
        path.write_text("\n".join(lines) + "\n")
    return list(map(str, paths))


def loader_of(recipe: al.Dataset, budget: al.SkipErrors | None = None, **options: Any) -> al.DataLoader[Any]:
    options = {"batch_size": 3, "lanes": LANES, "collate_fn": numbers_of, **options}
    return al.DataLoader(recipe, on_error=budget or al.SkipErrors(max=MANY), **options)


def numbers_of(samples: list[dict[str, Any]]) -> list[int]:
    return [int(sample["n"]) for sample in samples]


def drained(loader: al.DataLoader[Any]) -> list[int]:
    with loader:
        return sorted(number for batch in loader for number in batch)
