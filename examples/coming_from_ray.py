"""The same Parquet files by Ray Data and by asyncloader, a batch of columns at a time."""

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

import asyncloader as al


def write_corpus(folder):
    for shard in range(4):
        numbers = np.arange(50 * shard, 50 * shard + 50)
        pq.write_table(pa.table({"id": numbers, "x": numbers / 2}), folder / f"train-{shard:05d}.parquet")


def scale(columns):
    return {**columns, "x": columns["x"] * 10}


def theirs(folder):
    import ray

    dataset = ray.data.read_parquet(str(folder)).map_batches(scale, batch_size=25)
    return dataset.iter_torch_batches(batch_size=16, prefetch_batches=2, local_shuffle_buffer_size=100)


def ours(folder):
    dataset = al.from_urls(f"{folder}/*.parquet").map_batches(scale, batch_size=25).shuffle(100, seed=0)
    return al.DataLoader(dataset, batch_size=16, num_workers=2)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        write_corpus(Path(name))
        read = []
        for loader in theirs, ours:
            batches = list(loader(Path(name)))
            both = torch.stack([torch.cat([one[field].double() for one in batches]) for field in ("id", "x")])
            read.append(both[:, both[0].argsort()])
        assert torch.equal(read[0], read[1])
        print(f"{read[1].shape[1]} samples, the same")
