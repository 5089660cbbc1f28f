"""What it costs to know where the time goes: a process with the stopwatch and with one that stands, in turn.

    python tests/benchmarks/attribution.py [--rounds 15]

Processor time of the whole process, for passes whose blocks and batches cost little, so that what is measured
at each of them weighs most: padded tokens from Parquet, lines of JSON, and lines through a function.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from _measure import machine

import asyncloader as al
from asyncloader.stopwatch import RESTING, Stopwatch

SHARDS, SAMPLES = 8, 5_000


def write(folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    draw = np.random.default_rng(0)
    for shard in range(SHARDS):
        tokens = [draw.integers(0, 50_000, length, np.int32) for length in draw.integers(16, 400, SAMPLES)]
        pq.write_table(pa.table({"tokens": tokens}), folder / f"{shard}.parquet")
        lines = (json.dumps({"number": number, "label": number % 10}) + "\n" for number in range(4 * SAMPLES))
        (folder / f"{shard}.jsonl").write_text("".join(lines))


def same(sample: Any) -> Any:
    return sample


CASES: dict[str, Callable[[str], Any]] = {
    "padded tokens from Parquet": lambda folder: al.DataLoader(
        al.from_urls(f"{folder}/*.parquet"), 64, collate_fn=al.Pad({"tokens": 0})
    ),
    "lines of JSON": lambda folder: al.DataLoader(al.from_urls(f"{folder}/*.jsonl"), 64, collate_fn=len),
    "lines through a function": lambda folder: al.DataLoader(
        al.from_urls(f"{folder}/*.jsonl").map(same), 64, collate_fn=len
    ),
}


@contextmanager
def standing() -> Iterator[None]:
    """A stopwatch that tells nothing."""
    with mock.patch.multiple(
        Stopwatch,
        enter=lambda stopwatch, stage: RESTING,
        timed=lambda stopwatch, stage, items: items,
        news=lambda stopwatch, at_once=False: None,
    ):
        yield


def cpu_s(loader: Any) -> float:
    began_s = time.process_time()
    for _ in loader:
        pass
    return time.process_time() - began_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    print(f"{machine()}\n\n| | CPU s | with the stopwatch, to without |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        for name, make in CASES.items():
            loader = make(folder)
            cpu_s(loader)
            pairs = []
            for _ in range(rounds):
                with standing():
                    without_s = cpu_s(loader)
                pairs.append((cpu_s(loader), without_s))
            ratio = statistics.median(running / without for running, without in pairs)
            print(
                f"| {name} | {statistics.median(each for each, _ in pairs):.3f} | {ratio:.3f} |", flush=True
            )


if __name__ == "__main__":
    main()
