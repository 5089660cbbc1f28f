"""Token documents in compressed JSON Lines, handed on as they are: asyncloader beside zstandard and json.

    python tests/benchmarks/token_lines.py [--rounds 7] [--workers 0 2]

Each line is ``{"tokens": [...]}`` with 200 to 2,000 numbers below 50,000; 16 shards of 1,500 documents on
local disk. Both sides give lists of 64 samples, each in a fresh process, in turn within one run; the table
gives medians and the median of the ratios pair by pair. The other side opens one shard after the other
with ``zstandard`` and gives each line to ``json.loads``: what a person writes by hand, and with workers the
same as an ``IterableDataset`` in torch's ``DataLoader``, shards dealt by worker number.
"""

from __future__ import annotations

import io
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from _measure import machine, parser_of, run_fresh

SHARDS, DOCUMENTS, BATCH = 16, 1500, 64


def write_shards(directory: Path) -> None:
    """The corpus."""
    import zstandard

    draw = random.Random(0)
    for shard in range(SHARDS):
        lines = [
            json.dumps({"tokens": [draw.randrange(50_000) for _ in range(draw.randint(200, 2000))]})
            for _ in range(DOCUMENTS)
        ]
        packed = zstandard.ZstdCompressor().compress("".join(f"{line}\n" for line in lines).encode())
        (directory / f"train-{shard:03d}.jsonl.zst").write_bytes(packed)


def ours(base: str, workers: int) -> Iterator[list[Any]]:
    """asyncloader's side."""
    import asyncloader as al

    dataset = al.from_urls(f"{base}/train-{{000..{SHARDS - 1:03d}}}.jsonl.zst")
    yield from al.DataLoader(dataset, BATCH, num_workers=workers, collate_fn=list)


def read_plainly(base: str, shards: range) -> Iterator[Any]:
    """The samples, as a person reads them."""
    import zstandard

    for shard in shards:
        with (
            open(f"{base}/train-{shard:03d}.jsonl.zst", "rb") as file,
            zstandard.ZstdDecompressor().stream_reader(file) as stream,
        ):
            for line in io.TextIOWrapper(stream, encoding="utf-8"):
                yield json.loads(line)


def theirs(base: str, workers: int) -> Iterator[list[Any]]:
    """The other side."""
    if not workers:
        samples = read_plainly(base, range(SHARDS))
        while batch := list(islice(samples, BATCH)):
            yield batch
        return
    import torch.utils.data

    class Lines(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            info = torch.utils.data.get_worker_info()
            assert info is not None
            return read_plainly(base, range(info.id, SHARDS, info.num_workers))

    yield from torch.utils.data.DataLoader(Lines(), BATCH, num_workers=workers, collate_fn=list)


def measure(side: str, base: str, workers: int) -> None:
    """One pass, in this process; prints a line of JSON."""
    sides: dict[str, Callable[[str, int], Iterator[list[Any]]]] = {"ours": ours, "theirs": theirs}
    documents = counted_from = 0
    began = 0.0
    for batch in sides[side](base, workers):
        documents += len(batch)
        if not began:  # imports and starting processes are measured elsewhere
            began, counted_from = time.perf_counter(), documents
    took_s = time.perf_counter() - began
    assert documents == SHARDS * DOCUMENTS, f"{documents} documents"
    print(json.dumps({"documents_s": (documents - counted_from) / took_s}))


def main() -> None:
    options = parser_of(__doc__, rounds=7, measured=("SIDE", "BASE", "WORKERS")).parse_args()
    if options.measure:
        measure(options.measure[0], options.measure[1], int(options.measure[2]))
        return
    print(f"{machine()}\n")
    print("| workers | asyncloader, documents/s | zstandard + json | ratio |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as directory:
        write_shards(Path(directory))
        for workers in options.workers:
            pairs = [
                [
                    run_fresh(__file__, side, directory, str(workers))["documents_s"]
                    for side in ("ours", "theirs")
                ]
                for _ in range(options.rounds)
            ]
            mine, other = (statistics.median(pair[side] for pair in pairs) for side in (0, 1))
            ratio = statistics.median(pair[0] / pair[1] for pair in pairs)
            print(f"| {workers} | {mine:,.0f} | {other:,.0f} | {ratio:.2f}x |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
