"""Shards of MosaicML's streaming, read as they are: by asyncloader, and by streaming itself."""

import json
import tempfile

import numpy as np
import torch

import asyncloader as al


def write(folder):
    from streaming import MDSWriter

    columns = {"id": "int", "image": "jpeg", "tokens": "ndarray:int32", "meta": "json"}
    for split, count in ("train", 400), ("val", 40):
        with MDSWriter(
            out=f"{folder}/{split}",
            columns=columns,
            compression="zstd" if split == "val" else None,
            hashes=["xxh64"],
            size_limit="64kb",
        ) as writer:
            for number in range(count):
                tokens, meta = np.arange(number % 9 + 1, dtype="i4"), {"tags": ["red"] * (number % 3)}
                writer.write({"id": number, "image": picture(number), "tokens": tokens, "meta": meta})
    columns = {"id": "int", "tokens": "ndarray:int64:8"}
    with MDSWriter(out=f"{folder}/blocks", columns=columns, size_limit=4096) as writer:
        for number in range(200):
            writer.write({"id": number, "tokens": np.arange(number, number + 8)})


def picture(number):
    from PIL import Image

    return Image.new("RGB", (32, 32), (number % 256, 0, 0))


def train(folder):
    dataset = al.from_mds(folder, split="train").shuffle(1000, seed=0)
    loader = al.DataLoader(
        dataset.map(to_array, concurrency=4), batch_size=16, collate_fn=al.Pad({"tokens": 0}), num_workers=2
    )
    seen = []
    for batch in loader:
        seen += batch["id"].tolist()
    print(f"{len(loader)} batches, images {tuple(batch['image'].shape)}, each once: {len(set(seen)) == 400}")


def to_array(sample):
    image = np.asarray(sample["image"].convert("RGB"))
    return {**sample, "image": image, "meta": json.dumps(sample["meta"])}


def some_columns(folder):
    both = al.concat(
        [al.from_mds(f"{folder}/{split}", columns=["id", "tokens"]) for split in ("train", "val")]
    )
    loader = al.DataLoader(both, batch_size=44, collate_fn=al.Pad({"tokens": 0}))
    print(f"{len(loader)} batches of {sorted(next(iter(loader)))}")


def theirs(folder):
    from streaming import StreamingDataLoader, StreamingDataset

    dataset = StreamingDataset(local=folder, split="blocks", batch_size=16, shuffle=True, shuffle_seed=0)
    return StreamingDataLoader(dataset, batch_size=16, num_workers=2)


def ours(folder):
    dataset = al.from_mds(folder, split="blocks").shuffle(1000, seed=0)
    return al.DataLoader(dataset, batch_size=16, num_workers=2)


def in_order(loader):
    batches = list(loader)
    order = torch.cat([batch["id"] for batch in batches]).argsort()
    return torch.cat([batch["tokens"] for batch in batches])[order]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        write(name)
        train(name)
        some_columns(name)
        tokens = in_order(ours(name))
        assert torch.equal(tokens, in_order(theirs(name)))
        print(f"{len(tokens)} samples, the same")
