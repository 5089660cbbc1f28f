"""From JSON Lines over HTTP to an LSTM: pad each batch to its longest text, then pack it for the LSTM.

`Pad(sort_by=...)` puts the longest sequence first, as `pack_padded_sequence` wants it, and permutes
every other field alike.
"""

import random
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

import asyncloader as al
from asyncloader import testing

TEXTS = 600


def write_corpus(folder: Path) -> None:
    """Texts of unequal length: a few letters of one half of the alphabet; the label says which half."""
    draw = random.Random(0)
    with al.ShardWriter(folder / "train-{:02d}.jsonl.gz", samples_per_shard=100) as writer:
        for _ in range(TEXTS):
            label = draw.randrange(2)
            letters = "abcdefghijklm" if label == 0 else "nopqrstuvwxyz"
            writer.write({"text": "".join(draw.choices(letters, k=draw.randint(3, 60))), "label": label})


def tokenize(sample: dict[str, Any]) -> dict[str, Any]:
    return {"tokens": [ord(letter) - ord("a") + 1 for letter in sample["text"]], "label": sample["label"]}


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(27, 16, padding_idx=0)
        self.lstm = nn.LSTM(16, 32, batch_first=True)
        self.decide = nn.Linear(32, 2)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        embedded = self.embed(batch["tokens"])  # (B, T, 16), padded with 0
        packed = pack_padded_sequence(embedded, batch["tokens_lengths"], batch_first=True)
        _, (last, _) = self.lstm(packed)
        decided: torch.Tensor = self.decide(last[-1])
        return decided


torch.manual_seed(0)
with tempfile.TemporaryDirectory() as folder, testing.serve(Path(folder)) as server:
    write_corpus(Path(folder))
    dataset = al.from_urls(f"{server.url}/train-{{00..05}}.jsonl.gz").shuffle(200, seed=1).map(tokenize)
    loader = al.DataLoader(dataset, batch_size=32, collate_fn=al.Pad({"tokens": 0}, sort_by="tokens"))

    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(3):
        right = seen = positions = 0
        for batch in loader:
            guess = model(batch)
            loss = nn.functional.cross_entropy(guess, batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right += int((guess.argmax(1) == batch["label"]).sum())
            seen += len(batch["label"])
            positions += batch["tokens"].numel() - int(batch["tokens_lengths"].sum())
        print(f"epoch {epoch}: {seen} texts, {right / seen:.0%} right, {positions} positions of padding")

assert seen == TEXTS
assert right / seen > 0.95, "two halves of an alphabet can be told apart"
