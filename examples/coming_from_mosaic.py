"""The same samples by Mosaic Streaming, out of MDS shards, and by asyncloader, out of tar shards."""

import tempfile

import numpy as np
import torch

import asyncloader as al

SAMPLES = [{"id": number, "tokens": np.arange(number, number + 8)} for number in range(200)]


def theirs(folder):
    from streaming import MDSWriter, StreamingDataLoader, StreamingDataset

    columns = {"id": "int", "tokens": "ndarray:int64"}
    with MDSWriter(out=f"{folder}/mds", columns=columns, size_limit=4096) as writer:
        for sample in SAMPLES:
            writer.write(sample)

    dataset = StreamingDataset(local=f"{folder}/mds", batch_size=16, shuffle=True, shuffle_seed=0)
    return StreamingDataLoader(dataset, batch_size=16, num_workers=2)


def ours(folder):
    with al.ShardWriter(f"{folder}/train-{{:05d}}.tar", shard_size=4096) as writer:
        for number, sample in enumerate(SAMPLES):
            writer.write(
                {"__key__": f"{number:08d}", "id.index": sample["id"], "tokens.npy": sample["tokens"]}
            )

    dataset = (
        al.from_urls(f"{folder}/train-*.tar")
        .shuffle(1000, seed=0)
        .decode()
        .rename({"id.index": "id", "tokens.npy": "tokens"})
    )
    return al.DataLoader(dataset, batch_size=16, num_workers=2)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        read = []
        for make in theirs, ours:
            loader = make(name)
            batches = list(loader)
            identities = torch.cat([batch["id"] for batch in batches])
            order = identities.argsort()
            read.append((identities[order].tolist(), torch.cat([one["tokens"] for one in batches])[order]))
            assert identities.tolist() != sorted(identities.tolist())
        assert read[0][0] == read[1][0] and torch.equal(read[0][1], read[1][1])
        print(f"{len(read[1][0])} samples, the same")
