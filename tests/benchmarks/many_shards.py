"""What a data set of many shards costs before the first byte is read, and with each state.

Each way of naming them is measured in a process of its own: seconds of the processor, and the peak of
resident memory above what the imports take. Those of a folder have an index beside them; of these the first
ones are there, so that the first batch can be asked for. All of it, from the names to that batch, must take
less than 2 s and 200 MB. A state of 64 lanes deep in the data must take less than a millisecond and
10 KB, and a worker be sent less than a megabyte, unless there is a list of names in it.

    python tests/benchmarks/many_shards.py [SHARDS]
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import asyncloader as al
from asyncloader.pipeline.dataset import stages_of
from asyncloader.plan.lanes import Deal
from asyncloader.shards.index_entries import FIRST_LINE, LAST_LINE, entry_of, parse_index
from asyncloader.stores.urls import INDEX_NAME
from asyncloader.workers.by_value import dumps_with_modules

T = TypeVar("T")

ROOTS = ("s3://bucket/", "https://host/", "/data/")
SAMPLES = 10  # of each shard that is there
THERE = 64  # shards
LOOKED_AT = 500


def main(shards: int) -> None:
    for root in ROOTS:
        for how in ("range", "list"):
            run(shards, root, how)
    with tempfile.TemporaryDirectory() as folder:
        write_index(folder, shards)
        run(shards, f"{folder}/", "index")


def run(shards: int, root: str, how: str) -> None:
    subprocess.run([sys.executable, __file__, str(shards), root, how], check=True)


def write_index(folder: str, shards: int) -> None:
    """A few shards, and an index which says that there are many."""
    with al.ShardWriter(f"{folder}/train-%07d.tar", samples_per_shard=SAMPLES) as writer:
        for number in range(THERE * SAMPLES):
            writer.write({"__key__": f"{number}", "txt": "x" * 1000})
    path = f"{folder}/{INDEX_NAME}"
    with open(path, "rb") as file:
        entries = parse_index(file.read())
    drawn = random.Random(0)
    *_, last = entries.values()
    with open(path, "wb") as file:
        file.write(FIRST_LINE)
        for number in range(shards):
            name = f"train-{number:07}.tar"
            entry = entries.get(name) or replace(
                last,
                size_bytes=1 << 23,
                samples=drawn.randrange(100, 2000),
                sha256=drawn.randbytes(32),
                crc32c=drawn.randbytes(4),
                offsets=((50, drawn.randrange(1 << 22, 1 << 23)),),
            )
            file.write(b",\n" * bool(number) + b"  " + json.dumps(entry_of(name, entry)).encode())
        file.write(LAST_LINE)
    # Of many local shards the first and the last are looked at before the first batch.
    for number in {*range(THERE, min(LOOKED_AT, shards)), *range(max(THERE, shards - LOOKED_AT), shards)}:
        os.link(f"{folder}/train-{THERE - 1:07}.tar", f"{folder}/train-{number:07}.tar")


def measure(shards: int, root: str, how: str) -> None:
    al.DataLoader(al.from_urls(f"{root}0.tar", index=None)).state_dict()  # imports
    names = [f"{root}train-{number:07}.tar" for number in range(shards)] if how == "list" else ""
    pattern = f"{root}train-{{{0:07}..{shards - 1:07}}}.tar"

    before_mb = begin_peak()
    took_s: dict[str, float] = {}

    def timed(what: str, work: Callable[[], T]) -> T:
        began_s = time.process_time()
        done = work()
        took_s[what] = time.process_time() - began_s
        return done

    # No host is asked for an index: what is measured is the processor's time.
    options = {} if how == "index" else {"index": None}
    whole = timed("from_urls", lambda: al.from_urls(names or pattern, **options))
    recipe = whole.shuffle(100)
    timed("repr", lambda: repr(recipe))
    loader = timed("DataLoader", lambda: al.DataLoader(recipe, 8))
    timed("plan of a lane", lambda: stages_of(recipe).source.places_at({}, Deal((0,), 8, 0, 0)))
    if how == "index":
        timed("first batch", lambda: first_batch(whole, 0))
    first_s, first_mb = sum(took_s.values()) - took_s["repr"], peak_mb() - before_mb
    pickled, buffers, _ = timed("pickle", lambda: dumps_with_modules(recipe))
    timed("first state", loader.state_dict)
    timed("next state", loader.state_dict)
    deep = deep_state(recipe)
    mb = peak_mb() - before_mb
    if how == "index":
        timed("first batch of two workers", lambda: first_batch(whole, 2))
    apart_mb = sum(buffer.raw().nbytes for buffer in buffers) / (1 << 20)
    figures = ", ".join(f"{what} {took:.6f}" for what, took in took_s.items())
    print(
        f"{root} {how}: {figures} s; {mb:.0f} MB; {len(pickled)} bytes for a worker and {apart_mb:.0f} MB "
        f"for all of them; {deep}"
    )
    assert how == "list" or len(pickled) < 1 << 20
    assert first_s < 2 and first_mb < 200, f"up to the first batch it took {first_s:.2f} s, {first_mb:.0f} MB"


def first_batch(recipe: al.Dataset, workers: int) -> None:
    with al.DataLoader(recipe, SAMPLES, lanes=2, num_workers=workers) as loader:
        batch = next(iter(loader))
        assert len(batch["txt"]) == SAMPLES


def deep_state(recipe: al.Dataset, lanes: int = 64, times: int = 50) -> str:
    """The price of a state of which every lane has a long position; of many, the median."""
    loader = al.DataLoader(recipe, 8, lanes=lanes)
    fields = [[0, "byte"], [0, "sample"], [0, "shard"], [1, "emitted"], [1, "pool"]]  # by stage
    rows: list[Any] = [[lane, 12_345, 0, 1 << 33, 999, 123_456, 12_345, 1234] for lane in range(lanes)]
    loader.load_state_dict({**loader.state_dict(), "ranks": {"0": [0, fields, rows]}})
    took_s = []
    for _ in range(times):
        began_s = time.perf_counter()
        state = loader.state_dict()
        took_s.append(time.perf_counter() - began_s)
    median_s, size = sorted(took_s)[times // 2], len(json.dumps(state))
    assert state["ranks"]["0"] == [0, fields, rows]
    assert median_s < 0.001 and size < 10_000, f"a state took {median_s} s and {size} bytes"
    return f"state of {lanes} lanes {median_s:.6f} s, {size} bytes"


def begin_peak() -> float:
    """Forget the peak of the imports, which is above what stays of them; the resident memory in MB."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak_mb()


def peak_mb() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    if len(sys.argv) > 2:
        measure(count, sys.argv[2], sys.argv[3])
    else:
        main(count)
