"""Write shards: tar for files and arrays, JSON Lines for records, both read back."""

import tempfile
from pathlib import Path

import numpy as np

import asyncloader as al

folder = Path(tempfile.mkdtemp())

with al.ShardWriter(folder / "audio-{:04d}.tar", shard_size=100_000) as writer:
    for number in range(50):
        writer.write(
            {
                "__key__": f"clip-{number:05d}",
                "npy": np.sin(np.arange(500 + number, dtype=np.float32)),  # encoded by its extension
                "cls": number % 10,
                "json": {"speaker": "a", "seconds": 0.5},
                "raw": b"\x00\x01",  # bytes are written as they are
            }
        )
print([(Path(shard.path).name, shard.samples, shard.size_bytes) for shard in writer.shards])

with al.ShardWriter(folder / "text-{:04d}.jsonl.zst", samples_per_shard=100) as writer:
    for number in range(250):
        writer.write({"id": number, "text": "word " * (number % 7)})
print([(Path(shard.path).name, shard.samples) for shard in writer.shards])

clips = al.from_urls(str(folder / "audio-*.tar")).decode()
for clip in al.DataLoader(clips.take(1), batch_size=None):
    print(clip["__key__"], clip["npy"].shape, clip["npy"].dtype, clip["cls"], clip["json"], clip["raw"])

texts = al.from_urls(str(folder / "text-{0000..0002}.jsonl.zst"))
print(sum(len(batch["id"]) for batch in al.DataLoader(texts, batch_size=64)), "texts")
