"""A network that stalls, and a store that refuses: how much of the healthy run is left.

    python tests/benchmarks/hostile.py [--rounds 5] [stalls] [capacity]

``stalls``: 1 % of the requests get no byte for 10 s. Given are the 50th and 99th percentile of the time for a
batch, beside those of the healthy run: both sides in turn within one run, medians of the rounds.
``capacity``: the server answers 503 to every request beyond a number that it does not tell. Given are the
throughput beside that of a run in which no more requests than this are ever sent, and the share of 503s.
The shards are small there: it takes some hundred answers to find out what a server can do.
The fault server has a process of its own.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

from _measure import machine

BATCH = 16
SAMPLE_BYTES = 50_000
# Number of shards, and of samples in each.
SHAPES = {"healthy": (32, 300), "stalls": (32, 300), "best": (640, 20), "capacity": (640, 20)}


@contextmanager
def far_server(scenario: str, seed: int) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    command = [sys.executable, __file__, "--serve", scenario, str(seed)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        try:
            yield process.stdout.readline().strip(), process
        finally:
            process.stdin.close()


def serve_until_closed(scenario: str, seed: int) -> None:
    """The server's process; tells at its end how many requests there were, and how many it refused."""
    from asyncloader import testing

    kind, _, number = scenario.partition("=")
    shards, samples = SHAPES[kind]
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for index in range(samples):
            member = tarfile.TarInfo(f"{index:06d}.jpg")
            member.size = SAMPLE_BYTES
            tar.addfile(member, io.BytesIO(os.urandom(SAMPLE_BYTES)))
    objects = {f"{shard:03d}.tar": packed.getvalue() for shard in range(shards)}
    faults: dict[str, list[testing.Fault]] = {
        "healthy": [],
        "best": [],
        "stalls": [testing.Delay(10, probability=0.01)],
        "capacity": [testing.Capacity(int(number or 1))],
    }
    with testing.serve(objects, faults[kind], latency_s=0.02, rate_bytes_s=40e6, seed=seed) as server:
        print(server.url, flush=True)
        sys.stdin.read()
        requests = server.requests
        refused = sum(request.status == 503 for request in requests)
        print(json.dumps({"requests": len(requests), "refused": refused}), flush=True)


def one_run(scenario: str, seed: int) -> dict[str, float]:
    """One epoch: percentiles of the time for a batch, throughput, and what the server counted."""
    import asyncloader as al
    from asyncloader.stores.pacing import Pace

    kind, _, number = scenario.partition("=")
    shards, samples_each = SHAPES[kind]
    if kind == "best":  # what could be done by somebody who knows
        Pace.start = Pace.most = float(number)
    with far_server(scenario, seed) as (base, process):
        dataset = al.from_urls(f"{base}/{{000..{shards - 1:03d}}}.tar")
        loader = al.DataLoader(
            dataset, BATCH, collate_fn=lambda samples: [sample["jpg"] for sample in samples]
        )
        times_s, samples, before = [], 0, time.perf_counter()
        for batch in loader:
            now = time.perf_counter()
            times_s.append(now - before)
            samples += len(batch)
            before = now
        assert samples == shards * samples_each
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        counted = json.loads(process.stdout.read())
    ordered = sorted(times_s[1:])  # the first one pays for the imports
    return {
        "p50_ms": 1e3 * ordered[len(ordered) // 2],
        "p99_ms": 1e3 * ordered[len(ordered) * 99 // 100],
        "samples_s": samples / sum(times_s),
        "hedges": loader.statistics.network.hedges,
        **counted,
    }


def fresh(scenario: str, seed: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--measure", scenario, str(seed)]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=300).stdout
    found: dict[str, float] = json.loads(printed.splitlines()[-1])
    return found


def median(runs: list[dict[str, float]], key: str) -> float:
    return statistics.median(run[key] for run in runs)


def compare_stalls(rounds: int) -> None:
    pairs = [(fresh("healthy", seed), fresh("stalls", seed)) for seed in range(rounds)]
    healthy, stalled = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    print("| 1 % of requests stalled for 10 s | healthy | stalled | ratio |")
    print("|---|---|---|---|")
    for key in ("p50_ms", "p99_ms", "samples_s"):
        mine, other = median(stalled, key), median(healthy, key)
        print(f"| {key} | {other:,.1f} | {mine:,.1f} | {mine / other:.2f}x |")
    requests, hedges = (sum(run[key] for run in stalled) for key in ("requests", "hedges"))
    print(f"\n{hedges:.0f} hedges in {requests:.0f} requests, {hedges / requests:.1%}", flush=True)


def compare_capacity(rounds: int) -> None:
    print("| hidden capacity | best, samples/s | found, samples/s | ratio | 503s |")
    print("|---|---|---|---|---|")
    for capacity in (6, 12, 24):
        pairs = [
            (fresh(f"best={capacity}", seed), fresh(f"capacity={capacity}", seed)) for seed in range(rounds)
        ]
        best, found = (median([pair[side] for pair in pairs], "samples_s") for side in (0, 1))
        refused = sum(pair[1]["refused"] for pair in pairs) / sum(pair[1]["requests"] for pair in pairs)
        print(
            f"| {capacity} | {best:,.0f} | {found:,.0f} | {found / best:.2f}x | {refused:.1%} |", flush=True
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", nargs="*", default=["stalls", "capacity"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        scenario, seed = options.measure
        print(json.dumps(one_run(scenario, int(seed))))
    elif options.serve:
        serve_until_closed(options.serve[0], int(options.serve[1]))
    else:
        print(f"{machine()}\n")
        if "stalls" in options.what:
            compare_stalls(options.rounds)
        if "capacity" in options.what:
            compare_capacity(options.rounds)


if __name__ == "__main__":
    main()
