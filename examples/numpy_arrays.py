"""Arrays of NumPy as shards: rows are samples, and each array of an archive is a field."""

import tempfile
from pathlib import Path

import numpy as np

import asyncloader as al

folder = Path(tempfile.mkdtemp())
rng = np.random.default_rng(0)
for number in range(4):  # as some other program has written them
    images = rng.integers(0, 256, (500, 28, 28), np.uint8)
    np.savez(
        folder / f"train-{number}.npz", image=images, label=images[:, 0, 0] % 10, noise=rng.random((500, 64))
    )
    np.save(folder / f"embeddings-{number}.npy", rng.random((500, 64), np.float32))

dataset = al.from_urls(str(folder / "train-*.npz"), columns=["image", "label"]).shuffle(1_000, seed=0)
for batch in al.DataLoader(dataset, batch_size=64):
    images, labels = batch["image"], batch["label"]  # (64, 28, 28) uint8, (64,) uint8
print(f"{tuple(images.shape)} {images.dtype}, {tuple(labels.shape)} {labels.dtype}")

vectors = al.from_urls(str(folder / "embeddings-*.npy")).rename(array="vector")
print(sum(len(batch["vector"]) for batch in al.DataLoader(vectors, batch_size=64)), "vectors")
