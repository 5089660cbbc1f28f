"""Chunks that LitData's ``optimize`` has written, read as they are."""

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


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        write(name)
        images(name)
        tokens(name)
