"""What the turns cost that ``async for`` gives other tasks while batches are ready, beside none.

    python tests/benchmarks/async_turns.py [--rounds 15] [--workers 0 2]

Ints as they are (``batch_size=None``), which are as cheap as samples get, and in batches of 64, with nothing
done with them. Each pass in a fresh process, with and without turns in turn. Time counts from the first batch
to the last; the processor's is that of the thread that has the event loop.
"""

from __future__ import annotations

import asyncio
import json
import math
import statistics
import time

from _measure import machine, parser_of, run_fresh

import asyncloader as al
from asyncloader.loader import run

#: The batch size, and how many samples.
CASES = {"samples": (None, 60_000), "batches of 64": (64, 640_000)}


def measure(case: str, side: str, workers: int) -> None:
    """One pass in this process; prints what each batch took, in microseconds."""
    if side == "without":
        run._TURN_S = math.inf
    batch_size, samples = CASES[case]
    recipe = al.from_iterable(lambda topology: topology.split(range(samples)))
    loader = al.DataLoader(recipe, batch_size, num_workers=workers, collate_fn=_as_it_is)
    print(json.dumps(asyncio.run(_read(loader))))


def _as_it_is(samples: object) -> object:
    return samples


async def _read(loader: al.DataLoader[object]) -> dict[str, float]:
    batches = aiter(loader)
    await anext(batches)
    began_s, cpu_s, count = time.perf_counter(), time.thread_time(), 0
    async for _ in batches:
        count += 1
    took_s, cpu_s = time.perf_counter() - began_s, time.thread_time() - cpu_s
    return {"took": took_s / count * 1e6, "processor": cpu_s / count * 1e6}


def main() -> None:
    parser = parser_of(__doc__, rounds=15, measured=("CASE", "SIDE", "WORKERS"))
    options = parser.parse_args()
    if options.measure:
        case, side, workers = options.measure
        measure(case, side, int(workers))
        return
    print(machine())
    for case in CASES:
        for workers in options.workers:
            pairs = [
                [run_fresh(__file__, case, side, str(workers)) for side in ("with", "without")]
                for _ in range(options.rounds)
            ]
            for figure in ("took", "processor"):
                of = [[side[figure] for side in pair] for pair in pairs]
                with_us, without_us = (statistics.median(side) for side in zip(*of, strict=True))
                ratios = sorted(pair[0] / pair[1] for pair in of)
                low, high = ratios[0], ratios[-1]
                print(
                    f"{case}, {workers} workers, {figure}: {with_us:.2f} us with turns, {without_us:.2f} us "
                    f"without, ratio {statistics.median(ratios):.3f} ({low:.2f} to {high:.2f})"
                )


if __name__ == "__main__":
    main()
