"""The same work on the same Ray cluster by ``RayWorkers`` and by Ray Data: batches of pixels for a loop.

    python tests/benchmarks/over_ray.py [--rounds 3]

Four Parquet files of numbers; a function on columns makes 3,072 float32 of each, and the loop gets batches of
64 as tensors (786 KB). Ray runs on this machine, with a processor to give for each worker and one more. A
pass is timed whole, from the making of the loader or the iterator on, and from its first batch on: Ray keeps
the processes of its tasks for the next pass, and an actor is new in each. Passes take turns, so that other
work on the machine meets both; the first round is thrown away.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from _measure import machine

import asyncloader as al

_SHARDS, _ROWS, _BATCH, _WIDTH = 4, 10_000, 64, 3_072

# Ample for what is under way of either.
_STORE_BYTES = 1 << 30


def render(columns: dict[str, Any]) -> dict[str, Any]:
    numbers = np.asarray(columns["number"], np.float32)
    return {**columns, "pixels": np.sin(numbers[:, None] + np.arange(_WIDTH, dtype=np.float32))}


def ours(folder: Path, workers: int) -> Iterable[dict[str, Any]]:
    dataset = al.from_urls(f"{folder}/*.parquet").map_batches(render, batch_size=_BATCH)
    return al.DataLoader(dataset, batch_size=_BATCH, workers=al.RayWorkers(workers))


def theirs(folder: Path, workers: int) -> Iterable[dict[str, Any]]:
    import ray

    # By default all rows would be one block, which one task renders, and no batch comes before its end.
    read = ray.data.read_parquet(str(folder)).repartition(4 * _SHARDS)
    tasks = ray.data.TaskPoolStrategy(size=workers)
    dataset = read.map_batches(render, batch_size=_BATCH, compute=tasks)
    return dataset.iter_torch_batches(batch_size=_BATCH, prefetch_batches=2 * workers)


class Pass(NamedTuple):
    """What was measured of one."""

    whole: float  # samples a second
    later: float  # likewise, behind the first batch
    first_s: float  # until that


def measure(loader: Any, folder: Path, workers: int) -> Pass:
    began_s, first_s, samples, total = time.perf_counter(), 0.0, 0, 0.0
    for batch in loader(folder, workers):
        if not first_s:
            first_s = time.perf_counter() - began_s
        samples += len(batch["number"])
        total += float(batch["pixels"][0, 0])  # a loop that looks at each
    took_s = time.perf_counter() - began_s
    assert samples == _SHARDS * _ROWS, samples
    return Pass(samples / took_s, (samples - _BATCH) / (took_s - first_s), first_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    options = parser.parse_args()
    import ray

    # A processor more than workers: Ray Data's reading is scheduled beside its functions.
    ray.init(
        address="local",
        num_cpus=options.workers + 1,
        object_store_memory=_STORE_BYTES,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
    )
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as name:
        for shard in range(_SHARDS):
            numbers = np.arange(shard * _ROWS, (shard + 1) * _ROWS)
            pq.write_table(pa.table({"number": numbers}), Path(name, f"{shard}.parquet"))
        sides = {"RayWorkers": ours, "Ray Data": theirs}
        passes: dict[str, list[Pass]] = {side: [] for side in sides}
        for _ in range(1 + options.rounds):
            for side, loader in sides.items():
                passes[side].append(measure(loader, Path(name), options.workers))
                print(side, passes[side][-1], flush=True)
    _print_table({side: several[1:] for side, several in passes.items()}, options.workers)


def _print_table(passes: dict[str, list[Pass]], workers: int) -> None:
    import ray

    print(f"\n{machine()}, {workers} workers, ray {ray.__version__}\n")
    print("| | samples/s | from the first batch | first batch, s |\n|---|---|---|---|")
    for side, several in passes.items():
        whole, later, first_s = map(statistics.median, zip(*several, strict=True))
        print(f"| {side} | {whole:,.0f} | {later:,.0f} | {first_s:.1f} |")
    pairs = [*zip(passes["RayWorkers"], passes["Ray Data"], strict=True)]
    whole, later, first_s = (
        statistics.median(one[of] / other[of] for one, other in pairs) for of in range(3)
    )
    print(f"| RayWorkers to Ray Data, median of pairs | {whole:.2f} | {later:.2f} | {first_s:.2f} |")


if __name__ == "__main__":
    main()
