"""The code of docs/tutorial.md: from a folder of files to a training loop that can be resumed."""

import asyncio
import email
import tempfile
import unittest
from pathlib import Path

import torch
from torch import nn

import asyncloader as al

folder = Path(tempfile.mkdtemp())
packages = [Path(module.__path__[0]) for module in (asyncio, email, unittest)]

with al.ShardWriter(folder / "train-{:03d}.tar", samples_per_shard=16) as writer:
    for label, package in enumerate(packages):
        for path in sorted(package.glob("*.py")):
            key = f"{package.name}/{path.stem}"
            writer.write({"__key__": key, "txt": path.read_text(), "cls": label})

for shard in writer.shards:
    print(shard.path, shard.samples, "samples")

dataset = al.from_urls(str(folder / "train-*.tar"))
for sample in dataset.head(1):
    print({field: type(value).__name__ for field, value in sample.items()})


def tokenize(sample):
    return {"tokens": list(sample["txt"].encode()[:2000]), "label": sample["cls"]}


prepared = dataset.shuffle(1000, seed=0).decode().map(tokenize)
loader = al.DataLoader(prepared, batch_size=8, lanes=2, collate_fn=al.Pad({"tokens": 0}, mask=True))

batch = next(iter(loader))
print(batch["tokens"].shape, batch["tokens_lengths"], batch["label"])


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(256, 32)
        self.decide = nn.Linear(32, 3)

    def forward(self, tokens, mask):
        embedded = self.embed(tokens) * mask.unsqueeze(-1)
        return self.decide(embedded.sum(1) / mask.sum(1, keepdim=True).clamp(min=1))


model = Classifier()
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)


def step(batch):
    loss = nn.functional.cross_entropy(model(batch["tokens"], batch["tokens_mask"]), batch["label"])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


loader.set_epoch(0)
for epoch in range(3):
    losses = [step(batch) for batch in loader]
    print(f"epoch {epoch}: loss {sum(losses) / len(losses):.2f}")

with al.DataLoader(
    prepared, batch_size=8, num_workers=2, collate_fn=al.Pad({"tokens": 0}, mask=True), progress=True
) as loader:
    for batch in loader:
        step(batch)
        if loader.statistics.batches == 5:
            break
    checkpoint = {"model": model.state_dict(), "loader": loader.state_dict()}

loader = al.DataLoader(prepared, batch_size=8, collate_fn=al.Pad({"tokens": 0}, mask=True))
loader.load_state_dict(checkpoint["loader"])
rest = list(loader)
print(f"5 batches before the break, {len(rest)} after it")
