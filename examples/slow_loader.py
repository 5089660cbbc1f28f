"""See what a loop waits for, and what to change."""

import tempfile
import time
from pathlib import Path

import asyncloader as al
from asyncloader import testing

folder = Path(tempfile.mkdtemp())
with al.ShardWriter(folder / "train-{:02d}.tar", samples_per_shard=50) as writer:
    for number in range(400):
        writer.write({"__key__": f"{number:05d}", "txt": f"sample {number}"})


def decode(sample):
    time.sleep(0.003)  # as an image might take
    return {"number": int(sample["txt"].split()[1])}


with testing.serve(folder, latency_s=0.01) as server:
    shards = al.from_urls(f"{server.url}/train-{{00..07}}.tar")

    loader = al.DataLoader(shards.map(decode), batch_size=32)
    for _ in loader:
        pass  # instead of training
    print(loader.report())

    assert loader.report().limit == "map(decode)"

    loader = al.DataLoader(shards.map(decode, concurrency=16), batch_size=32)
    for _ in loader:
        time.sleep(0.02)
    print(loader.report())
