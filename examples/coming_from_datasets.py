"""The same Parquet files by Hugging Face's datasets, streamed, and by asyncloader."""

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import asyncloader as al


def write_corpus(folder):
    for shard in range(4):
        numbers = range(50 * shard, 50 * shard + 50)
        rows = {"id": numbers, "tokens": [[n] * 8 for n in numbers], "notes": ["unused"] * 50}
        pq.write_table(pa.table(rows), folder / f"train-{shard:05d}.parquet")


def negate(row):
    return {**row, "tokens": -np.asarray(row["tokens"])}


def is_wanted(row):
    return row["id"] % 3 != 0


def theirs(folder):
    from datasets import load_dataset
    from torch.utils.data import DataLoader

    files = f"{folder}/train-*.parquet"
    dataset = (
        load_dataset("parquet", data_files=files, split="train", streaming=True, columns=["id", "tokens"])
        .shuffle(seed=0, buffer_size=100)
        .filter(is_wanted)
        .map(negate)
        .with_format("torch")
    )
    return DataLoader(dataset, batch_size=16, num_workers=2)


def ours(folder):
    dataset = (
        al.from_urls(f"{folder}/train-*.parquet", columns=["id", "tokens"])
        .shuffle(100, seed=0)
        .filter(is_wanted)
        .map(negate)
    )
    return al.DataLoader(dataset, batch_size=16, num_workers=2)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        write_corpus(Path(name))
        read = []
        for loader in theirs, ours:
            batches = list(loader(name))
            pairs = [pair for batch in batches for pair in zip(batch["id"], batch["tokens"], strict=True)]
            read.append(sorted((int(number), tokens.tolist()) for number, tokens in pairs))
        assert read[0] == read[1]
        print(f"{len(read[1])} samples, the same")
