"""Keep shards on local disk: the second epoch asks the server for nothing, and damage is found."""

import tempfile
from pathlib import Path

import asyncloader as al
from asyncloader import testing

folder, cache = Path(tempfile.mkdtemp()), Path(tempfile.mkdtemp())
with al.ShardWriter(folder / "train-{:03d}.tar", samples_per_shard=25) as writer:
    for number in range(100):
        writer.write({"__key__": f"{number:04d}", "txt": f"sample {number}"})

with testing.serve(folder) as server:
    shards = f"{server.url}/train-{{000..003}}.tar"
    dataset = al.from_urls(shards, cache_dir=cache, cache_limit="200 GB")
    loader = al.DataLoader(dataset, batch_size=10, num_workers=2)
    for epoch in range(2):
        samples = sum(len(batch["txt"]) for batch in loader)
        print(f"epoch {epoch}: {samples} samples, {loader.statistics.network.requests} requests")

    # Another run of the program: each shard is verified before it is used again.
    again = al.DataLoader(al.from_urls(shards, cache_dir=cache), batch_size=10)
    samples = sum(len(batch["txt"]) for batch in again)
    print(f"next run: {samples} samples, {again.statistics.network.requests} requests")

    # A disk that has lost a bit.
    kept = sorted(cache.glob("asyncloader-v1/shards/*/*"))
    content = bytearray(kept[0].read_bytes())
    content[-1] ^= 1
    kept[0].write_bytes(content)

    bad = al.cache.verify_cache(cache)
    print(f"{len(bad)} of {len(kept)} shards were damaged")
    samples = sum(len(batch["txt"]) for batch in loader)
    print(f"after that: {samples} samples")
