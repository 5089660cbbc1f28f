"""Streaming from a server that is far away: asyncloader beside a loader written with requests.

    python tests/benchmarks/far_away.py [--rounds 3] [--latencies 0.005 0.05 0.2]

The fault server, in a process of its own, waits before the first byte of each response and sends each
connection at most 40 MB/s. Both sides read 100 KB samples out of tar shards in one process, batches of 64,
each side in a fresh process, in turn within one run; the table gives medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from _corpus import BATCH, SAMPLES, SHARDS, write_shards
from _measure import machine, run_fresh

RATE_BYTES_S = 40e6

#: The requests loader needs minutes for what the other reads in seconds; its rate shows in a few shards, and
#: the other's only once it has come up to speed. It reads the same shards again, under other URLs.
THEIR_SHARDS, OUR_SHARDS = 2, 12 * SHARDS


def ours(base: str) -> Iterator[list[bytes]]:
    """asyncloader's side."""
    import asyncloader as al

    dataset = al.from_urls(
        [f"{base}/train-{shard % SHARDS:03d}.tar?{shard // SHARDS}" for shard in range(OUR_SHARDS)]
    )
    yield from al.DataLoader(dataset, BATCH, collate_fn=lambda samples: [sample["jpg"] for sample in samples])


def theirs(base: str) -> Iterator[list[bytes]]:
    """A person's side: one shard after another, read as a stream."""
    import requests

    batch: list[bytes] = []
    with requests.Session() as session:
        for shard in range(THEIR_SHARDS):
            with (
                session.get(f"{base}/train-{shard:03d}.tar", stream=True) as response,
                tarfile.open(fileobj=response.raw, mode="r|") as tar,
            ):
                for member in tar:
                    body = tar.extractfile(member)
                    assert body is not None
                    batch.append(body.read())
                    if len(batch) == BATCH:
                        yield batch
                        batch = []
    yield batch


def measure(side: str, base: str) -> None:
    """One pass, in this process; prints a line of JSON."""
    began, samples = time.perf_counter(), 0
    for batch in (ours if side == "ours" else theirs)(base):
        if not samples:
            steady, counted_from = time.perf_counter(), len(batch)
        samples += len(batch)
    ended = time.perf_counter()
    expected = (OUR_SHARDS if side == "ours" else THEIR_SHARDS) * SAMPLES
    assert samples == expected, f"{samples} samples instead of {expected}"
    rate = (samples - counted_from) / (ended - steady)
    print(json.dumps({"samples_s": rate, "first_s": steady - began}))


@contextmanager
def far_server(directory: str, latency_s: float) -> Iterator[str]:
    """The fault server in a process of its own, as a base URL."""
    command = [sys.executable, __file__, "--serve", directory, str(latency_s)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        yield process.stdout.readline().strip()
        process.stdin.close()  # which ends it


def serve_until_closed(directory: str, latency_s: float) -> None:
    """The server's process: serves until its standard input is closed."""
    from asyncloader.testing import serve

    with serve(Path(directory), latency_s=latency_s, rate_bytes_s=RATE_BYTES_S) as server:
        print(server.url, flush=True)
        sys.stdin.read()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--latencies", type=float, nargs="+", default=[0.005, 0.05, 0.2])
    parser.add_argument("--measure", nargs=2, metavar=("SIDE", "BASE"), help=argparse.SUPPRESS)
    parser.add_argument("--serve", nargs=2, metavar=("DIRECTORY", "LATENCY"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(*options.measure)
    elif options.serve:
        serve_until_closed(options.serve[0], float(options.serve[1]))
    else:
        compare(options.rounds, options.latencies)


def compare(rounds: int, latencies_s: list[float]) -> None:
    """The table: a row for each latency, measured in turn."""
    found: dict[tuple[str, float], list[float]] = {}
    with tempfile.TemporaryDirectory() as directory:
        write_shards(Path(directory))
        for _ in range(rounds):
            for latency_s in latencies_s:
                with far_server(directory, latency_s) as base:
                    for side in ("ours", "theirs"):
                        rate = run_fresh(__file__, side, base)["samples_s"]
                        found.setdefault((side, latency_s), []).append(rate)
    print(f"{machine()}\n")
    print("| first byte after | asyncloader, samples/s | requests + tarfile | ratio |")
    print("|---|---|---|---|")
    for latency_s in latencies_s:
        mine, other = (statistics.median(found[side, latency_s]) for side in ("ours", "theirs"))
        print(f"| {latency_s * 1000:g} ms | {mine:,.0f} | {other:,.0f} | {mine / other:.1f}x |")


if __name__ == "__main__":
    main()
