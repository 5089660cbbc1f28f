"""Work on columns: clean and tokenize many texts in one call, and pad them without making a sample.

A function of `map_batches` gets a dict of columns. Strings are a list, numbers an array, and sequences of
unequal length an `al.Ragged`: all values end to end, and where each sequence begins.
"""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import asyncloader as al

TEXTS = 2000


def write_corpus(folder: Path) -> None:
    with al.ShardWriter(folder / "train-{:02d}.jsonl.gz", samples_per_shard=500) as writer:
        for number in range(TEXTS):
            writer.write({"text": "all work and no play " * (number % 7), "number": number})


def has_words(batch: dict[str, Any]) -> Any:
    return np.char.str_len(batch["text"]) > 0


def tokenize(batch: dict[str, Any]) -> dict[str, Any]:
    encoded = [text.encode() for text in batch["text"]]
    values = np.frombuffer(b"".join(encoded), np.uint8).astype(np.int32)  # of all texts at once
    offsets = np.cumsum([0, *map(len, encoded)])
    return {"tokens": al.Ragged(values, offsets), "number": batch["number"]}


def count_spaces(batch: dict[str, Any]) -> dict[str, Any]:
    tokens = batch["tokens"]
    counted = np.concatenate([[0], np.cumsum(tokens.flat == ord(" "))])
    return {**batch, "spaces": np.diff(counted[tokens.offsets - tokens.offsets[0]])}


with tempfile.TemporaryDirectory() as folder:
    write_corpus(Path(folder))

    dataset = (
        al.from_urls(f"{folder}/train-{{00..03}}.jsonl.gz")
        .filter_batches(has_words, batch_size=256)
        .map_batches(tokenize, batch_size=256)
        .map_batches(count_spaces, batch_size=256)
        .shuffle(1000, seed=0)
    )
    loader = al.DataLoader(dataset, batch_size=64, num_workers=2, collate_fn=al.Pad({"tokens": 0}))

    seen = 0
    for batch in loader:
        real = batch["tokens"] == ord(" ")  # (64, T)
        assert (real.sum(1) == batch["spaces"]).all()
        seen += len(batch["number"])
    print(f"{seen} of {TEXTS} texts in {len(batch)} columns: {sorted(batch)}")

    for sample in dataset.head(2):
        print(f"a row: {sample['tokens'][:4]}, number {sample['number']!r}, {sample['spaces']} spaces")
