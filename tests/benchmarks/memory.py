"""Peak memory against ``memory_limit``: a slow consumer, so that every buffer fills. 1 GB of tar from nginx.

    python tests/benchmarks/memory.py [--limits 64 128 256 512] [--workers 0 2]

For each limit (MiB) a fresh process reads batches of 64 samples of 100 KB and spends 20 ms on each. What is
printed is the peak of the proportional memory of all its processes, Python and torch included.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from _corpus import SHARDS, write_shards
from _measure import PeakMemory

BATCHES, PAUSE_S = 100, 0.02


def measure(base: str, limit_mib: int, workers: int) -> None:
    """One pass in this process; prints the peak in MB."""
    import asyncloader as al

    loader = al.DataLoader(
        al.from_urls(f"{base}/train-{{000..{SHARDS - 1:03d}}}.tar"),
        64,
        num_workers=workers,
        collate_fn=lambda samples: [each["jpg"] for each in samples],
        memory_limit=limit_mib << 20,
    )
    peak = PeakMemory()
    for _ in islice(loader, BATCHES):
        time.sleep(PAUSE_S)
    print(peak.stop() / 1e6)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--limits", type=int, nargs="+", default=[64, 128, 256, 512])
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 2])
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        base, limit, workers = options.measure
        measure(base, int(limit), int(workers))
        return
    from servers import run_nginx

    print("| memory_limit, MB | workers | peak, MB |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as directory:
        write_shards(Path(directory))
        with run_nginx(Path(directory)) as base:
            for workers in options.workers:
                for limit in options.limits:
                    command = [
                        sys.executable,
                        __file__,
                        "--measure",
                        base.rstrip("/"),
                        str(limit),
                        str(workers),
                    ]
                    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
                    print(
                        f"| {(limit << 20) / 1e6:,.0f} | {workers} | {float(done.stdout):,.0f} |", flush=True
                    )


if __name__ == "__main__":
    main()
