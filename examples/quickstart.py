"""Train a small model on shards streamed over HTTP, then check that every sample came exactly once.

Packs the Python standard library's own source files into tar shards, serves them from a web server on
this machine, trains a next-byte model on them for two epochs, and streams a third one without the model,
to see what the loader does by itself. Run it with `make demo`, or from an environment that has asyncloader:
`python examples/quickstart.py`. It takes about a quarter of a minute on two cores.
"""

import sys
import sysconfig
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import asyncloader as al
from asyncloader import testing

EPOCHS = 2
BATCH_SIZE = 8
MOST_BYTES = 640  # of each file, for the model's sake; the loader streams the files whole

say = partial(print, flush=True)  # in step with the bars, which go to standard error


def find_sources() -> dict[str, Path]:
    """The standard library's source files by key, but for its own tests and what was installed beside it."""
    root = Path(sysconfig.get_paths()["stdlib"])
    left_out = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3"}
    paths = [path.relative_to(root) for path in sorted(root.rglob("*.py")) if "." not in path.stem]
    return {path.with_suffix("").as_posix(): root / path for path in paths if left_out.isdisjoint(path.parts)}


def pack(sources: dict[str, Path], folder: Path) -> list[Path]:
    """One sample a file, in shards of at most a megabyte."""
    with al.ShardWriter(folder / "stdlib-{:03d}.tar", shard_size=1 << 20) as writer:
        for key, path in sources.items():
            writer.write({"__key__": key, "py": path.read_bytes()})
    return [Path(shard.path) for shard in writer.shards]


class NextByte(nn.Module):
    """Guesses each byte from the eight before it."""

    def __init__(self, width: int = 32) -> None:
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
    say(f"1. writing shards: {len(sources)} source files of Python's standard library")
    shards = pack(sources, Path(folder))
    megabytes = sum(shard.stat().st_size for shard in shards) / 1e6
    say(f"   {len(shards)} shards, {megabytes:.1f} MB, and an index that counts their samples")
    say(f"2. serving them from a web server of this process, {server.url}")

    dataset = (
        al.from_urls(
            f"{server.url}/stdlib-{{000..{len(shards) - 1:03d}}}.tar",
            index=f"{server.url}/asyncloader-index.json",
        )
        .shuffle(100, seed=0)
        .map(lambda sample: {"key": sample["__key__"], "tokens": sample["py"]})  # bytes pad as uint8
    )
    loader = al.DataLoader(
        dataset,
        batch_size=BATCH_SIZE,
        num_workers=2,
        collate_fn=al.Pad({"tokens": 0}, max_length=MOST_BYTES, overflow="truncate", mask=True),
        progress=True,
    )

    say(f"3. training on the first {MOST_BYTES} bytes of each file while 2 workers stream; an epoch a bar")
    torch.manual_seed(0)
    torch.set_num_threads(1)  # cores are few here, and the workers want theirs
    model = NextByte()
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    losses: list[float] = []
    passes = []
    delivered: list[Counter[str]] = []
    start_s = 0.0
    for _ in range(EPOCHS):
        keys: Counter[str] = Counter()
        sums = torch.zeros(2)
        for batch in loader:
            start_s = start_s or loader.statistics.wait_s
            loss = model.loss(batch["tokens"].long(), batch["tokens_mask"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            keys.update(batch["key"])
            sums += torch.tensor([loss.item(), 1.0])
        delivered.append(keys)
        passes.append(loader.statistics)
        losses.append(float(sums[0] / sums[1]))

    say("4. streaming one more epoch without the model, to see what the loader does by itself")
    sent_before = server.counters.bytes_sent
    delivered.append(Counter(key for batch in loader for key in batch["key"]))
    passes.append(loader.statistics)
    read = (server.counters.bytes_sent - sent_before) / 1e6
    loader.close()

expected = Counter(sources.keys())
lost = sum((expected - keys).total() for keys in delivered)
repeated = sum((keys - expected).total() for keys in delivered)
asked = [counts.network for counts in passes]
*trained, alone = passes
training_s, waited_s = (sum(counts.elapsed_s for counts in trained), sum(counts.wait_s for counts in trained))
say(f"""
receipt of {len(passes)} epochs
  samples expected   {len(passes) * len(sources):,}
  samples delivered  {sum(keys.total() for keys in delivered):,}
  lost               {lost}
  repeated           {repeated}
  loader alone       {read:.1f} MB in {alone.elapsed_s:.2f} s: {read / alone.elapsed_s:.1f} MB/s over HTTP
  in training        waited {waited_s:.2f} of {training_s:.1f} s ({waited_s / training_s:.0%}), \
{start_s:.2f} s of it for the workers' processes to start
  network            {sum(n.requests for n in asked)} requests, {sum(n.retries for n in asked)} retries, \
{sum(n.throttled for n in asked)} throttled, {sum(n.hedges for n in asked)} hedges
  loss               {" -> ".join(f"{loss:.3f}" for loss in losses)}""")

if lost or repeated:
    sys.exit(f"the receipt does not add up: {lost} lost, {repeated} repeated or unknown")
if not losses[-1] < losses[0]:
    sys.exit(f"the loss did not fall: {losses}")
say("every sample came exactly once in each epoch, and the loss fell")
