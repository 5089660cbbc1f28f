"""A stream's lanes are read by Ray actors, and the batches are those of local workers."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import asyncloader as al


def decode(sample: dict[str, Any]) -> dict[str, Any]:
    return {"number": sample["number"], "pixels": np.full((64, 64), sample["number"], np.float32)}


def dataset(folder: Path) -> al.Dataset:
    return al.from_urls(f"{folder}/train-*.jsonl").map(decode).shuffle(100, seed=0)


def remote_loader(folder: Path) -> al.DataLoader[Any]:
    workers = al.RayWorkers(2, num_cpus=1)
    return al.DataLoader(dataset(folder), batch_size=20, workers=workers)


def local_loader(folder: Path) -> al.DataLoader[Any]:
    return al.DataLoader(dataset(folder), batch_size=20, num_workers=2)


if __name__ == "__main__":
    folder = Path(tempfile.mkdtemp())
    with al.ShardWriter(folder / "train-{:02d}.jsonl", samples_per_shard=100) as writer:
        for number in range(400):
            writer.write({"number": number})

    # The loader calls ray.init(), which finds the cluster, or starts one on this machine.
    remote = [batch["number"].tolist() for batch in remote_loader(folder)]
    local = [batch["number"].tolist() for batch in local_loader(folder)]
    print(f"{len(remote)} batches by Ray actors, the same as by local workers: {remote == local}")
