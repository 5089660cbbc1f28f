"""What actors make in these tests, and how it is compared with what local workers make.

Actors import this module: nothing of pytest's is in it, which would take each of them half a second.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

import asyncloader as al

SHARDS, PER_SHARD, SIZE = 6, 40, 8


def write_shards(folder: Path) -> None:
    for shard in range(SHARDS):
        numbers = range(shard * PER_SHARD, (shard + 1) * PER_SHARD)
        lines = [json.dumps({"number": number, "tokens": [number] * (number % 7)}) for number in numbers]
        (folder / f"{shard}.jsonl").write_text("\n".join(lines) + "\n")


def decode(sample: dict[str, Any]) -> dict[str, Any]:
    return {
        "number": sample["number"],
        "tokens": np.array(sample["tokens"], np.int64),
        "image": np.full(
            (60, 80), sample["number"], np.float32
        ),  # batches of 150 KB: too large for a message
        "drawn": float(al.sample_rng().random()),  # Ray's own threads draw from ``random``, too
    }


def stream(folder: Path) -> al.Dataset:
    return al.from_urls(f"{folder}/*.jsonl").map(decode).shuffle(50, seed=3)


def loader(dataset: al.Dataset, **options: Any) -> al.DataLoader[Any]:
    generator = torch.Generator().manual_seed(1)
    options = {"batch_size": SIZE, "lanes": 4, "collate_fn": al.Pad({"tokens": -1}), **options}
    return al.DataLoader(dataset, generator=generator, **options)


def on_ray(count: int = 2, **options: Any) -> dict[str, Any]:
    return {"workers": al.RayWorkers(count, **options)}


def same(ours: list[Any], theirs: list[Any]) -> bool:
    def equal(one: Any, other: Any) -> bool:
        if isinstance(one, torch.Tensor):
            return one.dtype == other.dtype and torch.equal(one, other) and one.stride() == other.stride()
        return type(one) is type(other) and one == other

    return len(ours) == len(theirs) and all(
        one.keys() == other.keys() and all(equal(one[name], other[name]) for name in one)
        for one, other in zip(ours, theirs, strict=True)
    )


def read(folder: Path, state: Any, most: int | None, **options: Any) -> tuple[list[Any], Any]:
    """So many batches, from a state on, and the state behind them."""
    ours = loader(stream(folder), **options)
    if state is not None:
        ours.load_state_dict(state)
    with ours:
        batches = list(itertools.islice(ours, most))
        return batches, saved(ours)


def saved(ours: al.DataLoader[Any]) -> Any:
    """The state, as it comes back from a file."""
    return json.loads(json.dumps(ours.state_dict()))


def soon(holds: Callable[[], bool], within_s: float = 30) -> bool:
    """Whether it holds some time soon."""
    deadline = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


# --- what goes wrong ---


def fail_at_100(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["number"] == 100:
        raise LookupError("no such picture")
    return sample


def die_at_100(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["number"] == 100:
        os.kill(os.getpid(), signal.SIGKILL)
    return sample


def wait_at_100(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["number"] == 100:
        time.sleep(60)
    return sample


# --- what is around them ---


def see_variable(sample: dict[str, Any]) -> dict[str, Any]:
    return {"number": sample["number"], "seen": os.environ.get("SEEN_BY_ACTORS", "")}


def logged(log: Path, leaving_s: float) -> Callable[[], Any]:
    """A context that writes down when it is entered, and when it has been left, after so many seconds."""

    @asynccontextmanager
    async def context() -> AsyncIterator[str]:
        with log.open("a") as file:
            file.write(f"entered {os.getpid()}\n")
        try:
            yield "there"
        finally:
            await asyncio.sleep(leaving_s)
            with log.open("a") as file:
                file.write(f"left {os.getpid()}\n")

    return context


def with_context(sample: dict[str, Any], there: str) -> dict[str, Any]:
    return {"number": sample["number"], "is_there": there == "there"}
