"""1 GB of tar from nginx on loopback, whole samples as bytes: asyncloader beside torch's DataLoader.

    python tests/benchmarks/stream_tar.py [--rounds 5] [--workers 0 2] [--local]

Both read the same 32 shards of 100 KB samples in batches of 64, each in a fresh process, in turn within
one run; the table gives medians and the median of the ratios pair by pair. The other side is an
``IterableDataset`` written with ``requests`` and ``tarfile``, shards dealt by worker number: what a
person writes by hand. ``peak`` is the largest resident memory of the loader's processes, summed.
"""

from __future__ import annotations

import json
import statistics
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from _corpus import BATCH, SAMPLES, SHARDS, write_shards
from _measure import PeakMemory, machine, parser_of, run_fresh

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def keep(samples: list[Any]) -> list[Any]:
    """No collation: both sides hand on the list of byte strings."""
    return samples


def ours(base: str, workers: int) -> Iterator[list[bytes]]:
    """asyncloader's side."""
    import asyncloader as al

    dataset = al.from_urls(f"{base}/train-{{000..{SHARDS - 1:03d}}}.tar")
    loader = al.DataLoader(
        dataset, BATCH, num_workers=workers, collate_fn=lambda samples: [each["jpg"] for each in samples]
    )
    yield from loader


def theirs(base: str, workers: int) -> Iterator[list[bytes]]:
    """torch's side, as a person writes it."""
    import requests
    import torch.utils.data

    class Tars(torch.utils.data.IterableDataset[bytes]):
        def __iter__(self) -> Iterator[bytes]:
            info = torch.utils.data.get_worker_info()
            first, step = (0, 1) if info is None else (info.id, info.num_workers)
            with requests.Session() as session:
                for shard in range(first, SHARDS, step):
                    yield from self._read(session, f"train-{shard:03d}.tar")

        def _read(self, session: requests.Session, name: str) -> Iterator[bytes]:
            with ExitStack() as stack:
                if base.startswith("http"):
                    response = stack.enter_context(session.get(f"{base}/{name}", stream=True))
                    response.raise_for_status()
                    source: Any = response.raw
                else:
                    source = stack.enter_context(open(f"{base}/{name}", "rb"))
                tar = stack.enter_context(tarfile.open(fileobj=source, mode="r|"))
                for member in tar:
                    body = tar.extractfile(member)
                    assert body is not None
                    yield body.read()

    yield from torch.utils.data.DataLoader(Tars(), BATCH, num_workers=workers, collate_fn=keep)


def measure(side: str, base: str, workers: int) -> None:
    """One pass, in this process; prints a line of JSON."""
    sides: dict[str, Callable[[str, int], Iterator[list[bytes]]]] = {"ours": ours, "theirs": theirs}
    peak = PeakMemory()
    began = time.perf_counter()
    samples = 0
    first_s = 0.0
    for batch in sides[side](base, workers):
        if not samples:
            first_s = time.perf_counter() - began
            steady = time.perf_counter()
            counted_from = len(batch)
        samples += len(batch)
    took_s = time.perf_counter() - steady
    assert samples == SHARDS * SAMPLES, f"{samples} samples"
    print(
        json.dumps(
            {
                "samples_s": (samples - counted_from) / took_s,
                "first_s": first_s,
                "peak_mb": peak.stop() / 1e6,
            }
        )
    )


def run(side: str, base: str, workers: int) -> dict[str, float]:
    """One pass in a fresh process."""
    return run_fresh(__file__, side, base, str(workers))


def compare(base: str, name: str, workers: int, rounds: int) -> None:
    """A row of the table."""
    pairs = [(run("ours", base, workers), run("theirs", base, workers)) for _ in range(rounds)]
    ratio = statistics.median(mine["samples_s"] / other["samples_s"] for mine, other in pairs)
    mine, other = (
        {key: statistics.median(pair[side][key] for pair in pairs) for key in pairs[0][0]} for side in (0, 1)
    )
    print(
        f"| {name}, {workers} workers | {mine['samples_s']:,.0f} | {other['samples_s']:,.0f} "
        f"| {ratio:.2f}x | {mine['first_s']:.2f} / {other['first_s']:.2f} "
        f"| {mine['peak_mb']:,.0f} / {other['peak_mb']:,.0f} |",
        flush=True,
    )


def main() -> None:
    parser = parser_of(__doc__, rounds=5, measured=("SIDE", "BASE", "WORKERS"))
    parser.add_argument("--local", action="store_true", help="also read the shards from local disk")
    options = parser.parse_args()
    if options.measure:
        measure(options.measure[0], options.measure[1], int(options.measure[2]))
        return
    from servers import run_nginx

    print(f"{machine()}\n")
    print("| source | asyncloader, samples/s | requests + tarfile | ratio | first batch, s | peak MB |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as directory:
        write_shards(Path(directory))
        with run_nginx(Path(directory)) as base:
            for workers in options.workers:
                compare(base.rstrip("/"), "HTTP", workers, options.rounds)
                if options.local:
                    compare(directory, "local", workers, options.rounds)


if __name__ == "__main__":
    main()
