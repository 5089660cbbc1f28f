"""What it costs to know where the time goes: a process with the stopwatch and with one that stands, in turn.

    python tests/benchmarks/attribution.py [--rounds 15]

Processor time of the whole process, for passes whose blocks and batches cost little, so that what is measured
at each of them weighs most: padded tokens from Parquet, lines of JSON, lines through a function, and numbers
of a map-style dataset. On a machine that is busy with other things pairs differ by more than what is looked
for; so it is also told how often a thread has come to another stage, or has asked how much of the processor's
time it took, and what that takes by itself: as a part of the quickest pass, at the least that it was measured
to take.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from _measure import machine

import asyncloader as al
from asyncloader.stopwatch import RESTING, Stopwatch
from asyncloader.torch_kind import processor_time

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
    "numbers of a map-style dataset": lambda folder: al.DataLoader(range(SHARDS * SAMPLES), 64),
}


@contextmanager
def standing() -> Iterator[None]:
    """A stopwatch that tells nothing."""
    with (
        mock.patch.multiple(
            Stopwatch,
            enter=lambda stopwatch, stage, now_s=None: RESTING,
            enter_rested=lambda stopwatch, stage, since_s, now_s: None,
            timed=lambda stopwatch, stage, items: items,
            news=lambda stopwatch, at_once=False: None,
        ),
        mock.patch.object(processor_time, "thread_time", lambda: 0.0),
    ):
        yield


class Changes(NamedTuple):
    """What of a stopwatch a pass makes use of, or what that takes, in seconds each.

    Attributes:
        entered: To come to another stage.
        told: Likewise, by somebody who knows the time already.
        rested: To come to another stage from a rest, of which it was known when it began.
        asked: The thread's time of the processor.
        items: An item of a generator, for which it comes to another stage and back.
    """

    entered: float
    told: float
    rested: float
    asked: float
    items: float


def changes(loader: Any) -> Changes:
    """How often a pass comes to another stage."""
    entered = told = rested = asked = items = 0
    enter, enter_rested, timed = Stopwatch.enter, Stopwatch.enter_rested, Stopwatch.timed

    def count(stopwatch: Stopwatch, stage: str, now_s: float | None = None) -> str:
        nonlocal entered, told
        entered += now_s is None
        told += now_s is not None
        return enter(stopwatch, stage, now_s)

    def count_rested(stopwatch: Stopwatch, stage: str, since_s: float, now_s: float) -> None:
        nonlocal rested
        rested += 1
        enter_rested(stopwatch, stage, since_s, now_s)

    def count_asked() -> float:
        nonlocal asked
        asked += 1
        return time.thread_time()

    def count_items(stopwatch: Stopwatch, stage: str, made: Generator[Any, None, None]) -> Iterator[Any]:
        nonlocal items
        with closing(timed(stopwatch, stage, made)) as given:
            for item in given:
                items += 1
                yield item

    with (
        mock.patch.multiple(Stopwatch, enter=count, enter_rested=count_rested, timed=count_items),
        mock.patch.object(processor_time, "thread_time", count_asked),
    ):
        cpu_s(loader)
    return Changes(entered - 2 * items, told, rested, asked, items)


def prices_s() -> Changes:
    """What each takes by itself."""
    watch, many = Stopwatch(), 50_000

    def nothing() -> Generator[int, None, None]:
        yield from range(many)

    def enter(now_s: float | None) -> Iterator[None]:
        for _ in range(many):
            watch.enter(RESTING, now_s)
            yield

    def repeat(call: Callable[[], object]) -> Iterator[None]:
        for _ in range(many):
            call()
            yield

    def read(items: Iterable[Any]) -> float:
        began_s = time.process_time()
        for _ in items:
            pass
        return time.process_time() - began_s

    def least(make: Callable[[], Iterable[Any]]) -> float:
        return min(read(make()) for _ in range(9)) / many

    plain_s = least(nothing)
    return Changes(
        least(lambda: enter(None)) - plain_s,
        least(lambda: enter(0.0)) - plain_s,
        least(lambda: repeat(partial(watch.enter_rested, RESTING, 0.0, 0.0))) - plain_s,
        least(lambda: repeat(time.thread_time)) - plain_s,
        least(lambda: watch.timed(RESTING, nothing())) - plain_s,
    )


def cpu_s(loader: Any) -> float:
    began_s = time.process_time()
    for _ in loader:
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
            pairs = []
            for _ in range(rounds):
                with standing():
                    without_s = cpu_s(loader)
                pairs.append((cpu_s(loader), without_s))
            ratio = statistics.median(running / without for running, without in pairs)
            took_s, counts = min(each for each, _ in pairs), changes(loader)
            share = sum(count * price for count, price in zip(counts, prices_s(), strict=True)) / took_s
            entered = counts.entered + counts.told + 2 * counts.rested + 2 * counts.items
            print(f"| {name} | {took_s:.3f} | {ratio:.3f} | {entered:,} | {share:.2%} |", flush=True)


if __name__ == "__main__":
    main()
