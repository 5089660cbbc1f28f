"""``asyncloader bench``: measure the rate of batches for a consumer that does nothing, and the bottleneck."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

from ..collate.pad import Pad
from ..flow.process import usable_processors
from ..observe.report import Report
from ..observe.statistics import Statistics
from ..observe.stopwatch import steady_rate
from ..quantity import bytes_text as size_of
from .arguments import add_columns, add_shards, open_dataset
from .printing import counted, print_json, print_lines, print_table, with_bar

if TYPE_CHECKING:
    from ..loader.loader import DataLoader

# Smaller differences are noise: two runs of one loader differ by as much.
_NOISE_SHARE = 0.05

HELP = (
    "Read batches with a DataLoader for some seconds, without using them. Report how fast they come, the "
    "bottleneck, and what to change."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shards(parser)
    add_columns(parser)
    loader = parser.add_argument_group("the loader")
    loader.add_argument(
        "--batch-size", type=int, default=64, metavar="N", help="samples per batch (default: 64)"
    )
    loader.add_argument(
        "--num-workers", type=int, default=0, metavar="N", help="processes that make batches (default: 0)"
    )
    loader.add_argument("--memory-limit", metavar="SIZE", help="such as 2GB (default: that of DataLoader)")
    loader.add_argument(
        "--shuffle", type=int, metavar="WINDOW", help="shuffle in windows of this many samples"
    )
    loader.add_argument(
        "--decode",
        action="store_true",
        help="decode fields by their extension, as .decode() does, and images of MDS and LitData",
    )
    loader.add_argument("--pad", metavar="NAME,...", help="pad these fields with 0, as al.Pad does")
    loader.add_argument(
        "--no-collate", action="store_true", help="do not collate: a batch is a list of samples"
    )
    loader.add_argument(
        "--cache-dir", metavar="FOLDER", help="keep shards on disk, as from_urls(cache_dir=...) does"
    )
    measuring = parser.add_argument_group("the measurement")
    measuring.add_argument(
        "--seconds",
        type=float,
        default=10.0,
        metavar="S",
        help="seconds to measure after the first batch (default: 10)",
    )
    measuring.add_argument(
        "--batches", type=int, metavar="N", help="stop after this many batches, if that is earlier"
    )
    measuring.add_argument(
        "--sweep",
        action="store_true",
        help="measure 0, 1, 2, 4, ... workers, up to one per processor, and name the best number",
    )


def run(asked: argparse.Namespace) -> int:
    _check(asked)
    from ..loader.loader import DataLoader  # imports torch

    dataset = open_dataset(asked, decode=asked.decode, cache_dir=asked.cache_dir)
    if asked.shuffle is not None:
        dataset = dataset.shuffle(asked.shuffle)
    if asked.decode:
        dataset = dataset.decode()
    options = _loader_options(asked)
    numbers = [asked.num_workers]
    if asked.sweep:
        numbers = numbers_of_workers(usable_processors())
    measured = []
    for number in with_bar(numbers, "bench", len(numbers), "loaders"):
        with _samples_checked():
            loader = DataLoader(dataset, num_workers=number, **options)
            measured.append(measure(loader, asked.seconds, asked.batches))
    best = best_of(measured)
    measured[measured.index(best)] = best = agreeing(best, measured)
    if asked.json:
        print_json({"runs": [_as_json(each) for each in measured], "best_num_workers": best.num_workers})
    elif asked.sweep:
        _print_sweep(measured, best)
    else:
        _print(best)
    return 0


def _check(asked: argparse.Namespace) -> None:
    if not (math.isfinite(asked.seconds) and asked.seconds > 0):
        raise ValueError(f"--seconds should be a number above 0, but got {asked.seconds:g}")
    if asked.batches is not None and asked.batches < 1:
        raise ValueError(f"--batches should be 1 or more, but got {asked.batches}")
    if asked.pad is not None and asked.no_collate:
        raise ValueError("--pad and --no-collate exclude one another: use one of them")


def _loader_options(asked: argparse.Namespace) -> dict[str, Any]:
    options: dict[str, Any] = {"batch_size": asked.batch_size, "memory_limit": asked.memory_limit}
    if asked.pad is not None:
        options["collate_fn"] = Pad({name.strip(): 0 for name in asked.pad.split(",")})
    elif asked.no_collate:
        options["collate_fn"] = list
    return options


@contextmanager
def _samples_checked() -> Iterator[None]:
    """Report samples that lack a field, or do not collate, as a wrong call: an option is wrong or missing.

    An error of a worker has other frames than one of this process.
    """
    try:
        yield
    except KeyError as error:
        raise ValueError(*error.args) from None
    except (RuntimeError, TypeError) as error:
        notes = getattr(error, "__notes__", [])
        if not any(note.startswith("in collate_fn") for note in notes):
            raise
        raise ValueError(f"{error}; {notes[0]}; use --pad or --no-collate") from None


def _print(measured: Measured) -> None:
    statistics = measured.statistics
    print_lines(
        f"Read {counted(statistics.samples, 'sample')}{', the whole epoch,' * measured.is_whole} in "
        f"{statistics.elapsed_s:.2f} s. After the first batch: {size_of(measured.bytes_per_s)}/s of batches.",
        *measured.report.lines,
    )


def _print_sweep(measured: list[Measured], best: Measured) -> None:
    head = ("workers", "samples/s", "bytes/s", "first batch", "bottleneck")
    print_table([head, *map(_row, measured)], right=[0, 1, 2, 3])
    print_lines(f"The best is num_workers={best.num_workers}:", *best.report.lines)


def _row(measured: Measured) -> tuple[str, ...]:
    first_s = measured.statistics.first_batch_s
    return (
        str(measured.num_workers),
        f"{measured.samples_per_s:,.0f}",
        f"{size_of(measured.bytes_per_s)}/s",
        "" if first_s is None else f"{first_s:.2f} s",
        measured.report.limit,
    )


def _as_json(measured: Measured) -> dict[str, Any]:
    report = measured.report
    return {
        "num_workers": measured.num_workers,
        "first_batch_s": measured.statistics.first_batch_s,
        "samples_per_s": measured.samples_per_s,
        "bytes_per_s": measured.bytes_per_s,
        "is_whole": measured.is_whole,
        "report": {"limit": report.limit, "wait_share": report.wait_share, "lines": [*report.lines]},
        "statistics": measured.statistics.as_dict(),
    }


@dataclass(frozen=True)
class Measured:
    """The measurement of a loader.

    Attributes:
        num_workers: Of the loader.
        is_whole: Whether the epoch ended before the time.
        statistics: Of the pass.
        report: The report of the pass.
    """

    num_workers: int
    is_whole: bool
    statistics: Statistics
    report: Report

    @property
    def samples_per_s(self) -> float:
        """The rate after the first batch, which excludes the start of processes; as in the report."""
        return self._rate(self.statistics.samples)

    @property
    def bytes_per_s(self) -> float:
        """The rate of bytes in batches after the first one. The bytes read for them may be compressed."""
        return self._rate(self.statistics.size_bytes)

    def _rate(self, count: int) -> float:
        seen = self.statistics
        return steady_rate(count, seen.batches, seen.elapsed_s, seen.first_batch_s)


def measure(loader: DataLoader[Any], seconds: float, batches: int | None = None) -> Measured:
    """Read a pass for some time, and close the loader.

    Args:
        loader: A fresh one.
        seconds: When to stop, counted from the first batch, since starting may take longer. It waits for a
            batch as long as the network policy allows.
        batches: After how many batches to stop, if that is earlier.

    Raises:
        Exception: An error of the loader.
    """
    is_whole, began_s = True, 0.0
    with loader:
        for number, _ in enumerate(loader, 1):
            began_s = began_s or perf_counter()
            if number == batches or perf_counter() - began_s >= seconds:
                is_whole = False
                break
        return Measured(loader.num_workers, is_whole, loader.statistics, loader.report())


def numbers_of_workers(processors: int) -> list[int]:
    """The numbers to try: 0, then powers of two, up to a worker for each processor."""
    powers = [1 << bit for bit in range(processors.bit_length()) if 1 << bit < processors]
    return [0, *powers, processors]


def best_of(measured: Sequence[Measured]) -> Measured:
    """The fastest; among those that differ by noise alone, the one with the fewest workers."""
    most = max(each.samples_per_s for each in measured)
    as_fast = [each for each in measured if each.samples_per_s >= most * (1 - _NOISE_SHARE)]
    return min(as_fast, key=lambda each: each.num_workers)


def agreeing(best: Measured, measured: Sequence[Measured]) -> Measured:
    """The best, without advice to try a number of workers that was tried and was no faster."""
    report = best.report
    tried = [each.num_workers for each in measured if each.num_workers > best.num_workers]
    if not tried or not re.search(r"num_workers|more workers", report.lines[2]):
        return best
    advice = f"Nothing to change: num_workers={' or '.join(map(str, tried))} was no faster."
    return replace(best, report=replace(report, lines=(*report.lines[:2], advice)))
