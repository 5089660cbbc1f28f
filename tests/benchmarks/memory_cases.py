"""Peak memory where samples, lanes or members are large beside ``memory_limit``; shards on local disk.

    python tests/benchmarks/memory_cases.py [CASE ...]

Each case runs in a fresh process; printed is the peak of the proportional memory of all its processes
above what Python and torch took before.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import tarfile
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from _measure import PeakMemory, proportional_bytes, run_fresh

MiB = 1 << 20


def write_shards(folder: Path) -> None:
    """The corpus: 256 small shards, four of samples of 64 MiB, one with a compressed member of 400 MiB."""
    import zstandard

    for name, shards, samples, size_bytes in (("small", 256, 40, 100_000), ("large", 4, 4, 64 * MiB)):
        for shard in range(shards):
            with tarfile.open(folder / f"{name}-{shard:03d}.tar", "w") as tar:
                for index in range(samples):
                    member = tarfile.TarInfo(f"{shard:03d}-{index:03d}.bin")
                    member.size = size_bytes
                    tar.addfile(member, io.BytesIO(b"\1" * size_bytes))
    with (
        open(folder / "huge.tar.zst", "wb") as file,
        zstandard.ZstdCompressor().stream_writer(file) as packed,
        tarfile.open(fileobj=packed, mode="w|") as tar,
    ):
        member = tarfile.TarInfo("0.bin")
        member.size = 400 * MiB
        # Half a byte in each: more than that, from so few bytes, is refused as made to use up memory.
        tar.addfile(member, io.BytesIO(np.random.default_rng(0).integers(0, 16, member.size, np.uint8).data))


def grow(sample: Any) -> bytes:
    """A function whose results are forty times as large as what it is given."""
    return b"\1" * 4_000_000


async def grow_async(sample: Any) -> bytes:
    """Likewise, on the loop."""
    return grow(sample)


def loader_of(case: str, folder: str) -> Any:
    """The loader of a case."""
    import asyncloader as al

    small, large = al.from_urls(f"{folder}/small-*.tar"), al.from_urls(f"{folder}/large-*.tar")
    dataset, options = {
        "map to 4 MB": (small.map(grow), {"memory_limit": 16 * MiB}),
        "map to 4 MB, 16 threads": (small.map(grow, concurrency=16), {"memory_limit": 16 * MiB}),
        "map to 4 MB, 16 coroutines": (small.map(grow_async, concurrency=16), {"memory_limit": 16 * MiB}),
        "64 lanes": (small, {"batch_size": 4, "lanes": 64, "memory_limit": 64 * MiB}),
        "256 lanes": (small, {"batch_size": 4, "lanes": 256, "memory_limit": 64 * MiB}),
        "batches of 268 MB": (large, {"batch_size": 4, "memory_limit": 64 * MiB}),
        "batches of 268 MB, 2 workers": (
            large,
            {"batch_size": 4, "memory_limit": 64 * MiB, "num_workers": 2},
        ),
        "a compressed member of 419 MB": (
            al.from_urls(f"{folder}/huge.tar.zst"),
            {"memory_limit": 64 * MiB},
        ),
    }[case]
    return al.DataLoader(dataset, collate_fn=list, **options)


CASES = {
    "map to 4 MB": 16,
    "map to 4 MB, 16 threads": 16,
    "map to 4 MB, 16 coroutines": 16,
    "64 lanes": 64,
    "256 lanes": 64,
    "batches of 268 MB": 64,
    "batches of 268 MB, 2 workers": 64,
    "a compressed member of 419 MB": 64,
}


def measure(case: str, folder: str) -> None:
    """One pass in this process; prints a line of JSON."""
    import torch  # noqa: F401  # what it takes is not the loader's

    base_bytes = proportional_bytes(os.getpid())
    peak = PeakMemory(every_s=0.01)
    for number, _ in enumerate(islice(loader_of(case, folder), 400)):
        if number < 8:
            time.sleep(0.1)  # so that what runs ahead does
    print(json.dumps({"mb": (peak.stop() - base_bytes) / 1e6}))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)}")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(*options.measure)
        return
    print("| case | memory_limit, MB | peak above the base, MB |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        write_shards(Path(folder))
        for case in options.cases or CASES:
            peak_mb = run_fresh(__file__, case, folder)["mb"]
            print(f"| {case} | {CASES[case] * MiB / 1e6:,.0f} | {peak_mb:,.0f} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
