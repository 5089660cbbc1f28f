"""Train in a Slurm job, with a rank in each task, and go on where it was when the job is queued again.

    sbatch examples/slurm.sh /scratch/run

The batch script is examples/slurm.sh. The shards are dealt to eight lanes, so that 1, 2, 4 and 8 tasks can
share them: a job that comes back with fewer of them goes on all the same.
"""

import argparse
import os
import signal
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import asyncloader as al

SAMPLES, LANES, BATCH_SIZE, STEPS_PER_CHECKPOINT = 512, 8, 8, 4


def write_corpus(folder: Path) -> None:
    """Points of a line with a slope of 3."""
    if list(folder.glob("train-*.jsonl")):
        return  # written when the job began
    with al.ShardWriter(folder / "train-{:02d}.jsonl", samples_per_shard=SAMPLES // LANES) as writer:
        for number in range(SAMPLES):
            writer.write({"number": number, "x": [number / SAMPLES], "y": [3 * number / SAMPLES]})


def make_tensors(sample: dict[str, Any]) -> dict[str, Any]:
    return {"number": sample["number"], "x": torch.tensor(sample["x"]), "y": torch.tensor(sample["y"])}


def save(path: Path, step: int, model: nn.Module, loader: al.DataLoader[Any]) -> None:
    states: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(states, loader.state_dict())
    if dist.get_rank() == 0:
        checkpoint = {"step": step, "model": model.state_dict(), "loader": al.merge_states(states)}
        torch.save(checkpoint, path.with_suffix(".new"))
        path.with_suffix(".new").rename(path)  # so that one that is cut short replaces none


def train(folder: Path, stop_at: int | None) -> None:
    dataset = al.from_urls(str(folder / "train-{00..07}.jsonl")).shuffle(32, seed=0).map(make_tensors)
    loader = al.DataLoader(dataset, batch_size=BATCH_SIZE, lanes=LANES, audit=folder / "audit")
    if dist.get_rank() == 0:
        print(loader, flush=True)  # ... rank 0 of 8 (torch.distributed), seed=0
    model = DistributedDataParallel(nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    path, step = folder / "checkpoint.pt", 0
    if path.exists():  # the job was queued again
        saved = torch.load(path, weights_only=True)
        model.load_state_dict(saved["model"])
        loader.load_state_dict(saved["loader"])
        step = saved["step"]

    for batch in loader:
        loss = nn.functional.mse_loss(model(batch["x"]), batch["y"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % STEPS_PER_CHECKPOINT == 0:
            save(path, step, model, loader)
        if step == stop_at:
            os.kill(os.getpid(), signal.SIGKILL)  # as a node that fails
    loader.close()
    if dist.get_rank() == 0:
        print(f"{step} steps with {dist.get_world_size()} ranks", flush=True)


parser = argparse.ArgumentParser(description="Train in a Slurm job.")
parser.add_argument("--folder", type=Path, required=True, help="which all nodes see")
parser.add_argument("--stop-at", type=int, help="the step in which all tasks are killed")
arguments = parser.parse_args()
if "SLURM_PROCID" not in os.environ:
    parser.error("run it in a Slurm job: sbatch examples/slurm.sh /scratch/run")

rank, world_size = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
dist.init_process_group("gloo", rank=rank, world_size=world_size)  # on GPUs "nccl"
if rank == 0:
    arguments.folder.mkdir(parents=True, exist_ok=True)
    write_corpus(arguments.folder)
dist.barrier()
train(arguments.folder, arguments.stop_at)
dist.barrier()
if rank == 0:
    for verdict in al.tools.verify_audit(arguments.folder / "audit"):
        print(verdict, flush=True)
dist.barrier()
dist.destroy_process_group()
