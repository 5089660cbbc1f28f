"""Train with tensor and data parallelism over torch's DeviceMesh, be killed, and go on.

    torchrun --nproc-per-node 4 examples/tensor_parallel.py --folder /tmp/run --tp 2 --die-at 7
    torchrun --nproc-per-node 4 examples/tensor_parallel.py --folder /tmp/run --tp 2

The processes that share the weights of a layer must be given the same batches, and those that share the data
different ones; ``mesh=mesh["dp"]`` says which are which. The second run goes on from the last checkpoint
of the first, with the losses that it would have had. ``--map-style`` reads the samples by their index; a
stream may also go on with another ``--tp``, and so another number of data-parallel ranks.
"""

import argparse
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.optim import Optimizer
from torch.utils.data import Dataset, DistributedSampler

import asyncloader as al

SAMPLES, EPOCHS, LANES, BATCH_SIZE, STEPS_PER_CHECKPOINT = 96, 2, 4, 4, 4


class Regression(nn.Module):
    """Gives the loss, of points of a line with a slope of 3."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(1, 8), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(self.down(torch.tanh(self.up(x))), y)


def make_model(mesh: DeviceMesh) -> nn.Module:
    torch.manual_seed(0)
    model = Regression()
    parallelize_module(model, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    return model


def make_tensors(sample: dict[str, Any]) -> dict[str, Any]:
    return {"number": sample["number"], "x": torch.tensor(sample["x"]), "y": torch.tensor(sample["y"])}


def make_stream(folder: Path, mesh: DeviceMesh) -> al.DataLoader[Any]:
    dataset = al.from_urls(str(folder / "train-{0..3}.jsonl")).shuffle(16, seed=0).map(make_tensors)
    return al.DataLoader(dataset, batch_size=BATCH_SIZE, lanes=LANES, mesh=mesh["dp"], audit=folder / "audit")


class Points(Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, number: int) -> dict[str, Any]:
        x = number / SAMPLES
        return {"number": number, "x": torch.tensor([x]), "y": torch.tensor([3 * x])}


def make_map_style(mesh: DeviceMesh) -> al.DataLoader[Any]:
    dp = mesh["dp"]
    sampler: DistributedSampler[Any] = DistributedSampler(
        Points(), num_replicas=dp.size(), rank=dp.get_local_rank(), seed=0
    )
    return al.DataLoader(Points(), batch_size=BATCH_SIZE, sampler=sampler, mesh=dp)


def state_of(loader: al.DataLoader[Any]) -> str:
    """One state for all: replicas save the same, and of a DistributedSampler all ranks do."""
    states: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(states, loader.state_dict())
    return json.dumps(states[0] if isinstance(loader.dataset, Points) else al.merge_states(states))


def save(
    path: Path, at: dict[str, int], model: nn.Module, optimizer: Optimizer, loader: al.DataLoader[Any]
) -> None:
    weights, moments = get_state_dict(model, optimizer)
    state = {"at": at, "model": weights, "optimizer": moments, "loader": state_of(loader)}
    draft = path / f"{at['step']:04}.new"
    dcp.save(state, checkpoint_id=draft)
    if dist.get_rank() == 0:
        draft.rename(draft.with_suffix(""))  # so that one that is cut short does not count


def load(path: Path, model: nn.Module, optimizer: Optimizer, loader: al.DataLoader[Any]) -> Any:
    """Go on from a checkpoint, of whatever layout; gives its step and epoch."""
    weights, moments = get_state_dict(model, optimizer)
    at = {"step": 0, "epoch": 0}
    state: dict[str, Any] = {"at": at, "model": weights, "optimizer": moments, "loader": ""}
    dcp.load(state, checkpoint_id=path)
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
    loader.load_state_dict(json.loads(state["loader"]))
    return state["at"]


def train(folder: Path, mesh: DeviceMesh, map_style: bool, die_at: int | None) -> None:
    model = make_model(mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    loader = make_map_style(mesh) if map_style else make_stream(folder, mesh)
    checkpoints, at = folder / "checkpoints", {"step": 0, "epoch": 0}
    if saved := sorted(checkpoints.glob("????")):
        at = load(saved[-1], model, optimizer, loader)

    step = at["step"]
    for epoch in range(at["epoch"], EPOCHS):
        loader.set_epoch(epoch)
        for batch in loader:
            loss = model(batch["x"], batch["y"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            report(step, loss.detach(), batch["number"], mesh)
            if step % STEPS_PER_CHECKPOINT == 0:
                save(checkpoints, {"step": step, "epoch": epoch}, model, optimizer, loader)
            if step == die_at:
                os.kill(os.getpid(), signal.SIGKILL)
    loader.close()


def report(step: int, loss: torch.Tensor, numbers: torch.Tensor, mesh: DeviceMesh) -> None:
    """Say what the data-parallel ranks were trained on in this step, and see that replicas were alike."""
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, (mesh["dp"].get_local_rank(), numbers.tolist(), loss.item()))
    by_rank = {rank: (numbers, loss) for rank, numbers, loss in told}
    assert all(by_rank[rank] == (numbers, loss) for rank, numbers, loss in told), "replicas differ"
    if dist.get_rank() == 0:
        mean = sum(loss for _, loss in by_rank.values()) / len(by_rank)
        read = sorted(number for numbers, _ in by_rank.values() for number in numbers)
        print(f"step {step}: loss {mean:.6f} of samples {read}", flush=True)


def write_corpus(folder: Path) -> None:
    if list(folder.glob("train-*.jsonl")):
        return  # written by the run that is being resumed
    with al.ShardWriter(folder / "train-{}.jsonl", samples_per_shard=SAMPLES // 4) as writer:
        for number in range(SAMPLES):
            writer.write({"number": number, "x": [number / SAMPLES], "y": [3 * number / SAMPLES]})


parser = argparse.ArgumentParser(description="Train with tensor and data parallelism, and go on.")
parser.add_argument("--folder", type=Path, required=True, help="where shards and checkpoints lie")
parser.add_argument("--tp", type=int, default=2, help="processes that share the weights of a layer")
parser.add_argument("--map-style", action="store_true", help="read samples by their index")
parser.add_argument("--die-at", type=int, help="the step in which all processes are killed")
arguments = parser.parse_args()
if "RANK" not in os.environ:
    parser.error(f"run it with torchrun: torchrun --nproc-per-node 4 {' '.join(sys.argv)}")

dist.init_process_group("gloo")
processes = dist.get_world_size()
layout = (processes // arguments.tp, arguments.tp)
device_mesh = init_device_mesh("cpu", layout, mesh_dim_names=("dp", "tp"))
if dist.get_rank() == 0:
    (arguments.folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    write_corpus(arguments.folder)
dist.barrier()
train(arguments.folder, device_mesh, arguments.map_style, arguments.die_at)
dist.barrier()
if dist.get_rank() == 0 and not arguments.map_style:
    for verdict in al.tools.verify_audit(arguments.folder / "audit"):
        print(verdict, flush=True)
dist.destroy_process_group()
