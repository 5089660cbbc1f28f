"""Train on several processes, stop in the middle, and go on from where the batches were.

    torchrun --nproc-per-node 2 examples/train_torchrun.py --folder /tmp/run --stop-after 10
    torchrun --nproc-per-node 2 examples/train_torchrun.py --folder /tmp/run

The loader takes rank and world size from the process group. Each rank has a state of its own; one
checkpoint holds them all. The shards are read from the folder, since a state names its shards by URL
and a web server made for an example has another port in each run.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import asyncloader as al

SHARDS, SAMPLES_PER_SHARD, BATCH_SIZE = 8, 64, 8


def write_corpus(folder: Path) -> None:
    """Points of a line with a slope of 3. The shards are equal, so that all ranks take as many steps."""
    if list(folder.glob("train-*.jsonl")):
        return  # written by the run that is being resumed
    with al.ShardWriter(folder / "train-{:02d}.jsonl", max_samples=SAMPLES_PER_SHARD) as writer:
        for number in range(SHARDS * SAMPLES_PER_SHARD):
            x = number / (SHARDS * SAMPLES_PER_SHARD)
            writer.write({"number": number, "x": [x], "y": [3 * x]})


def make_tensors(sample: dict[str, Any]) -> dict[str, Any]:
    return {"number": sample["number"], "x": torch.tensor(sample["x"]), "y": torch.tensor(sample["y"])}


def save(path: Path, model: nn.Module, loader: al.DataLoader[Any], seen: list[int]) -> None:
    """Gather what each rank must remember, and write it once."""
    everybody: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, {"loader": loader.state_dict(), "seen": seen})
    if dist.get_rank() == 0:
        torch.save({"model": model.state_dict(), "ranks": everybody}, path)
    dist.barrier()


def train(folder: Path, stop_after: int | None) -> None:
    checkpoint = folder / "checkpoint.pt"
    dataset = al.from_urls(str(folder / "train-{00..07}.jsonl")).shuffle(32, seed=0).map(make_tensors)
    loader = al.DataLoader(dataset, batch_size=BATCH_SIZE, num_workers=2)
    model = DistributedDataParallel(nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen: list[int] = []
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        mine = saved["ranks"][dist.get_rank()]
        loader.load_state_dict(mine["loader"])
        seen = mine["seen"]

    for step, batch in enumerate(loader, 1):
        loss = nn.functional.mse_loss(model(batch["x"]), batch["y"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen += batch["number"].tolist()
        if step == stop_after:
            save(checkpoint, model, loader, seen)
            break
    else:
        save(checkpoint, model, loader, [])  # the epoch is over; the next run begins the next one
    loader.close()
    report(step, seen)


def report(steps: int, seen: list[int]) -> None:
    """Say on rank 0 what all ranks have seen, in this run and in those it went on from."""
    everybody: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, seen)
    numbers = [number for ours in everybody for number in ours]
    duplicates = len(numbers) - len(set(numbers))
    if dist.get_rank() == 0:
        of = SHARDS * SAMPLES_PER_SHARD
        print(f"{steps} steps; seen {len(numbers)} of {of} samples, {duplicates} duplicates", flush=True)


parser = argparse.ArgumentParser(description="Train under torchrun.")
parser.add_argument("--folder", type=Path, help="where shards and checkpoint lie; temporary by default")
parser.add_argument("--stop-after", type=int, help="number of steps")
arguments = parser.parse_args()
if "RANK" not in os.environ:
    parser.error(f"run it with torchrun: torchrun --nproc-per-node 2 {' '.join(sys.argv)}")

dist.init_process_group("gloo")
with tempfile.TemporaryDirectory() as temporary:
    shared: list[Any] = [str(arguments.folder or temporary)]
    dist.broadcast_object_list(shared)
    folder = Path(shared[0])
    if dist.get_rank() == 0:
        folder.mkdir(parents=True, exist_ok=True)
        write_corpus(folder)
    dist.barrier()
    train(folder, arguments.stop_after)
    dist.barrier()
dist.destroy_process_group()
