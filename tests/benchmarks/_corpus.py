"""The tar shards that the benchmarks of streaming read."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

__all__ = ["BATCH", "SAMPLES", "SHARDS", "write_shards"]

SHARDS, SAMPLES, SAMPLE_BYTES, BATCH = 32, 312, 100_000, 64


def write_shards(directory: Path) -> None:
    """The corpus: 32 shards, 1.0 GB, random bytes."""
    for shard in range(SHARDS):
        with tarfile.open(directory / f"train-{shard:03d}.tar", "w") as tar:
            for index in range(SAMPLES):
                member = tarfile.TarInfo(f"{shard:03d}{index:05d}.jpg")
                member.size = SAMPLE_BYTES
                tar.addfile(member, io.BytesIO(os.urandom(SAMPLE_BYTES)))
