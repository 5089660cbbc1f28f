"""What a data set of many shards costs before the first byte is read, and with each state.

Each way of naming them is measured in a process of its own: seconds, and the peak of resident memory above
that of the imports. A state of 64 lanes deep in the data must take less than a millisecond and 10 KB.

    python tests/benchmarks/many_shards.py [SHARDS]
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

import cloudpickle

import asyncloader as al
from asyncloader.plan.pieces import Dealing

T = TypeVar("T")

ROOTS = ("s3://bucket/", "https://host/", "/data/")


def main(shards: int) -> None:
    for root in ROOTS:
        for how in ("range", "list"):
            subprocess.run([sys.executable, __file__, str(shards), root, how], check=True)


def measure(shards: int, root: str, how: str) -> None:
    al.DataLoader(al.from_urls(f"{root}0.tar")).state_dict()  # imports
    names = [f"{root}train-{number:07}.tar" for number in range(shards)] if how == "list" else ""
    pattern = f"{root}train-{{{0:07}..{shards - 1:07}}}.tar"
    before_mb = peak_mb()
    took_s: dict[str, float] = {}

    def timed(what: str, work: Callable[[], T]) -> T:
        began_s = time.perf_counter()
        done = work()
        took_s[what] = time.perf_counter() - began_s
        return done

    recipe = timed("from_urls", lambda: al.from_urls(names or pattern).shuffle(100))
    timed("repr", lambda: repr(recipe))
    loader = timed("DataLoader", lambda: al.DataLoader(recipe, 8))
    timed("plan of a lane", lambda: Dealing(shards).of_lane(0, 8, (0, 0, 0)))
    sent = timed("pickle", lambda: cloudpickle.dumps(recipe))
    timed("first state", loader.state_dict)
    timed("next state", loader.state_dict)
    deep = deep_state(recipe)
    figures = ", ".join(f"{what} {took:.6f}" for what, took in took_s.items())
    print(
        f"{root} {how}: {figures} s; {peak_mb() - before_mb:.0f} MB; {len(sent)} bytes for a worker; {deep}"
    )


def deep_state(recipe: al.Dataset, lanes: int = 64, times: int = 50) -> str:
    """The price of a state of which every lane has a long position; of many, the median."""
    loader = al.DataLoader(recipe, 8, lanes=lanes)
    fields = [
        ["emitted"],
        ["from", "from", "byte"],
        ["from", "from", "sample"],
        ["from", "shard"],
        ["window"],
    ]
    rows: list[Any] = [[lane, 12_345, 0, 999, 1 << 33, 123_456, 12_345, 1234] for lane in range(lanes)]
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


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    if len(sys.argv) > 2:
        measure(count, sys.argv[2], sys.argv[3])
    else:
        main(count)
