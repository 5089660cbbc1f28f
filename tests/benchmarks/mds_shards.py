"""Shards of other libraries, read by their own readers and by ours: samples a second, turn by turn.

``python tests/benchmarks/mds_shards.py [--rounds N] [--scale X]``; needs ``make peers``. Each pass is a
process of its own, with 0 workers and a batch of 64: of the whole, from making the dataset on, and from the
first batch on.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]

#: Columns, samples, and whether theirs are made tensors; bytes are handed on as lists.
WORKLOADS = {
    "mds, bytes of 100 KB": ({"x": "bytes"}, 5_000),
    "mds, 1,024 tokens": ({"x": "ndarray:int32:1024"}, 60_000),
    "mds, 16 tokens": ({"x": "ndarray:int32:16"}, 200_000),
}
_BATCH = 64


def write(folder: str, workload: str, scale: float) -> None:
    """The shards, by their own library."""
    from streaming import MDSWriter

    columns, samples = WORKLOADS[workload]
    rng = np.random.default_rng(0)
    _, _, length = columns["x"].rpartition(":")
    value: Any = (
        rng.integers(0, 50_000, int(length)).astype(np.int32) if length.isdecimal() else rng.bytes(100_000)
    )
    with MDSWriter(out=folder, columns=columns) as writer:
        for _ in range(int(samples * scale)):
            writer.write({"x": value})


def theirs(folder: str) -> Callable[[], Iterable[Any]]:
    """A pass of their own reader, through torch's loader."""
    from streaming import StreamingDataset
    from torch.utils.data import DataLoader

    return lambda: DataLoader(
        StreamingDataset(local=folder, batch_size=_BATCH, shuffle=False),
        _BATCH,
        collate_fn=_collate_of(folder),
    )


def ours(folder: str) -> Callable[[], Iterable[Any]]:
    """A pass of ours."""
    import torch  # noqa: F401 - theirs has it by now as well

    from asyncloader import DataLoader, from_mds

    return lambda: DataLoader(from_mds(folder), _BATCH, collate_fn=_collate_of(folder))


def _collate_of(folder: str) -> Any:
    index = json.loads((Path(folder) / "index.json").read_text())
    return list if index["shards"][0]["column_encodings"] == ["bytes"] else None


def measure(make: Callable[[], Iterable[Any]]) -> dict[str, float]:
    """Samples a second of one pass."""
    began = time.perf_counter()
    samples, first, first_samples = 0, 0.0, 0
    for batch in make():
        size = len(batch if isinstance(batch, list) else batch["x"])
        samples += size
        if not first:
            first, first_samples = time.perf_counter(), size
    end = time.perf_counter()
    return {"whole": samples / (end - began), "steady": (samples - first_samples) / (end - first)}


def _run(python: str, *arguments: str) -> dict[str, float]:
    ran = subprocess.run(
        [python, __file__, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={"PYTHONPATH": str(ROOT)},
    )
    found: dict[str, float] = json.loads(ran.stdout.splitlines()[-1]) if ran.stdout else {}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--only", help="workloads whose names have this")
    asked = parser.parse_args()
    from peers.environment import make_environment

    python = make_environment()
    for workload in WORKLOADS:
        if asked.only and asked.only not in workload:
            continue
        with tempfile.TemporaryDirectory() as folder:
            _run(python, "write", folder, workload, str(asked.scale))
            rounds = [[_run(python, who, folder) for who in ("theirs", "ours")] for _ in range(asked.rounds)]
        for what in "whole", "steady":
            pairs = [(a[what], b[what]) for a, b in rounds]
            ratio = statistics.median(b / a for a, b in pairs)
            each = [statistics.median(side) for side in zip(*pairs, strict=True)]
            print(
                f"{workload}, {what}: theirs {each[0]:,.0f}/s, ours {each[1]:,.0f}/s, {ratio:.1f}x",
                flush=True,
            )


if __name__ == "__main__":
    if sys.argv[1:2] == ["write"]:
        write(sys.argv[2], sys.argv[3], float(sys.argv[4]))
    elif sys.argv[1:2] in (["theirs"], ["ours"]):
        print(json.dumps(measure({"theirs": theirs, "ours": ours}[sys.argv[1]](sys.argv[2]))))
    else:
        main()
