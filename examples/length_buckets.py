"""Recordings of unequal length: batches out of buckets, and batches of as many as fit a number of frames.

Both keep what is padded small. Buckets have one batch size each; TokenBatches fill the same room each time.
"""

import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import asyncloader as al

RECORDINGS, RATE = 600, 100  # frames per second


def write_corpus(folder: Path) -> None:
    """Features of 1 to 20 seconds, 8 of them a frame, with the seconds beside them."""
    draw, rng = random.Random(0), np.random.default_rng(0)
    with al.ShardWriter(folder / "train-{:02d}.tar", samples_per_shard=100) as writer:
        for number in range(RECORDINGS):
            seconds = min(max(draw.lognormvariate(1.5, 0.6), 1.0), 20.0)
            frames = rng.standard_normal((int(seconds * RATE), 8), np.float32)
            writer.write({"__key__": f"clip-{number:04d}", "npy": frames, "json": {"seconds": seconds}})


def prepare(sample: dict[str, Any]) -> dict[str, Any]:
    return {"key": sample["__key__"], "frames": sample["npy"], "seconds": sample["json"]["seconds"]}


def padding_of(loader: al.DataLoader[Any]) -> str:
    """What a pass pads, and how large its batches are."""
    size = frames = largest = batches = 0
    for batch in loader:
        clips, width, _ = batch["frames"].shape
        size += clips * width
        frames += int(batch["frames_lengths"].sum())
        largest, batches = max(largest, clips * width), batches + 1
    assert loader.statistics.samples == RECORDINGS
    return f"{batches} batches of at most {largest:,} frames, {1 - frames / size:.0%} of them padding"


with tempfile.TemporaryDirectory() as folder:
    write_corpus(Path(folder))
    dataset = al.from_urls(f"{folder}/train-*.tar").decode().map(prepare).shuffle(200, seed=0)
    pad = al.Pad({"frames": 0.0})

    plain = al.DataLoader(dataset, batch_size=16, collate_fn=pad)
    print("batch_size=16:", padding_of(plain))

    buckets = al.Buckets(
        length="seconds",
        bounds=[3, 5, 8, 12],  # under 3 s, 3 to 5, 5 to 8, 8 to 12, and 12 s and more
        batch_sizes=[40, 24, 16, 10, 6],
        pool=600,
    )
    print("Buckets:", padding_of(al.DataLoader(dataset, batching=buckets, collate_fn=pad)))

    filled = al.TokenBatches(length="frames", max_tokens=12_000, max_samples=64, pool=600)
    loader = al.DataLoader(dataset, batching=filled)  # which pads "frames" by itself
    print("TokenBatches:", padding_of(loader))
