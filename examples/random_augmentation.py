"""Augment at random, alike for any number of workers and after a resume."""

import tempfile
from pathlib import Path
from typing import Any

import torch

import asyncloader as al

folder = Path(tempfile.mkdtemp())
with al.ShardWriter(folder / "train-{:02d}.jsonl", samples_per_shard=20) as writer:
    for number in range(120):
        writer.write({"values": list(range(number, number + 8))})


def crop(sample: dict[str, Any]) -> dict[str, Any]:
    rng = al.sample_rng()  # of this sample: a numpy.random.Generator
    first = int(rng.integers(len(sample["values"]) - 4))
    return {**sample, "values": sample["values"][first : first + 4]}


async def add_noise(sample: dict[str, Any]) -> dict[str, Any]:
    generator = al.sample_rng(library="torch")  # or "random"
    values = torch.tensor(sample["values"], dtype=torch.float32)
    return {**sample, "values": values + torch.randn(len(values), generator=generator)}


dataset = (
    al.from_urls(str(folder / "train-{00..05}.jsonl"))
    .shuffle(32, seed=0)
    .map(crop, concurrency=4)
    .map(add_noise, concurrency=8)
)


def load(num_workers: int, state: dict[str, Any] | None = None, stop: int | None = None) -> tuple[Any, Any]:
    """Batches up to ``stop``, and the state there."""
    batches = []
    with al.DataLoader(dataset, batch_size=10, lanes=3, num_workers=num_workers) as loader:
        if state is not None:
            loader.load_state_dict(state)
        for batch in loader:
            batches.append(batch["values"].tolist())
            if len(batches) == stop:
                break
        return batches, loader.state_dict()


whole, _ = load(num_workers=0)
assert load(num_workers=1)[0] == load(num_workers=3)[0] == whole
before, state = load(num_workers=3, stop=5)
after, _ = load(num_workers=1, state=state)
assert before + after == whole
print("cropped and noised alike with 0, 1 and 3 workers, and after a break")
