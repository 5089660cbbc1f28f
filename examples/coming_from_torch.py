"""The same shards by torch's DataLoader, over a dataset as a person writes it, and by asyncloader."""

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

import asyncloader as al


def write_corpus(folder):
    with al.ShardWriter(folder / "train-{:02d}.jsonl", samples_per_shard=50) as writer:
        for number in range(200):
            writer.write({"id": number, "tokens": list(range(number % 17 + 1))})


class Lines(IterableDataset[dict[str, Any]]):
    def __init__(self, paths):
        self.paths = paths

    def __iter__(self):
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for path in self.paths[first::step]:
            for line in path.open():
                yield json.loads(line)


def collate(samples):
    tokens = [torch.tensor(sample["tokens"]) for sample in samples]
    return {
        "id": torch.tensor([sample["id"] for sample in samples]),
        "tokens": pad_sequence(tokens, batch_first=True, padding_value=0),
        "tokens_lengths": torch.tensor([len(sequence) for sequence in tokens]),
    }


def theirs(folder):
    dataset = Lines(sorted(folder.glob("*.jsonl")))
    return DataLoader(dataset, batch_size=16, num_workers=2, collate_fn=collate)


def ours(folder):
    dataset = al.from_urls(folder / "*.jsonl")
    return al.DataLoader(dataset, batch_size=16, num_workers=2, collate_fn=al.Pad({"tokens": 0}))


class Squares(Dataset[int]):
    def __len__(self):
        return 200

    def __getitem__(self, index):
        return index**2


def theirs_map_style():
    return DataLoader(Squares(), batch_size=16, shuffle=True, num_workers=2)


def ours_map_style():
    return al.DataLoader(Squares(), batch_size=16, shuffle=True, num_workers=2)


def samples_of(batch):
    return zip(batch["id"].tolist(), batch["tokens"], batch["tokens_lengths"], strict=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        write_corpus(Path(name))
        read = []
        for loader in theirs, ours:
            samples = [sample for batch in loader(Path(name)) for sample in samples_of(batch)]
            read.append(sorted((number, tokens[:length].tolist()) for number, tokens, length in samples))
        assert read[0] == read[1]
        print(f"{len(read[1])} samples, the same")

    drawn = []
    for make in theirs_map_style, ours_map_style:
        torch.manual_seed(0)
        drawn.append([batch.tolist() for batch in make()])
    assert drawn[0] == drawn[1]
    print(f"{len(drawn[1])} batches, the same")
