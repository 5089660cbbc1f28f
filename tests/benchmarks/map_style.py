"""Map-style datasets: asyncloader's DataLoader beside torch's.

    python tests/benchmarks/map_style.py [--rounds 7] [--workers 0 2]

Items: 1,000,000 of an int and a label, in memory; batches of 256 in order. Images: tensors of 150 KB (3 x 224
x 224 bytes) from memory and a label; batches of 64 in order. Default collation, one epoch, each in a fresh
process, in turn within one run: ours first in one round, torch's first in the next. The table gives medians
and the median of the ratios pair by pair. Samples per second count from the first batch to the last.
``CPU`` is the processor's time of the loader's process and of its workers for one batch, the start included.
``peak`` is the largest proportional memory of the loader's processes, summed.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch
from _measure import PeakMemory, machine, parser_of, run_fresh


class Items:
    """An int and a label."""

    count, batch_size = 1_000_000, 256

    def __init__(self) -> None:
        self.numbers = list(range(self.count))
        self.labels = [number % 10 for number in range(self.count)]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[int, int]:
        return self.numbers[index], self.labels[index]


class ItemsTogether(Items):
    """The same, a batch at a time."""

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[int, int]]:
        return [(self.numbers[index], self.labels[index]) for index in indices]


class Images:
    """A tensor of 150 KB and a label; some that are not in the processor's caches, again and again."""

    count, batch_size = 20_000, 64

    def __init__(self) -> None:
        self.images = [torch.full((3, 224, 224), number, dtype=torch.uint8) for number in range(250)]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.images[index % len(self.images)], index


KINDS: dict[str, type[Items | Images]] = {
    "items, `__getitem__`": Items,
    "items, `__getitems__`": ItemsTogether,
    "images of 150 KB": Images,
}


def measure(side: str, kind: str, workers: int) -> None:
    """One epoch, in this process; prints a line of JSON."""
    loader_class: Any
    if side == "ours":
        from asyncloader import DataLoader as loader_class
    else:
        from torch.utils.data import DataLoader as loader_class

    dataset = KINDS[kind]()
    loader = loader_class(dataset, dataset.batch_size, num_workers=workers)
    peak = PeakMemory()
    cpu_before_s = sum(os.times()[:4])
    began = time.perf_counter()
    batches = iter(loader)
    counted_from = samples = len(next(batches)[0])
    steady = time.perf_counter()
    for numbers, _ in batches:
        samples += len(numbers)
    ended = time.perf_counter()
    assert samples == dataset.count, f"{samples} samples"
    del batches  # the time of processes is told once they have ended
    cpu_s = sum(os.times()[:4]) - cpu_before_s
    print(
        json.dumps(
            {
                "samples_s": (samples - counted_from) / (ended - steady),
                "first_s": steady - began,
                "cpu_us": cpu_s / len(loader) * 1e6,
                "peak_mb": peak.stop() / 1e6,
            }
        )
    )


def compare(kind: str, workers: int, rounds: int) -> None:
    """A row of the table."""
    pairs = []
    for number in range(rounds):
        order = ("ours", "theirs") if number % 2 == 0 else ("theirs", "ours")
        found = {side: run_fresh(__file__, side, kind, str(workers)) for side in order}
        pairs.append((found["ours"], found["theirs"]))
    ratios = sorted(mine["samples_s"] / other["samples_s"] for mine, other in pairs)
    mine, other = (
        {key: statistics.median(pair[side][key] for pair in pairs) for key in pairs[0][0]} for side in (0, 1)
    )
    print(
        f"| {kind}, {workers} workers | {mine['samples_s']:,.0f} | {other['samples_s']:,.0f} "
        f"| {statistics.median(ratios):.2f}x ({ratios[0]:.2f} to {ratios[-1]:.2f}) "
        f"| {mine['cpu_us']:,.0f} / {other['cpu_us']:,.0f} "
        f"| {mine['first_s'] * 1000:.0f} / {other['first_s'] * 1000:.0f} "
        f"| {mine['peak_mb']:,.0f} / {other['peak_mb']:,.0f} |",
        flush=True,
    )


def main() -> None:
    options = parser_of(__doc__, rounds=7, measured=("SIDE", "KIND", "WORKERS")).parse_args()
    if options.measure:
        measure(options.measure[0], options.measure[1], int(options.measure[2]))
        return
    print(f"{machine()}\n")
    print("| dataset | asyncloader, samples/s | torch | ratio | CPU us/batch | first batch, ms | peak MB |")
    print("|---|---|---|---|---|---|---|")
    for kind in KINDS:
        for workers in options.workers:
            compare(kind, workers, options.rounds)


if __name__ == "__main__":
    main()
