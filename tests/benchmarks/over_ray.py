"""The same work on the same Ray cluster by ``RayWorkers`` and by Ray Data: batches of pixels for a loop.

    python tests/benchmarks/over_ray.py [--rounds 5]

Four Parquet files of numbers; a function on columns makes 3,072 float32 of each, and the loop gets batches of
64 as tensors (786 KB). Ray runs on this machine, with a processor to give for each worker and one more. A
pass is timed whole, from the making of the loader or the iterator on, and until its first batch: Ray keeps
the processes of its tasks for the next pass, and an actor is new in each. Passes take turns, so that other
work on the machine meets both; the first round is thrown away.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from _measure import machine

import asyncloader as al

_SHARDS, _ROWS, _BATCH, _WIDTH = 4, 2_500, 64, 3_072


def render(columns: dict[str, Any]) -> dict[str, Any]:
    numbers = np.asarray(columns["number"], np.float32)
    return {**columns, "pixels": np.sin(numbers[:, None] + np.arange(_WIDTH, dtype=np.float32))}


def ours(folder: Path, workers: int) -> Iterable[dict[str, Any]]:
    dataset = al.from_urls(f"{folder}/*.parquet").map_batches(render, batch_size=_BATCH)
    return al.DataLoader(dataset, batch_size=_BATCH, workers=al.RayWorkers(workers))


def theirs(folder: Path, workers: int) -> Iterable[dict[str, Any]]:
    import ray

    dataset = ray.data.read_parquet(str(folder)).map_batches(render, batch_size=_BATCH, concurrency=workers)
    return dataset.iter_torch_batches(batch_size=_BATCH, prefetch_batches=2 * workers)


def measure(loader: Any, folder: Path, workers: int) -> tuple[float, float]:
    """Samples a second of the whole pass, and seconds until its first batch."""
    began_s, first_s, samples, total = time.perf_counter(), 0.0, 0, 0.0
    for batch in loader(folder, workers):
        if not first_s:
            first_s = time.perf_counter() - began_s
        samples += len(batch["number"])
        total += float(batch["pixels"][0, 0])  # a loop that looks at each
    took_s = time.perf_counter() - began_s
    assert samples == _SHARDS * _ROWS, samples
    return samples / took_s, first_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    options = parser.parse_args()
    import ray

    # A processor more than workers: Ray Data's reading is scheduled beside its functions.
    ray.init(num_cpus=options.workers + 1, include_dashboard=False, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    with tempfile.TemporaryDirectory() as name:
        for shard in range(_SHARDS):
            numbers = np.arange(shard * _ROWS, (shard + 1) * _ROWS)
            pq.write_table(pa.table({"number": numbers}), Path(name, f"{shard}.parquet"))
        sides = {"RayWorkers": ours, "Ray Data": theirs}
        rates: dict[str, list[tuple[float, float]]] = {side: [] for side in sides}
        for _ in range(1 + options.rounds):
            for side, loader in sides.items():
                rates[side].append(measure(loader, Path(name), options.workers))
                print(
                    f"{side}: {rates[side][-1][0]:,.0f} samples/s, first in {rates[side][-1][1]:.1f} s",
                    flush=True,
                )
    print(f"{machine()}, {options.workers} workers, ray {ray.__version__}\n")
    print("| | samples/s | first batch, s |\n|---|---|---|")
    for side, pairs in rates.items():
        whole, first_s = (statistics.median(column) for column in zip(*pairs[1:], strict=True))
        print(f"| {side} | {whole:,.0f} | {first_s:.1f} |")
    ratios = [
        one[0] / other[0] for one, other in zip(rates["RayWorkers"][1:], rates["Ray Data"][1:], strict=True)
    ]
    print(f"| RayWorkers / Ray Data, median of pairs | {statistics.median(ratios):.2f} | |")


if __name__ == "__main__":
    main()
