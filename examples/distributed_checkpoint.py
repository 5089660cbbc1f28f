"""Save the loader with torch.distributed.checkpoint, beside the model; go on with any number of ranks.

    python examples/distributed_checkpoint.py
    torchrun --nproc-per-node 2 examples/distributed_checkpoint.py

A loader is ``Stateful``, and each rank's state has an entry of its own. So a checkpoint holds the states of
all ranks, as ``merge_states`` would put them together.
"""

import os
import tempfile
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn

import asyncloader as al


def save(folder: Path, model: nn.Module, loader: al.DataLoader[Any]) -> None:
    dcp.save({"model": model, "loader": loader}, checkpoint_id=folder)


def load(folder: Path, model: nn.Module, loader: al.DataLoader[Any]) -> None:
    """Load into the same number of ranks."""
    dcp.load({"model": model, "loader": loader}, checkpoint_id=folder)


def load_in_any_world(folder: Path, model: nn.Module, loader: al.DataLoader[Any]) -> None:
    """Into any number of ranks that divides the lanes: ask for the entries of all ranks that there were."""
    before: dict[str, Any] = {"loader": {"world_size": 0}}
    dcp.load(before, checkpoint_id=folder)
    state: dict[str, Any] = {"model": model, "loader": loader.state_dict()}
    state["loader"]["ranks"] = {str(rank): [] for rank in range(before["loader"]["world_size"])}
    dcp.load(state, checkpoint_id=folder)
    loader.load_state_dict(state["loader"])


def main(folder: Path) -> None:
    rank = dist.get_rank()
    if rank == 0:
        with al.ShardWriter(folder / "train-{}.jsonl", samples_per_shard=50) as writer:
            for number in range(400):
                writer.write({"number": number})
    dist.barrier()
    model = nn.Linear(1, 1)
    dataset = al.from_urls(str(folder / "train-{0..7}.jsonl")).shuffle(64, seed=0)
    loader = al.DataLoader(dataset, batch_size=10, lanes=4)
    batches = iter(loader)
    before = [next(batches)["number"].tolist() for _ in range(7)]
    save(folder / "checkpoint", model, loader)
    rest = [batch["number"].tolist() for batch in batches]

    for how in (load, load_in_any_world):
        resumed = al.DataLoader(dataset, batch_size=10, lanes=4)
        how(folder / "checkpoint", model, resumed)
        assert [batch["number"].tolist() for batch in resumed] == rest
    if rank == 0:
        print(f"{len(before)} batches before, the same {len(rest)} after", flush=True)
    dist.barrier()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        if "RANK" in os.environ:
            dist.init_process_group("gloo")
        else:
            dist.init_process_group("gloo", init_method=f"file://{temporary}/meeting", rank=0, world_size=1)
        shared = [temporary]
        dist.broadcast_object_list(shared)
        main(Path(shared[0]))
        dist.destroy_process_group()
