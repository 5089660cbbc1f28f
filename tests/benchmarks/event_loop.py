"""uvloop beside asyncio's own loop, under the whole loader: 1 GB of tar from nginx on loopback, no workers.

    python tests/benchmarks/event_loop.py [--rounds 7]

Each pass in a fresh process, in turn within one run; medians, and the median of the ratios pair by pair.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from _corpus import SHARDS, write_shards

import asyncloader as al


def measure(loop: str, base: str) -> None:
    """One pass in this process; prints samples/s."""
    if loop == "asyncio":
        import asyncloader.flow.engine as engine

        engine._loop_factory = lambda _: asyncio.new_event_loop
    recipe = al.from_urls(f"{base}/train-{{000..{SHARDS - 1:03d}}}.tar")
    batches = iter(al.DataLoader(recipe, batch_size=64, collate_fn=list))
    next(batches)
    began = time.perf_counter()
    samples = sum(map(len, batches))
    print(samples / (time.perf_counter() - began))


def run(loop: str, base: str) -> float:
    """One pass in a fresh process."""
    command = [sys.executable, __file__, "--measure", loop, base]
    return float(subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(*options.measure)
        return
    from servers import run_nginx

    with tempfile.TemporaryDirectory() as directory:
        write_shards(Path(directory))
        with run_nginx(Path(directory)) as base:
            pairs = [(run("uvloop", base), run("asyncio", base)) for _ in range(options.rounds)]
    for name, figures in zip(("uvloop", "asyncio"), zip(*pairs, strict=True), strict=True):
        print(f"{name}: {statistics.median(figures):,.0f} samples/s")
    print(f"uvloop / asyncio: {statistics.median(uv / own for uv, own in pairs):.2f}")


if __name__ == "__main__":
    main()
