"""What an audit costs: one process, lines of JSON, in order and shuffled, with and without it in turn.

    python tests/benchmarks/auditing.py

Processor time of the whole process. Of other formats and with work in the recipe, batches cost more and the
audit as much.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path

import asyncloader as al

SHARDS, SAMPLES, REPEATS = 20, 5000, 7


def write(folder: Path) -> None:
    for shard in range(SHARDS):
        samples = ({"n": at, "tokens": list(range(at % 50 + 50))} for at in range(SAMPLES))
        (folder / f"{shard:03d}.jsonl").write_text("".join(json.dumps(each) + "\n" for each in samples))


def cpu_s(folder: Path, window: int | None, audit: Path | None) -> float:
    recipe = al.from_urls(str(folder / "*.jsonl"))
    if window is not None:
        recipe = recipe.shuffle(window)
    loader = al.DataLoader(recipe, 64, collate_fn=al.Pad({"tokens": 0}), lanes=4, audit=audit)
    began = time.process_time()
    for _ in loader:
        pass
    return time.process_time() - began


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder)
        for window in (None, 10_000):
            pairs = [
                (cpu_s(folder, window, None), cpu_s(folder, window, folder / f"audit-{window}-{number}"))
                for number in range(REPEATS)
            ]
            ratio = statistics.median(audited / plain for plain, audited in pairs)
            print(f"window {window}: {min(plain for plain, _ in pairs):.2f} s without, ratio {ratio:.3f}")


if __name__ == "__main__":
    main()
