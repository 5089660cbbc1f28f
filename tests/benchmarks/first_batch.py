"""Time to the first batch over a link with 50 ms to the first byte and 40 MB/s a connection.

    python tests/benchmarks/first_batch.py [--rounds 9]

The server adds the delay and caps the rate. The bound is three round trips and the transfer of one part
(8 MiB); the first batch, 64 samples of 100 KB, is itself most of a part. The clock runs from ``iter()``;
imports are done before.
"""

from __future__ import annotations

import argparse
import io
import os
import statistics
import tarfile
import time

import asyncloader as al
from asyncloader.stores.reading.reader import PART_BYTES
from asyncloader.testing import serve

LATENCY_S, RATE_BYTES_S = 0.05, 40e6


def shard() -> bytes:
    """31 MB of 100 KB samples."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for index in range(312):
            member = tarfile.TarInfo(f"{index:06d}.jpg")
            member.size = 100_000
            tar.addfile(member, io.BytesIO(os.urandom(member.size)))
    return packed.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    body = shard()
    objects = {f"{index:02d}.tar": body for index in range(4)}
    took_s = []
    with serve(objects, latency_s=LATENCY_S, rate_bytes_s=RATE_BYTES_S) as server:
        dataset = al.from_urls([server.url_of(key) for key in objects])
        for _ in range(options.rounds + 1):
            loader = al.DataLoader(dataset, 64, collate_fn=lambda samples: [each["jpg"] for each in samples])
            began = time.perf_counter()
            batches = iter(loader)
            next(batches)
            took_s.append(time.perf_counter() - began)
            batches.close()
    bound_s = 3 * LATENCY_S + PART_BYTES / RATE_BYTES_S
    # The first round pays for imports.
    print(f"first batch after {statistics.median(took_s[1:]):.3f} s (median of {options.rounds})")
    print(f"bound: 3 x {LATENCY_S} s + one part = {bound_s:.3f} s")


if __name__ == "__main__":
    main()
