"""How fast a loader is: batches read by a consumer that does nothing, for some time, and the verdict."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from .loader import DataLoader
from .report import Report
from .statistics import Statistics

__all__ = ["Measured", "best_of", "measure", "numbers_of_workers"]

# Less is noise: two runs of one loader differ by as much.
_NOISE_SHARE = 0.05


@dataclass(frozen=True)
class Measured:
    """What was measured of a loader.

    Attributes:
        num_workers: As it was made with.
        first_batch_s: From the beginning of the pass to its first batch; None if there was none.
        samples_per_s: After the first batch, while processes start and caches fill; of a pass of one batch,
            in all.
        bytes_per_s: Of the batches, likewise: not of what was read for them, which may be compressed.
        is_whole: Whether the epoch was over before the time was.
        statistics: Of the pass.
        report: The verdict on it.
    """

    num_workers: int
    first_batch_s: float | None
    samples_per_s: float
    bytes_per_s: float
    is_whole: bool
    statistics: Statistics
    report: Report


def measure(loader: DataLoader[Any], seconds: float, batches: int | None = None) -> Measured:
    """Read a pass for some time, and close the loader.

    Args:
        loader: A fresh one.
        seconds: When to stop, counted from the first batch, since to start may take longer. A batch that
            takes longer is waited for, as long as the network policy allows.
        batches: When to stop, if that is before.

    Raises:
        Exception: Whatever the loader raises.
    """
    is_whole = True
    before = Statistics()
    with loader:
        for number, _ in enumerate(loader, 1):
            if number == 1:
                before, began_s = loader.statistics, perf_counter()
            if number == batches or perf_counter() - began_s >= seconds:
                is_whole = False
                break
        statistics, report = loader.statistics, loader.report()
    if statistics.batches < 2:
        before = Statistics()
    elapsed_s = max(statistics.elapsed_s - before.elapsed_s, 1e-9)
    return Measured(
        loader.num_workers,
        statistics.first_batch_s,
        (statistics.samples - before.samples) / elapsed_s,
        (statistics.size_bytes - before.size_bytes) / elapsed_s,
        is_whole,
        statistics,
        report,
    )


def numbers_of_workers(processors: int) -> list[int]:
    """The numbers to try: 0, and from 1 on twice the one before, up to a worker for each processor."""
    powers = [1 << bit for bit in range(processors.bit_length()) if 1 << bit < processors]
    return [0, *powers, processors]


def best_of(measured: Sequence[Measured]) -> Measured:
    """The fastest; of those that are as fast as it but for noise, the one with the fewest workers."""
    most = max(each.samples_per_s for each in measured)
    as_fast: Iterable[Measured] = (
        each for each in measured if each.samples_per_s >= most * (1 - _NOISE_SHARE)
    )
    return min(as_fast, key=lambda each: each.num_workers)
