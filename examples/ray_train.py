"""Train with Ray Train on a cluster, lose a node, and go on with as many workers as there is room for.

    python examples/ray_train.py --folder /shared/run --workers 1 3 --die-at 9

The workers save a checkpoint every fourth step. In the ninth a whole node is killed. Ray Train starts the
workers anew on the nodes that are left, from the last checkpoint, and the audit proves that in each epoch
every sample came once. The folder is on storage that all nodes share. Without a cluster, all of it runs on
this machine, which is then the node that is killed: leave out --die-at.
"""

import argparse
import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import ray
import ray.train.torch
import torch
import torch.distributed as dist
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from torch import nn
from torch.utils.data import DistributedSampler

import asyncloader as al

SAMPLES, LANES, BATCH_SIZE, STEPS_PER_CHECKPOINT = 192, 12, 4, 4


def write_corpus(folder: Path) -> None:
    """Points of a line with a slope of 3."""
    if not folder.exists():
        with al.ShardWriter(folder / "train-{:02d}.jsonl", samples_per_shard=SAMPLES // LANES) as writer:
            for number in range(SAMPLES):
                writer.write({"x": [number / SAMPLES], "y": [3 * number / SAMPLES]})


def make_tensors(sample: dict[str, Any]) -> dict[str, Any]:
    return {"x": torch.tensor(sample["x"]), "y": torch.tensor(sample["y"])}


def make_loader(folder: Path, map_style: bool) -> al.DataLoader[Any]:
    """Takes rank and world size from the process group, which Ray Train has made."""
    if map_style:
        points = [*al.DataLoader(shards_of(folder), None, rank=0, world_size=1)]
        sampler: Any = DistributedSampler(points)  # type: ignore[arg-type]  # a list will do
        return al.DataLoader(points, BATCH_SIZE, sampler=sampler)
    dataset = shards_of(folder).shuffle(8, seed=0)
    return al.DataLoader(dataset, BATCH_SIZE, lanes=LANES, audit=folder / "audit")


def shards_of(folder: Path) -> al.Dataset:
    return al.from_urls(str(folder / "shards" / "train-{00..11}.jsonl")).map(make_tensors)


def train_loop(config: dict[str, Any]) -> None:
    """Runs in each worker of Ray Train."""
    loader = make_loader(Path(config["folder"]), config["map_style"])
    torch.manual_seed(0)
    net = nn.Linear(1, 1)
    progress: dict[str, Any] = {"epoch": 0, "losses": []}
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            saved = torch.load(Path(folder, "state.pt"), weights_only=True)
        net.load_state_dict(saved["net"])
        loader.load_state_dict(saved["loader"])  # the same in every worker; each takes its own part
        progress = saved["progress"]
    model = ray.train.torch.prepare_model(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    for epoch in range(progress["epoch"], config["epochs"]):
        loader.set_epoch(epoch)
        for batch in loader:
            step = len(progress["losses"]) + 1
            if step == config["die_at"]:
                kill_last_worker_s_node(Path(config["folder"], "killed"))
            loss = nn.functional.mse_loss(model(batch["x"]), batch["y"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            time.sleep(config["step_s"])
            progress = {"epoch": epoch, "losses": [*progress["losses"], loss.item()]}
            if step % STEPS_PER_CHECKPOINT == 0:
                report(progress, net, loader)
    report({**progress, "epoch": config["epochs"]}, net, loader)
    loader.close()


def report(progress: dict[str, Any], net: nn.Module, loader: al.DataLoader[Any]) -> None:
    """Report one checkpoint of all workers, which any number of workers can load."""
    states: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(states, loader.state_dict())
    metrics = {"loss": progress["losses"][-1], "loader": repr(loader)}
    if dist.get_rank() > 0:
        ray.train.report(metrics)
        return
    # With a map-style dataset all ranks have the same state, and it loads into as many ranks.
    state = al.merge_states(states) if loader.lanes else states[0]
    with tempfile.TemporaryDirectory() as folder:
        saved = {"progress": progress, "net": net.state_dict(), "loader": state}
        torch.save(saved, Path(folder, "state.pt"))
        ray.train.report(metrics, checkpoint=Checkpoint.from_directory(folder))


def kill_last_worker_s_node(killed: Path) -> None:
    """Once: ``killed`` says that it was done."""
    if dist.get_rank() == dist.get_world_size() - 1 and not killed.exists():
        killed.touch()
        os.kill(os.getppid(), signal.SIGKILL)  # what Ray runs on each node is the parent of its workers
        os.kill(os.getpid(), signal.SIGKILL)


def main(options: argparse.Namespace) -> None:
    least, most = options.workers
    workers: Any = (least, most) if least < most else most
    write_corpus(options.folder / "shards")
    trainer = ray.train.torch.TorchTrainer(
        train_loop,
        train_loop_config={
            "folder": str(options.folder),
            "map_style": options.map_style,
            "die_at": options.die_at,
            "epochs": options.epochs,
            "step_s": options.step_s,
        },
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(
            name="run",
            storage_path=str(options.folder),
            failure_config=FailureConfig(max_failures=options.max_failures),
        ),
    )
    result = trainer.fit()
    assert result.checkpoint is not None and result.metrics is not None
    with result.checkpoint.as_directory() as folder:
        saved = torch.load(Path(folder, "state.pt"), weights_only=True)
    for step, loss in enumerate(saved["progress"]["losses"], 1):
        print(f"step {step}: loss {loss}", flush=True)
    print(result.metrics["loader"], flush=True)
    if not options.map_style:
        for verdict in al.tools.verify_audit(options.folder / "audit"):
            print(verdict, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train with Ray Train, and go on when a node is lost.")
    parser.add_argument("--folder", type=Path, required=True, help="on storage that all nodes share")
    parser.add_argument("--workers", type=int, nargs=2, default=(1, 3), help="at least, and at most")
    parser.add_argument("--die-at", type=int, help="the step in which the last worker's node is killed")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--step-s", type=float, default=0.0, help="seconds that a step takes longer")
    parser.add_argument("--max-failures", type=int, default=3, help="how often to start anew; -1: always")
    parser.add_argument("--map-style", action="store_true", help="a map-style dataset, not a stream")
    main(parser.parse_args())
