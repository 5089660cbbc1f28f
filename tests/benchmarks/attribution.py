"""What it costs to know where the time goes: a process with the stopwatch and with one that stands, in turn.

    python tests/benchmarks/attribution.py [--rounds 15]

Processor time of the whole process, for passes whose blocks and batches cost little, so that what is measured
at each of them weighs most: padded tokens from Parquet, lines of JSON, lines through a function, and numbers
of a map-style dataset. On a machine that is busy with other things pairs differ by more than what is looked
for; so it is also told how often a thread has come to another stage, and what that takes by itself: as a part
of the quickest pass, at the least that it was measured to take. With it are the waits for a map-style
dataset's batches, with their four stages, and with the processor's time in some of them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from _measure import machine

import asyncloader as al
from asyncloader.observe.stopwatch import IDLE, Stopwatch
from asyncloader.torch_compat.timing import InlineTimer

SHARDS, SAMPLES = 8, 5_000

# Of a map-style batch: the sampler's, the dataset's, collate_fn's, and the consumer's.
STAGES = 4


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
    "numbers of a map-style dataset": lambda folder: al.DataLoader(range(SHARDS * SAMPLES), 64),
}


@contextmanager
def standing() -> Iterator[None]:
    """A stopwatch that tells nothing."""
    with (
        mock.patch.multiple(
            Stopwatch,
            enter=lambda stopwatch, stage, now_s=None: IDLE,
            timed=lambda stopwatch, stage, items: items,
            news=lambda stopwatch, at_once=False, cpu_s=None: None,
        ),
        mock.patch.multiple(
            InlineTimer,
            wait=lambda laps, now_s: None,
            fetch=lambda laps: None,
            collate=lambda laps: None,
            waited=lambda laps, now_s: None,
        ),
    ):
        yield


class Changes(NamedTuple):
    """What of a stopwatch a pass makes use of, or what that takes, in seconds each.

    Attributes:
        entered: To come to another stage.
        told: Likewise, by somebody who knows the time already.
        items: An item of a generator, for which it comes to another stage and back.
        batches: A batch of a map-style loop, with all its stages.
    """

    entered: float
    told: float
    items: float
    batches: float


def changes(loader: Any) -> Changes:
    """How often a pass comes to another stage."""
    entered = told = items = batches = 0
    enter, timed, fetch = Stopwatch.enter, Stopwatch.timed, InlineTimer.fetch

    def count(stopwatch: Stopwatch, stage: str, now_s: float | None = None) -> str:
        nonlocal entered, told
        entered += now_s is None
        told += now_s is not None
        return enter(stopwatch, stage, now_s)

    def count_items(stopwatch: Stopwatch, stage: str, made: Generator[Any, None, None]) -> Iterator[Any]:
        nonlocal items
        with closing(timed(stopwatch, stage, made)) as given:
            for item in given:
                items += 1
                yield item

    def count_batches(laps: InlineTimer) -> None:
        nonlocal batches
        batches += 1
        fetch(laps)

    with (
        mock.patch.multiple(Stopwatch, enter=count, timed=count_items),
        mock.patch.multiple(InlineTimer, fetch=count_batches),
    ):
        cpu_s(loader)
    # Of a batch's stages it knows the time of the first and the last change.
    return Changes(entered - 2 * items - 2 * batches, told - 2 * batches, items, batches)


def prices_s() -> Changes:
    """What each takes by itself, at the least of some readings."""
    watch, many = Stopwatch(), 5_000

    def nothing() -> Generator[int, None, None]:
        yield from range(many)

    def enter(now_s: float | None) -> Iterator[None]:
        for _ in range(many):
            watch.enter(IDLE, now_s)
            yield

    def batches() -> Iterator[None]:
        laps = InlineTimer("", Stopwatch(), pins=False)
        for _ in range(many):
            laps.wait(perf_counter())
            laps.fetch()
            laps.collate()
            laps.waited(perf_counter())
            yield

    def least(make: Callable[[], Iterable[Any]]) -> float:
        return min(cpu_s(make()) for _ in range(9)) / many

    plain_s = least(nothing)
    return Changes(
        least(lambda: enter(None)) - plain_s,
        least(lambda: enter(0.0)) - plain_s,
        least(lambda: watch.timed(IDLE, nothing())) - plain_s,
        least(batches) - plain_s,
    )


def cpu_s(items: Iterable[Any]) -> float:
    began_s = time.process_time()
    for _ in items:
        pass
    return time.process_time() - began_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    print(f"{machine()}\n\n| | CPU s | with the stopwatch, to without | changes of stage | by themselves |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        for name, make in CASES.items():
            loader = make(folder)
            cpu_s(loader)
            pairs, prices = [], []
            for _ in range(rounds):
                with standing():
                    without_s = cpu_s(loader)
                pairs.append((cpu_s(loader), without_s))
                prices.append(prices_s())  # in turn, too: the least of both is of the same machine
            ratio = statistics.median(running / without for running, without in pairs)
            took_s, counts = min(each for each, _ in pairs), changes(loader)
            least_s = map(min, zip(*prices, strict=True))
            share = sum(count * price for count, price in zip(counts, least_s, strict=True)) / took_s
            entered = counts.entered + counts.told + 2 * counts.items + STAGES * counts.batches
            print(f"| {name} | {took_s:.3f} | {ratio:.3f} | {entered:,} | {share:.2%} |", flush=True)


if __name__ == "__main__":
    main()
