"""Train with accelerate, be killed in the middle of an epoch, and go on.

    python examples/accelerate_trainer.py --folder /tmp/run --die-at 13
    python examples/accelerate_trainer.py --folder /tmp/run

The loop saves a checkpoint every fifth step, of which there are eight in an epoch, and the first run is
killed in its thirteenth. The second one goes on behind the tenth, in the second epoch, and prints the
losses that the first one would have come to. By accelerate launch, both do so on several ranks.
"""

import argparse
import os
import signal
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object, set_seed
from torch import nn
from torch.utils.data import DistributedSampler

import asyncloader as al

SAMPLES, BATCH_SIZE, EPOCHS = 64, 8, 3


def point(number: int) -> dict[str, Any]:
    """A point of a line with a slope of 3."""
    return {"x": [number / SAMPLES], "y": [3 * number / SAMPLES]}


def as_tensors(sample: dict[str, Any]) -> dict[str, Any]:
    return {name: torch.tensor(value) for name, value in sample.items()}


def write_corpus(folder: Path) -> None:
    if not folder.exists():
        with al.ShardWriter(folder / "train-{:02d}.jsonl", samples_per_shard=SAMPLES // 4) as writer:
            for number in range(SAMPLES):
                writer.write(point(number))


def make_loader(folder: Path, options: argparse.Namespace, ranks: int) -> al.DataLoader[Any]:
    if options.map_style:
        points = [as_tensors(point(number)) for number in range(SAMPLES)]
        if ranks > 1:
            sampler: Any = DistributedSampler(points)  # type: ignore[arg-type]  # a list will do
            return al.DataLoader(points, BATCH_SIZE, sampler=sampler, num_workers=options.workers)
        return al.DataLoader(points, BATCH_SIZE, shuffle=True, num_workers=options.workers)
    dataset = al.from_urls(str(folder / "train-{00..03}.jsonl")).shuffle(32, seed=0).map(as_tensors)
    return al.DataLoader(dataset, BATCH_SIZE, num_workers=options.workers)


class Progress:
    """The progress of all ranks, since accelerate saves that of the first one for all."""

    def __init__(self, loader: al.DataLoader[Any], rank: int) -> None:
        self.loader, self.rank = loader, rank
        self.epoch = self.step = 0

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "step": self.step, "loaders": gather_object([self.loader.state_dict()])}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.step = state["epoch"], state["step"]
        self.loader.load_state_dict(state["loaders"][self.rank])


def train(options: argparse.Namespace) -> None:
    accelerator = Accelerator(cpu=True)
    set_seed(0)
    with accelerator.main_process_first():
        write_corpus(options.folder / "shards")
    net = nn.Sequential(nn.Linear(1, 16), nn.Dropout(0.1), nn.Linear(16, 1))
    model, optimizer = accelerator.prepare(net, torch.optim.Adam(net.parameters(), lr=0.01))
    loader = make_loader(options.folder / "shards", options, accelerator.num_processes)  # not prepared
    progress = Progress(loader, accelerator.process_index)
    accelerator.register_for_checkpointing(progress)
    last = max(options.folder.glob("step-*"), key=lambda path: int(path.name[5:]), default=None)
    if last is not None:
        accelerator.load_state(str(last))

    for epoch in range(progress.epoch, EPOCHS):
        loader.set_epoch(epoch)
        for batch in loader:
            if progress.step + 1 == options.die_at:
                os.kill(os.getpid(), signal.SIGKILL)
            x, y = batch["x"].to(accelerator.device), batch["y"].to(accelerator.device)
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            progress.epoch, progress.step = epoch, progress.step + 1
            if accelerator.is_main_process:
                print(f"step {progress.step}: loss {loss.item()}", flush=True)
            if progress.step % options.save_steps == 0:
                save(accelerator, options.folder, progress.step)
    loader.close()
    accelerator.end_training()


def save(accelerator: Accelerator, folder: Path, step: int) -> None:
    """One checkpoint of all ranks, under its name once it is whole."""
    accelerator.save_state(str(folder / "begun"))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        (folder / "begun").rename(folder / f"step-{step}")
    accelerator.wait_for_everyone()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train with accelerate, be killed, and go on.")
    parser.add_argument("--folder", type=Path, required=True, help="where shards and checkpoints lie")
    parser.add_argument("--save-steps", type=int, default=5, help="from one checkpoint to the next")
    parser.add_argument("--die-at", type=int, help="the step in which the process is killed")
    parser.add_argument("--map-style", action="store_true", help="a map-style dataset, not a stream")
    parser.add_argument("--workers", type=int, default=0, help="num_workers of the loader")
    train(parser.parse_args())
