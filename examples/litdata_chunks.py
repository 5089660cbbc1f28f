"""Chunks that LitData's ``optimize`` has written, read as they are: by asyncloader, and by LitData itself."""

import tempfile

import numpy as np
import torch

import asyncloader as al


def make_sample(number):
    return {"image": np.full((8, 8, 3), number % 256, np.uint8), "label": number % 10, "id": number}


def tokenize(number):
    yield torch.arange(number * 100, number * 100 + 90, dtype=torch.int32)


def write(folder):
    from litdata import TokensLoader, optimize

    optimize(
        make_sample, inputs=list(range(500)), output_dir=f"{folder}/images", chunk_size=60, num_workers=1
    )
    optimize(
        tokenize,
        inputs=list(range(200)),
        output_dir=f"{folder}/tokens",
        chunk_bytes="16KB",
        item_loader=TokensLoader(),
        num_workers=1,
    )


def images(folder):
    dataset = al.from_litdata(f"{folder}/images").shuffle(1000, seed=0)
    loader = al.DataLoader(dataset, batch_size=16)
    seen = []
    for batch in loader:
        seen += batch["id"].tolist()
    print(f"{len(loader)} batches, images {tuple(batch['image'].shape)}, each once: {len(set(seen)) == 500}")


def tokens(folder):
    dataset = al.from_litdata(f"{folder}/tokens", block_size=129).shuffle(1000, seed=0)
    loader = al.DataLoader(dataset, batch_size=8)
    for batch in loader:
        inputs, labels = batch["tokens"][:, :-1], batch["tokens"][:, 1:]
    print(f"{len(loader)} batches of tokens, {tuple(inputs.shape)} {inputs.dtype}, {tuple(labels.shape)}")


def theirs(folder):
    from litdata import StreamingDataLoader, StreamingDataset

    dataset = StreamingDataset(f"{folder}/images", shuffle=True, seed=0)
    return StreamingDataLoader(dataset, batch_size=16, num_workers=2)


def ours(folder):
    dataset = al.from_litdata(f"{folder}/images").shuffle(1000, seed=0)
    return al.DataLoader(dataset, batch_size=16, num_workers=2)


def in_order(loader):
    batches = list(loader)
    order = torch.cat([batch["id"] for batch in batches]).argsort()
    return torch.cat([batch["image"] for batch in batches])[order]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        write(name)
        images(name)
        tokens(name)
        read = in_order(ours(name))
        assert torch.equal(read, in_order(theirs(name)))
        print(f"{len(read)} samples, the same")
