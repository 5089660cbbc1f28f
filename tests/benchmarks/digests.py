"""What verifying shards costs: each digest alone, and a local pass with and without an index.

    python tests/benchmarks/digests.py

Digests are computed in chunks of 2 MiB, the best of five rounds shown. The passes read 0.5 GB of tars
with samples of 100 kB from memory, the ways in turn in each of five rounds; medians are shown.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path

from _measure import machine

import asyncloader as al
from asyncloader.formats.digest import ALGORITHMS, open_digest
from asyncloader.pipeline.dataset import dataset_of
from asyncloader.pipeline.shards import Shards
from asyncloader.shards.expectations import Expectations, Expected
from asyncloader.shards.index_lookup import find_local_indexes

CHUNK = os.urandom(2 << 20)
ROUNDS = 5
SAMPLES = 5000


def gigabytes_per_s(algorithm: str) -> float | None:
    digest = open_digest(algorithm)
    if digest is None:
        return None
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(32):
            digest.update(CHUNK)
        times.append(time.perf_counter() - began)
    return 32 * len(CHUNK) / min(times) / 1e9


def seconds_of_pass(paths: tuple[str, ...], checks: Expectations) -> tuple[float, float]:
    began, cpu_began = time.perf_counter(), time.process_time()
    recipe = dataset_of(Shards(paths, ("tar",) * len(paths), checks=checks))
    assert sum(1 for _ in al.DataLoader(recipe, None)) == SAMPLES
    return time.perf_counter() - began, time.process_time() - cpu_began


def main() -> None:
    print(machine())
    for algorithm in ALGORITHMS:
        speed = gigabytes_per_s(algorithm)
        print(f"| {algorithm} | {'not installed' if speed is None else f'{speed:.1f}'} |")
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        with al.ShardWriter(f"{folder}/s-%d.tar", shard_size=128 << 20) as writer:
            for number in range(SAMPLES):
                writer.write({"__key__": str(number), "bin": os.urandom(100_000)})
        paths = tuple(shard.path for shard in writer.shards)
        found = find_local_indexes(paths)
        ways = {
            "no index": Expectations.of(),
            "cheapest": found,
            "sha256": Expectations.of(
                each and Expected(each.size_bytes, each.samples, each.sha256) for each in found
            ),
        }
        times: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
        for _ in range(ROUNDS):
            for way, checks in ways.items():
                times[way].append(seconds_of_pass(paths, checks))
    gigabytes = SAMPLES * 100_000 / 1e9
    for way, rounds in times.items():
        wall, cpu = (statistics.median(column) / gigabytes for column in zip(*rounds, strict=True))
        print(f"| {way} | {wall:.2f} | {cpu:.2f} |")


if __name__ == "__main__":
    main()
