"""Write a timeline of a pass, to look at in Perfetto."""

import json
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
    time.sleep(0.002)  # as an image might take
    return {"number": int(sample["txt"].split()[1])}


path = folder / "run.json"
with testing.serve(folder, latency_s=0.01) as server:
    shards = al.from_urls(f"{server.url}/train-{{00..07}}.tar")

    loader = al.DataLoader(shards.map(decode), batch_size=32, num_workers=2, trace=path)
    for _ in loader:
        time.sleep(0.01)  # instead of training

run = json.loads(path.read_text())
print(len(run["traceEvents"]), "events")
print("\n".join(run["asyncloader"]["report"]["lines"]))

assert {event["name"] for event in run["traceEvents"]} >= {"training step", "map(decode)", "train-00.tar"}
