"""What it costs to know where the time goes: a process with the stopwatch and with one that stands, in turn.

    python tests/benchmarks/attribution.py [--rounds 15]

Processor time of the whole process, for passes whose blocks and batches cost little, so that what is measured
at each of them weighs most: padded tokens from Parquet, lines of JSON, lines through a function, and numbers
of a map-style dataset. On a machine that is busy with other things pairs differ by more than what is looked
for; so it is also told how often a thread has come to another stage, and what that takes by itself: as a part
of the quickest pass, at the least that it was measured to take. With it are the calls in which the stages of
a map-style dataset's batches are noted and summed up, and what is told of the sums, and asked of the
processor's time, in some of them.
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
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from _measure import machine

import asyncloader as al
from asyncloader.observe.stopwatch import IDLE, Stopwatch
from asyncloader.torch_compat import timing as torchs
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
            measure=lambda laps: None,
            fetch=lambda laps: None,
            collate=lambda laps: None,
            waited=lambda laps, since_s, now_s: None,
            left=lambda laps, since_s, now_s: None,
        ),
    ):
        yield


class Changes(NamedTuple):
    """What of a stopwatch a pass makes use of, or what that takes, in seconds each.

    Attributes:
        entered: To come to another stage.
        told: Likewise, by somebody who knows the time already.
        items: An item of a generator, for which it comes to another stage and back.
        noted: A batch of a map-style loop, with all its stages.
        measured: Likewise, where the processor's time is asked for and the sums are told.
    """

    entered: float
    told: float
    items: float
    noted: float
    measured: float


def changes(loader: Any) -> Changes:
    """How often a pass comes to another stage."""
    entered = told = items = batches = measured = 0
    enter, timed, fetch, measure = Stopwatch.enter, Stopwatch.timed, InlineTimer.fetch, InlineTimer._measured

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

    def count_measured(laps: InlineTimer, *times: float) -> Any:
        nonlocal entered, told, measured
        before = entered, told
        spent = measure(laps, *times)
        entered, told = before  # what it tells is in the price of measuring
        measured += 1
        return spent

    with (
        mock.patch.multiple(Stopwatch, enter=count, timed=count_items),
        mock.patch.multiple(InlineTimer, fetch=count_batches, _measured=count_measured),
    ):
        cpu_s(loader)
    return Changes(entered - 2 * items, told, items, batches - measured, measured)


def prices_s() -> Changes:
    """What each takes by itself, at the least of some readings."""
    watch, many = Stopwatch(), 5_000
    times_s = [float(number) for number in range(many)]

    def nothing() -> Generator[int, None, None]:
        yield from range(many)

    def enter(now_s: float | None) -> Iterator[None]:
        for _ in range(many):
            watch.enter(IDLE, now_s)
            yield

    def batches(measured: bool) -> Iterator[None]:
        laps = InlineTimer("", Stopwatch(), pins=False)
        with mock.patch.object(torchs, "_MEASURE_S", 0.0):  # to skip none, but for those that it begins with
            laps.skips = 0 if measured else many + 1
            for now_s in times_s:
                if not laps.skips:
                    laps.measure()
                laps.fetch()
                laps.collate()
                laps.waited(now_s, now_s)
                yield

    def least(make: Callable[[], Iterable[Any]]) -> float:
        return min(cpu_s(make()) for _ in range(9)) / many

    plain_s = least(nothing)
    return Changes(
        least(lambda: enter(None)) - plain_s,
        least(lambda: enter(0.0)) - plain_s,
        least(lambda: watch.timed(IDLE, nothing())) - plain_s,
        least(lambda: batches(measured=False)) - plain_s,
        least(lambda: batches(measured=True)) - plain_s,
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
            batches = counts.noted + counts.measured
            entered = counts.entered + counts.told + 2 * counts.items + STAGES * batches
            print(f"| {name} | {took_s:.3f} | {ratio:.3f} | {entered:,} | {share:.2%} |", flush=True)


if __name__ == "__main__":
    main()
