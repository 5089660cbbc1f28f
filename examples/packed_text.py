"""Tokenised documents to packed blocks, and a training step whose attention stays within each document.

Two ways to pack: end to end in stream order, and by best fit in pools, which cuts no document that fits.
"""

import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import asyncloader as al

DOCUMENTS, VOCABULARY, LENGTH, END = 1000, 64, 256, 0


def write_corpus(folder: Path) -> int:
    """Documents of token ids, 16 to 512 of them, in JSON Lines; returns how many tokens there are."""
    draw, tokens = random.Random(0), 0
    with al.ShardWriter(folder / "train-{:02d}.jsonl.gz", samples_per_shard=250) as writer:
        for number in range(DOCUMENTS):
            length = min(max(int(draw.lognormvariate(4.2, 0.8)), 16), 512)
            start = draw.randrange(VOCABULARY)
            # Counting up: the next token is easy to tell, if one looks at the same document.
            ids = [1 + (start + place) % (VOCABULARY - 1) for place in range(length)]
            writer.write({"document": number, "tokens": ids})
            tokens += length
    return tokens


def end_documents(columns: dict[str, Any]) -> dict[str, Any]:
    """An ``END`` after each document."""
    tokens = al.Ragged.of(columns["tokens"])
    offsets = tokens.offsets - tokens.offsets[0]
    ended = np.insert(np.asarray(tokens.flat), offsets[1:], END)
    return {"tokens": al.Ragged(ended, offsets + np.arange(len(offsets)))}


class Model(nn.Module):
    """One layer of attention, over the segments of a flattened block."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, 32), nn.Embedding(LENGTH, 32)
        self.attend, self.say = nn.Linear(32, 96), nn.Linear(32, VOCABULARY)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        embedded = self.tokens(batch["tokens"]) + self.positions(batch["positions"])  # (B, T, 32)
        query, key, value = self.attend(embedded).chunk(3, dim=-1)
        attended = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask_of(batch))
        logits: torch.Tensor = self.say(embedded + attended)
        return logits


def mask_of(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    segments = batch["segment_ids"]  # (B, T): 1, 2, ... in each row, 0 for padding
    same = segments[:, :, None] == segments[:, None, :]
    causal = torch.ones(same.shape[1:], dtype=torch.bool).tril()
    return same & causal  # (B, T, T)


def loss_of(model: Model, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    logits = model(batch)[:, :-1]
    following, segments = batch["tokens"][:, 1:].long(), batch["segment_ids"]
    # The last token of a document has no next one in it.
    counts = (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] != 0)
    return nn.functional.cross_entropy(logits[counts], following[counts])


torch.manual_seed(0)
with tempfile.TemporaryDirectory() as folder:
    written = write_corpus(Path(folder))
    dataset = al.from_urls(f"{folder}/train-*.jsonl.gz").select_columns("tokens").shuffle(500, seed=1)
    dataset = dataset.map_batches(end_documents, batch_size=250)

    for pool in (None, 1000):
        packing = al.Pack("tokens", length=LENGTH, batch_size=8, pool=pool)
        loader = al.DataLoader(dataset, batching=packing)
        size = sum(batch["tokens"].numel() for batch in loader)
        counted = loader.statistics
        print(f"pool={pool}: {counted.samples} documents, {1 - counted.tokens / size:.1%} padding")
        assert (counted.samples, counted.tokens) == (DOCUMENTS, written + DOCUMENTS), "nothing is lost"

    batch = next(iter(loader))
    for name, value in batch.items():
        print(f"{name:12}", value if isinstance(value, int) else f"{tuple(value.shape)} {value.dtype}")

    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for batch in loader:
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        checkpoint = loader.state_dict()  # goes on with the next block, whatever documents are in it
    print(f"{len(losses)} steps, loss {losses[0]:.2f} -> {losses[-1]:.2f}")

assert losses[-1] < losses[0]
