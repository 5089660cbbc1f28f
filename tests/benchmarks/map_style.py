"""1,000,000 items in memory, map style: asyncloader's DataLoader beside torch's.

    python tests/benchmarks/map_style.py [--rounds 7] [--workers 0 2]

An item is an int and a label; batches of 256 in order, default collation, one epoch, each in a fresh
process, in turn within one run: ours first in one round, torch's first in the next. The table gives medians
and the median of the ratios pair by pair. Samples per second count from the first batch to the last.
``peak`` is the largest proportional memory of the loader's processes, summed.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from typing import Any

from _measure import PeakMemory, machine, parser_of, run_fresh

ITEMS, BATCH = 1_000_000, 256


class Items:
    """An int and a label."""

    def __init__(self) -> None:
        self.numbers = list(range(ITEMS))
        self.labels = [number % 10 for number in range(ITEMS)]

    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, index: int) -> tuple[int, int]:
        return self.numbers[index], self.labels[index]


class ItemsTogether(Items):
    """The same, a batch at a time."""

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[int, int]]:
        return [(self.numbers[index], self.labels[index]) for index in indices]


KINDS: dict[str, type[Items]] = {"__getitem__": Items, "__getitems__": ItemsTogether}


def measure(side: str, kind: str, workers: int) -> None:
    """One epoch, in this process; prints a line of JSON."""
    loader_class: Any
    if side == "ours":
        from asyncloader import DataLoader as loader_class
    else:
        from torch.utils.data import DataLoader as loader_class

    loader = loader_class(KINDS[kind](), BATCH, num_workers=workers)
    peak = PeakMemory()
    began = time.perf_counter()
    batches = iter(loader)
    counted_from = samples = len(next(batches)[0])
    steady = time.perf_counter()
    for numbers, _ in batches:
        samples += len(numbers)
    ended = time.perf_counter()
    assert samples == ITEMS, f"{samples} samples"
    print(
        json.dumps(
            {
                "samples_s": (samples - counted_from) / (ended - steady),
                "first_s": steady - began,
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
        f"| `{kind}`, {workers} workers | {mine['samples_s']:,.0f} | {other['samples_s']:,.0f} "
        f"| {statistics.median(ratios):.2f}x ({ratios[0]:.2f} to {ratios[-1]:.2f}) "
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
    print("| dataset | asyncloader, samples/s | torch | ratio | first batch, ms | peak MB |")
    print("|---|---|---|---|---|---|")
    for kind in KINDS:
        for workers in options.workers:
            compare(kind, workers, options.rounds)


if __name__ == "__main__":
    main()
