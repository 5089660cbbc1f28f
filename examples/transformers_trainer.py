"""Train with transformers' Trainer, be killed in the middle of an epoch, and go on.

    python examples/transformers_trainer.py --folder /tmp/run --die-at 13
    python examples/transformers_trainer.py --folder /tmp/run

The Trainer saves a checkpoint every fifth step, of which there are eight in an epoch, and the first run
is killed in its thirteenth. The second one goes on behind the tenth, in the second epoch, and prints the
losses that the first one would have come to. Under torchrun, both do so on several ranks.
"""

import argparse
import json
import os
import signal
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DistributedSampler
from transformers import Trainer, TrainerCallback, TrainingArguments

import asyncloader as al

SAMPLES, BATCH_SIZE, EPOCHS = 64, 8, 3


def write_corpus(folder: Path) -> list[str]:
    """Points of a line with a slope of 3, in shards with an index, so that the Trainer is told a length."""
    if not folder.exists():
        with al.ShardWriter(folder / "train-{:02d}.jsonl", samples_per_shard=SAMPLES // 4) as writer:
            for number in range(SAMPLES):
                writer.write(point(number))
    return sorted(map(str, folder.glob("train-*.jsonl")))


def point(number: int) -> dict[str, Any]:
    return {"x": [number / SAMPLES], "y": [3 * number / SAMPLES]}


def as_tensors(sample: dict[str, Any]) -> dict[str, Any]:
    return {name: torch.tensor(value) for name, value in sample.items()}


class Line(nn.Module):
    """What the Trainer wants of a model: the batch's entries by name in, a loss out."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(1, 16), nn.Dropout(0.1), nn.Linear(16, 1))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": nn.functional.mse_loss(self.layers(x), y)}


class LoaderTrainer(Trainer):
    """Trains on a loader that you have made."""

    def __init__(self, *, loader: al.DataLoader[Any], **options: Any) -> None:
        super().__init__(**options)
        self.loader = loader

    def get_train_dataloader(self) -> al.DataLoader[Any]:
        return self.loader


class SavePosition(TrainerCallback):
    """Saves the loader's position in each checkpoint, one file per rank, after everything else."""

    def on_save(self, args: Any, state: Any, control: Any, **now: Any) -> None:
        checkpoint = Path(args.output_dir, f"checkpoint-{state.global_step}")
        position = json.dumps(now["train_dataloader"].state_dict())
        (checkpoint / f"loader-{args.process_index}.json").write_text(position)


def find_last(folder: Path) -> Path | None:
    """The last checkpoint that every rank has finished."""
    ranks = int(os.environ.get("WORLD_SIZE", 1))
    whole = [path for path in folder.glob("checkpoint-*") if len([*path.glob("loader-*.json")]) == ranks]
    return max(whole, key=lambda path: int(path.name.split("-")[1]), default=None)


class ShowLosses(TrainerCallback):
    """Prints each step's loss, and ends the process in a step."""

    def __init__(self, die_at: int | None) -> None:
        self.die_at = die_at

    def on_log(self, args: Any, state: Any, control: Any, **now: Any) -> None:
        logs = now["logs"]
        if "loss" in logs and state.is_world_process_zero:
            print(f"step {state.global_step}: loss {logs['loss']}", flush=True)

    def on_step_begin(self, args: Any, state: Any, control: Any, **now: Any) -> None:
        if state.global_step + 1 == self.die_at:
            os.kill(os.getpid(), signal.SIGKILL)


def make_loader(shards: list[str], options: argparse.Namespace) -> al.DataLoader[Any]:
    workers = options.workers
    if options.map_style:
        points = [as_tensors(point(number)) for number in range(SAMPLES)]
        if "WORLD_SIZE" in os.environ:
            sampler: Any = DistributedSampler(points)  # type: ignore[arg-type]  # a list will do
            return al.DataLoader(points, BATCH_SIZE, sampler=sampler, num_workers=workers)
        return al.DataLoader(points, BATCH_SIZE, shuffle=True, num_workers=workers)
    dataset = al.from_urls(shards).shuffle(32, seed=0).map(as_tensors)
    if options.max_steps > 0:
        dataset = dataset.repeat()  # one epoch that never ends
    return al.DataLoader(dataset, BATCH_SIZE, num_workers=workers)


def train(options: argparse.Namespace) -> None:
    args = TrainingArguments(
        output_dir=str(options.folder),
        num_train_epochs=EPOCHS,
        max_steps=options.max_steps,
        learning_rate=0.01,
        save_steps=options.save_steps,
        logging_steps=1,
        ignore_data_skip=True,  # the loader's state says where to go on
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
    )
    torch.manual_seed(0)
    with args.main_process_first():
        shards = write_corpus(options.folder / "shards")
    loader = make_loader(shards, options)
    callbacks = [SavePosition(), ShowLosses(options.die_at)]
    trainer = LoaderTrainer(model=Line(), args=args, loader=loader, callbacks=callbacks)
    last = find_last(options.folder)
    if last is not None:
        loader.load_state_dict(json.loads((last / f"loader-{args.process_index}.json").read_text()))
    trainer.train(resume_from_checkpoint=None if last is None else str(last))
    loader.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train with transformers' Trainer, be killed, and go on.")
    parser.add_argument("--folder", type=Path, required=True, help="where shards and checkpoints lie")
    parser.add_argument("--save-steps", type=int, default=5, help="from one checkpoint to the next")
    parser.add_argument("--die-at", type=int, help="the step in which the process is killed")
    parser.add_argument("--max-steps", type=int, default=-1, help="of a stream without an end")
    parser.add_argument("--map-style", action="store_true", help="a map-style dataset, not a stream")
    parser.add_argument("--workers", type=int, default=0, help="num_workers of the loader")
    train(parser.parse_args())
