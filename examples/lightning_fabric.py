"""Train with Lightning's Fabric, be killed in the middle of an epoch, and go on.

    python examples/lightning_fabric.py --folder /tmp/run --die-at 13
    python examples/lightning_fabric.py --folder /tmp/run

The loop saves a checkpoint every fifth step, of which there are eight in an epoch, and the first run is
killed in its thirteenth. The second one goes on behind the tenth, in the second epoch, and prints the
losses that the first one would have come to. Under torchrun, both do so on several ranks.
"""

import argparse
import os
import signal
from pathlib import Path
from typing import Any

import lightning
import torch
from torch import nn
from torch.utils.data import DistributedSampler

import asyncloader as al

SAMPLES, BATCH_SIZE, EPOCHS = 64, 8, 3


def point(number: int) -> dict[str, Any]:
    """A point of a line with a slope of 3."""
    return {"x": [number / SAMPLES], "y": [3 * number / SAMPLES]}


def as_tensors(sample: dict[str, Any]) -> dict[str, Any]:
    return {name: torch.tensor(value) for name, value in sample.items()}


def make_loader(folder: Path, options: argparse.Namespace) -> al.DataLoader[Any]:
    if options.map_style:
        points = [as_tensors(point(number)) for number in range(SAMPLES)]
        if torch.distributed.is_initialized():
            sampler: Any = DistributedSampler(points)  # type: ignore[arg-type]  # a list will do
            return al.DataLoader(points, BATCH_SIZE, sampler=sampler, num_workers=options.workers)
        return al.DataLoader(points, BATCH_SIZE, shuffle=True, num_workers=options.workers)
    dataset = al.from_urls(str(folder / "train-{00..03}.jsonl")).shuffle(32, seed=0).map(as_tensors)
    return al.DataLoader(dataset, BATCH_SIZE, num_workers=options.workers)


def write_corpus(folder: Path) -> None:
    if not folder.exists():
        with al.ShardWriter(folder / "train-{:02d}.jsonl", samples_per_shard=SAMPLES // 4) as writer:
            for number in range(SAMPLES):
                writer.write(point(number))


def train(options: argparse.Namespace) -> None:
    fabric = lightning.Fabric(accelerator="cpu", devices=int(os.environ.get("WORLD_SIZE", 1)))
    fabric.launch()
    fabric.seed_everything(0, verbose=False)
    with fabric.rank_zero_first():
        write_corpus(options.folder / "shards")
    net = nn.Linear(1, 1)
    model, optimizer = fabric.setup(net, torch.optim.Adam(net.parameters(), lr=0.1))
    loader = make_loader(options.folder / "shards", options)  # not set up by Fabric

    done = {"epoch": 0, "step": 0}
    last = max(options.folder.glob("step-*"), key=lambda path: int(path.name[5:]), default=None)
    if last is not None:
        saved = fabric.load(last / "state.ckpt", {"model": model, "optimizer": optimizer})
        done = saved["done"]
        loader.load_state_dict(saved["loaders"][fabric.global_rank])

    for epoch in range(done["epoch"], EPOCHS):
        loader.set_epoch(epoch)
        for batch in loader:
            batch = fabric.to_device(batch)
            if done["step"] + 1 == options.die_at:
                os.kill(os.getpid(), signal.SIGKILL)
            loss = nn.functional.mse_loss(model(batch["x"]), batch["y"])
            optimizer.zero_grad()
            fabric.backward(loss)
            optimizer.step()
            done = {"epoch": epoch, "step": done["step"] + 1}
            fabric.print(f"step {done['step']}: loss {loss.item()}", flush=True)
            if done["step"] % options.save_steps == 0:
                save(fabric, options.folder, done, loader, model=model, optimizer=optimizer)
    loader.close()


def save(fabric: lightning.Fabric, folder: Path, done: dict[str, int], loader: Any, **parts: Any) -> None:
    """One checkpoint, with the position of each rank; under its name once it is whole."""
    states: list[Any] = [loader.state_dict()] * fabric.world_size
    if fabric.world_size > 1:
        torch.distributed.all_gather_object(states, loader.state_dict())
    begun = folder / "begun"
    fabric.save(begun / "state.ckpt", {**parts, "done": done, "loaders": states})
    if fabric.is_global_zero:
        begun.rename(folder / f"step-{done['step']}")
    fabric.barrier()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train with Lightning's Fabric, be killed, and go on.")
    parser.add_argument("--folder", type=Path, required=True, help="where shards and checkpoints lie")
    parser.add_argument("--save-steps", type=int, default=5, help="from one checkpoint to the next")
    parser.add_argument("--die-at", type=int, help="the step in which the process is killed")
    parser.add_argument("--map-style", action="store_true", help="a map-style dataset, not a stream")
    parser.add_argument("--workers", type=int, default=0, help="num_workers of the loader")
    train(parser.parse_args())
