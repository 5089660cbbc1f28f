"""Train a small model on shards streamed over HTTP, then check that every sample came exactly once.

Packs the Python standard library's own source files into tar shards, serves them from a web server on
this machine, and trains a next-byte model on them for two epochs. Run it with `make demo`, or from an
environment that has asyncloader: `python examples/quickstart.py`. It takes about a minute on two cores.
"""

import sys
import sysconfig
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import asyncloader as al
from asyncloader import testing

EPOCHS = 2
BATCH_SIZE = 8
MOST_BYTES = 4096  # of each file, for the model's sake; the loader streams the files whole


def find_sources() -> dict[str, Path]:
    """The standard library's source files by key, but for its own tests and what was installed beside it."""
    root = Path(sysconfig.get_paths()["stdlib"])
    left_out = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3"}
    paths = [path.relative_to(root) for path in sorted(root.rglob("*.py")) if "." not in path.stem]
    return {path.with_suffix("").as_posix(): root / path for path in paths if left_out.isdisjoint(path.parts)}


def pack(sources: dict[str, Path], folder: Path) -> list[Path]:
    """One sample a file, in shards of at most a megabyte."""
    with al.ShardWriter(folder / "stdlib-{:03d}.tar", max_bytes=1 << 20) as writer:
        for key, path in sources.items():
            writer.write({"__key__": key, "py": path.read_bytes()})
    return [Path(shard.path) for shard in writer.shards]


class NextByte(nn.Module):
    """Guesses each byte from the eight before it."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.look_back = nn.Conv1d(width, 2 * width, kernel_size=8)
        self.guess = nn.Linear(2 * width, 256)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Hidden states ``(B, T, 2 * width)`` of tokens ``(B, T) int64``."""
        embedded = self.embed(tokens).transpose(1, 2)
        hidden: torch.Tensor = self.look_back(nn.functional.pad(embedded, (7, 0)))
        return torch.relu(hidden).transpose(1, 2)

    def loss(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy over the bytes that are data; nothing is computed for padding's sake."""
        hidden, real = self(tokens[:, :-1]), mask[:, 1:]
        return cross_entropy(self.guess(hidden[real]), tokens[:, 1:][real])


with tempfile.TemporaryDirectory() as folder, testing.serve(Path(folder)) as server:
    sources = find_sources()
    shards = pack(sources, Path(folder))
    megabytes = EPOCHS * sum(shard.stat().st_size for shard in shards) / 1e6
    print(f"packed {len(sources)} source files into {len(shards)} shards, served at {server.url}")

    dataset = (
        al.from_urls(f"{server.url}/stdlib-{{000..{len(shards) - 1:03d}}}.tar")
        .shuffle(100, seed=0)
        .map(lambda sample: {"key": sample["__key__"], "tokens": sample["py"]})  # bytes pad as uint8
    )
    loader = al.DataLoader(
        dataset,
        batch_size=BATCH_SIZE,
        num_workers=2,
        collate_fn=al.Pad({"tokens": 0}, max_length=MOST_BYTES, overflow="truncate", mask=True),
    )

    torch.manual_seed(0)
    model = NextByte()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses: list[float] = []
    delivered: list[Counter[str]] = []
    positions = padding = 0
    wait_s = 0.0
    began_s = time.perf_counter()
    for epoch in range(EPOCHS):
        keys: Counter[str] = Counter()
        sums = torch.zeros(2)
        for batch in loader:
            loss = model.loss(batch["tokens"].long(), batch["tokens_mask"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            keys.update(batch["key"])
            sums += torch.tensor([loss.item(), 1.0])
            positions += batch["tokens"].numel()
            padding += batch["tokens"].numel() - int(batch["tokens_lengths"].sum())
        wait_s += loader.statistics.wait_s
        delivered.append(keys)
        losses.append(float(sums[0] / sums[1]))
        print(f"epoch {epoch}: {loader.statistics.batches} batches, mean loss {losses[-1]:.3f}")
    elapsed_s = time.perf_counter() - began_s
    loader.close()

duplicates = sum(count - 1 for keys in delivered for count in keys.values())
lost = sum(len(sources.keys() - keys.keys()) for keys in delivered)
strange = sum(len(keys.keys() - sources.keys()) for keys in delivered)
print(f"""
receipt of {EPOCHS} epochs
  samples expected   {EPOCHS * len(sources):,}
  samples delivered  {sum(keys.total() for keys in delivered):,}
  duplicates         {duplicates}
  lost               {lost}
  padding share      {padding / positions:.1%}
  read over HTTP     {megabytes:.1f} MB, {megabytes / elapsed_s:.1f} MB/s with training
  consumer wait      {wait_s:.2f} s, {wait_s / elapsed_s:.1%} of {elapsed_s:.1f} s
  loss               {" -> ".join(f"{loss:.3f}" for loss in losses)}""")

if duplicates or lost or strange:
    sys.exit(f"the receipt does not add up: {duplicates} duplicates, {lost} lost, {strange} unknown")
if not losses[-1] < losses[0]:
    sys.exit(f"the loss did not fall: {losses}")
print("every sample came exactly once in each epoch, and the loss fell")
