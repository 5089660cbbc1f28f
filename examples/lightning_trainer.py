"""Train with Lightning's Trainer, be killed in the middle of an epoch, and go on.

    python examples/lightning_trainer.py --folder /tmp/run --die-at 13
    python examples/lightning_trainer.py --folder /tmp/run

The Trainer saves a checkpoint every fifth step, of which there are eight in an epoch, and the first run
is killed in its thirteenth. The second one goes on behind the tenth, in the second epoch, and prints the
losses that the first one would have come to. Under torchrun, both do so on several ranks.
"""

import argparse
import os
import signal
from pathlib import Path
from typing import Any

import lightning
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

import asyncloader as al

SAMPLES, BATCH_SIZE, EPOCHS = 64, 8, 3


def point(number: int) -> dict[str, Any]:
    """A point of a line with a slope of 3."""
    return {"x": [number / SAMPLES], "y": [3 * number / SAMPLES]}


def as_tensors(sample: dict[str, Any]) -> dict[str, Any]:
    return {name: torch.tensor(value) for name, value in sample.items()}


class RanksLoader(al.DataLoader[Any]):
    """A loader whose state is that of all ranks, since Lightning saves the state of rank 0 alone."""

    def state_dict(self) -> dict[str, Any]:
        states: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(states, super().state_dict())
        return al.merge_states(states)


class Points(lightning.LightningDataModule):
    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        self.options = options
        self.shards = options.folder / "shards"

    def prepare_data(self) -> None:  # on one rank
        if not self.shards.exists():
            with al.ShardWriter(self.shards / "train-{:02d}.jsonl", samples_per_shard=SAMPLES // 4) as writer:
                for number in range(SAMPLES):
                    writer.write(point(number))

    def train_dataloader(self) -> al.DataLoader[Any]:
        workers = self.options.workers
        if self.options.map_style:  # Lightning gives it a DistributedSampler, if there are several ranks
            points = [as_tensors(point(number)) for number in range(SAMPLES)]
            return al.DataLoader(points, BATCH_SIZE, shuffle=True, num_workers=workers)
        dataset = al.from_urls(str(self.shards / "train-{00..03}.jsonl")).shuffle(32, seed=0).map(as_tensors)
        if self.options.no_length:
            dataset = dataset.filter(lambda sample: True)  # nobody knows how many it keeps
        loader = RanksLoader if dist.is_initialized() else al.DataLoader
        return loader(dataset, BATCH_SIZE, num_workers=workers)


class Line(lightning.LightningModule):
    def __init__(self, die_at: int | None) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.die_at = die_at

    def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        if self.global_step + 1 == self.die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        loss = nn.functional.mse_loss(self.layer(batch["x"]), batch["y"])
        if self.global_rank == 0:
            print(f"step {self.global_step + 1}: loss {loss.item()}", flush=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.1)


def train(options: argparse.Namespace) -> None:
    lightning.seed_everything(0, verbose=False)
    saves = ModelCheckpoint(options.folder, "{step}", every_n_train_steps=options.save_steps, save_top_k=-1)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=int(os.environ.get("WORLD_SIZE", 1)),
        max_epochs=EPOCHS,
        callbacks=[saves],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=options.map_style,  # True, its default, leaves streams alone, too
    )
    saved = options.folder.glob("step=*.ckpt")
    last = max(saved, key=lambda path: int(path.stem.removeprefix("step=")), default=None)
    trainer.fit(Line(options.die_at), Points(options), ckpt_path=last)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train with Lightning's Trainer, be killed, and go on.")
    parser.add_argument("--folder", type=Path, required=True, help="where shards and checkpoints lie")
    parser.add_argument("--save-steps", type=int, default=5, help="from one checkpoint to the next")
    parser.add_argument("--die-at", type=int, help="the step in which the process is killed")
    parser.add_argument("--map-style", action="store_true", help="a map-style dataset, not a stream")
    parser.add_argument("--no-length", action="store_true", help="a stream that does not know its length")
    parser.add_argument("--workers", type=int, default=0, help="num_workers of the loader")
    train(parser.parse_args())
