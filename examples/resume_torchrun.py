"""Train on several processes, be killed, and go on with another number of them.

    torchrun --nproc-per-node 4 examples/resume_torchrun.py --folder /tmp/run --die-at 9
    torchrun --nproc-per-node 2 examples/resume_torchrun.py --folder /tmp/run

The first run saves a checkpoint every fourth step and is killed in the ninth. The second one goes on from
the last checkpoint: what was trained on after it is lost with the weights, and comes again. The shards are
dealt to four lanes, so that 1, 2 and 4 ranks can share them. In the end the audit, to which every rank of
both runs has appended what it delivered, proves the epoch; so does

    asyncloader audit /tmp/run/audit
"""

import argparse
import os
import signal
import sys
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import asyncloader as al

SAMPLES, LANES, BATCH_SIZE, STEPS_PER_CHECKPOINT = 512, 4, 8, 4


def write_corpus(folder: Path) -> None:
    """Points of a line with a slope of 3. The shards are equal, so that all ranks take as many steps."""
    if list(folder.glob("train-*.jsonl")):
        return  # written by the run that is being resumed
    with al.ShardWriter(folder / "train-{:02d}.jsonl", samples_per_shard=SAMPLES // 8) as writer:
        for number in range(SAMPLES):
            writer.write({"number": number, "x": [number / SAMPLES], "y": [3 * number / SAMPLES]})


def make_tensors(sample: dict[str, Any]) -> dict[str, Any]:
    return {"number": sample["number"], "x": torch.tensor(sample["x"]), "y": torch.tensor(sample["y"])}


def gather(mine: Any) -> list[Any]:
    """What each rank gives, on every rank."""
    everybody: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, mine)
    return everybody


def save(path: Path, model: nn.Module, loader: al.DataLoader[Any], seen: list[int]) -> None:
    """One checkpoint for all ranks, which any number of ranks can load."""
    states, numbers = gather(loader.state_dict()), gather(seen)
    if dist.get_rank() == 0:
        merged = al.merge_states(states)
        checkpoint = {"model": model.state_dict(), "loader": merged, "seen": [*chain(*numbers)]}
        torch.save(checkpoint, path.with_suffix(".new"))
        path.with_suffix(".new").rename(path)  # so that one that is cut short replaces none


def train(folder: Path, die_at: int | None) -> None:
    path = folder / "checkpoint.pt"
    dataset = al.from_urls(str(folder / "train-{00..07}.jsonl")).shuffle(32, seed=0).map(make_tensors)
    loader = al.DataLoader(dataset, batch_size=BATCH_SIZE, lanes=LANES, audit=folder / "audit")
    model = DistributedDataParallel(nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen: list[int] = []
    if path.exists():
        saved = torch.load(path, weights_only=True)
        model.load_state_dict(saved["model"])
        loader.load_state_dict(saved["loader"])  # the same on every rank; each takes its own lanes
        if dist.get_rank() == 0:
            seen = saved["seen"]

    for step, batch in enumerate(loader, 1):
        loss = nn.functional.mse_loss(model(batch["x"]), batch["y"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen += batch["number"].tolist()
        if step % STEPS_PER_CHECKPOINT == 0:
            save(path, model, loader, seen)
        if step == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
    loader.close()
    report(step, seen)
    dist.barrier()  # all have written theirs
    if dist.get_rank() == 0:
        for verdict in al.tools.verify_audit(folder / "audit"):
            print(verdict, flush=True)


def report(steps: int, seen: list[int]) -> None:
    """Say on rank 0 what the model was trained on, in this run and in those it goes on from."""
    numbers = [*chain(*gather(seen))]
    if dist.get_rank() == 0:
        twice = len(numbers) - len(set(numbers))
        print(f"{steps} steps with a world size of {dist.get_world_size()}; trained on ", end="")
        print(f"{len(set(numbers))} of {SAMPLES} samples, {twice} of them twice", flush=True)


parser = argparse.ArgumentParser(description="Train under torchrun, and go on with another number of ranks.")
parser.add_argument("--folder", type=Path, required=True, help="where shards and checkpoint lie")
parser.add_argument("--die-at", type=int, help="the step in which all ranks are killed")
arguments = parser.parse_args()
if "RANK" not in os.environ:
    parser.error(f"run it with torchrun: torchrun --nproc-per-node 2 {' '.join(sys.argv)}")

dist.init_process_group("gloo")
if dist.get_rank() == 0:
    arguments.folder.mkdir(parents=True, exist_ok=True)
    write_corpus(arguments.folder)
dist.barrier()
train(arguments.folder, arguments.die_at)
dist.barrier()
dist.destroy_process_group()
