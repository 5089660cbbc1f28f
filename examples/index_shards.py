"""Index shards of another program: one shard feeds four ranks, each an equal part, to the sample."""

import json
import tempfile
from pathlib import Path

import asyncloader as al

folder = Path(tempfile.mkdtemp())
for number, count in enumerate((1000, 30, 7)):  # as some other program has written them
    lines = [json.dumps({"number": 1000 * number + index}) + "\n" for index in range(count)]
    (folder / f"part-{number}.jsonl").write_text("".join(lines))

urls = str(folder / "part-*.jsonl")
index = al.build_index(urls, progress=True)
print(f"{Path(index).name}: {Path(index).stat().st_size} bytes")

seen = []
for rank in range(4):
    loader = al.DataLoader(al.from_urls(urls).shuffle(100), batch_size=10, rank=rank, world_size=4)
    numbers = [number for batch in loader for number in batch["number"].tolist()]
    print(f"rank {rank}: {len(loader)} batches, {len(numbers)} samples")
    seen += numbers
print("each once:", len(seen) == len(set(seen)) == 1037)
