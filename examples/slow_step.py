"""Find out what a loop waits for: the shards, a function of the recipe, or the making of batches."""

import tempfile
import time
from pathlib import Path

import asyncloader as al
from asyncloader import testing

folder = Path(tempfile.mkdtemp())
with al.ShardWriter(folder / "train-{:02d}.tar", max_samples=50) as writer:
    for number in range(400):
        writer.write({"__key__": f"{number:05d}", "txt": f"sample {number}"})


def decode(sample):
    time.sleep(0.003)  # as an image might take
    return {"number": int(sample["txt"].split()[1])}


def measure(dataset, collate_fn=None):
    loader = al.DataLoader(dataset, batch_size=32, collate_fn=collate_fn)
    for _ in loader:
        pass
    return loader.statistics.elapsed_s


with testing.serve(folder, latency_s=0.01) as server:
    shards = al.from_urls(f"{server.url}/train-{{00..07}}.tar")
    whole = al.DataLoader(shards.map(decode), batch_size=32)
    for _ in whole:
        pass  # instead of training
    print(f"waited {whole.statistics.wait_share:.0%} of the time, {whole.statistics.network}")

    taken_s = {
        "shards alone": measure(shards, collate_fn=list),
        "with decode": measure(shards.map(decode), collate_fn=list),
        "with batches": measure(shards.map(decode)),
    }
    for what, seconds in taken_s.items():
        print(f"{what:14}{seconds:.2f} s")

assert taken_s["with decode"] > taken_s["shards alone"], "it is decode that the loop waits for"
