"""Read through a network that fails, see what it took, and say how long to try."""

import tempfile
from pathlib import Path

import asyncloader as al
from asyncloader import testing

folder = Path(tempfile.mkdtemp())
with al.ShardWriter(folder / "train-{:02d}.jsonl", samples_per_shard=50) as writer:
    for number in range(2000):
        writer.write({"number": number, "text": "word " * 20})

faults = [
    testing.CutAt(1000, probability=0.1),
    testing.Reset(3000, probability=0.1),
    testing.Status(503, retry_after=0.1, times=2, key="*.jsonl"),
]
# Once in a while a request takes a second instead of ten milliseconds.
latency = testing.Latency(0.01, stall_probability=0.02, stall_s=1.0)

with testing.serve(folder, faults, latency_s=latency, seed=1) as server:
    patient = al.NetworkPolicy(attempts=10, deadline_s=300, backoff_s=0.2)
    dataset = al.from_urls(f"{server.url}/train-{{00..39}}.jsonl", network=patient)
    loader = al.DataLoader(dataset, batch_size=100)
    numbers = [number for batch in loader for number in batch["number"].tolist()]
    print(loader.statistics.network)
assert numbers == list(range(2000)), "each sample once, in order"
print(f"{len(numbers)} samples, each once")

with testing.serve(folder, [testing.Status(503, key="*.jsonl")]) as server:
    hasty = al.NetworkPolicy(attempts=3, backoff_s=0.05)
    try:
        list(al.DataLoader(al.from_urls(f"{server.url}/train-00.jsonl", network=hasty)))
    except al.StoreError as error:
        print(error)
