"""The same tar shards by WebDataset and by asyncloader."""

import tempfile
from pathlib import Path

import numpy as np

import asyncloader as al


def write_corpus(folder):
    with al.ShardWriter(folder / "train-{:06d}.tar", samples_per_shard=50) as writer:
        for number in range(200):
            features = np.full(number % 5 + 1, number, np.float32)
            writer.write({"__key__": f"clip-{number:04d}", "npy": features, "cls": number % 10})


def double(sample):
    return {**sample, "npy": 2 * sample["npy"]}


def theirs(folder):
    import webdataset as wds

    dataset = (
        wds.WebDataset(f"{folder}/train-{{000000..000003}}.tar", shardshuffle=100, seed=0)
        .shuffle(100)
        .decode()
        .map(double)
    )
    return wds.WebLoader(dataset, batch_size=None, num_workers=2)


def ours(folder):
    dataset = (
        al.from_urls(f"{folder}/train-{{000000..000003}}.tar")
        .shuffle(100, seed=0)  # the shards too
        .decode()
        .map(double)
    )
    return al.DataLoader(dataset, batch_size=None, num_workers=2)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        write_corpus(Path(name))
        read = []
        for loader in theirs, ours:
            samples = sorted(loader(name), key=lambda sample: sample["__key__"])
            read.append([(one["__key__"], np.asarray(one["npy"]).tolist(), one["cls"]) for one in samples])
        assert read[0] == read[1]
        print(f"{len(read[1])} samples, the same")
