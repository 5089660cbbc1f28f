"""A worker is killed in the middle of an epoch, and the epoch goes on with the same batches."""

import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import asyncloader as al

folder = Path(tempfile.mkdtemp())
with al.ShardWriter(folder / "train-{:02d}.jsonl", samples_per_shard=100) as writer:
    for number in range(400):
        writer.write({"number": number})


def collate(samples: list[dict[str, Any]]) -> tuple[list[int], int]:
    return [sample["number"] for sample in samples], os.getpid()


def train(dataset: al.Dataset, kill_at: int | None = None) -> tuple[list[list[int]], int]:
    loader = al.DataLoader(dataset, batch_size=5, num_workers=2, collate_fn=collate)
    batches = []
    for numbers, worker in loader:
        batches.append(numbers)
        if len(batches) == kill_at:
            os.kill(worker, signal.SIGKILL)
    return batches, loader.statistics.worker_restarts


shards = al.from_urls(folder / "train-*.jsonl")
undisturbed, _ = train(shards.shuffle(100, seed=0))
batches, restarts = train(shards.shuffle(100, seed=0), kill_at=20)
print(f"{restarts} worker replaced, {len(batches)} batches, the same: {batches == undisturbed}")


def crash_at_77(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["number"] == 77:
        os.kill(os.getpid(), signal.SIGSEGV)  # as broken native code does
    return sample


try:
    train(shards.map(crash_at_77))
except al.WorkerDiedError as error:
    print(f"{error.shard} from sample {error.sample} on: {error}")
