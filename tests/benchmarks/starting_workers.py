"""Time from the start of the loop to the first batch of two workers.

    python tests/benchmarks/starting_workers.py [--rounds 5]

Every run is a fresh process that has imported torch, as a training has. ``later`` makes the loader a few
seconds before the loop, as a training does that builds its model meanwhile. Torch's DataLoader reads the same
lines with the standard library; its workers are forked, and so have all that the parent has. What it takes to
import torch is measured in the same rounds: a recipe whose functions use it has to wait for that.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

SHARDS, LINES = 8, 2_000

PROGRAM = """
import json, sys, time
import torch
import asyncloader as al

folder, kind, wait_s = sys.argv[1], sys.argv[2], float(sys.argv[3])

class Lines(torch.utils.data.IterableDataset):
    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        for shard in range(info.id, {shards}, info.num_workers):
            with open(f"{{folder}}/shard-{{shard}}.jsonl") as file:
                yield from map(json.loads, file)

if kind == "torch":
    loader = torch.utils.data.DataLoader(Lines(), 64, num_workers=2)
else:
    recipe = al.from_urls(f"{{folder}}/shard-{{{{0..{last}}}}}.jsonl")
    if kind == "plain":
        recipe = recipe.map(lambda sample: {{**sample, "double": sample["number"] * 2}})
    if kind == "uses torch":
        recipe = recipe.map(lambda sample: {{**sample, "tensor": torch.ones(3)}})
    loader = al.DataLoader(recipe, 64, num_workers=2)
time.sleep(wait_s)
began = time.perf_counter()
next(iter(loader))
print(time.perf_counter() - began)
"""

CASES = {
    "asyncloader": ("plain", 0.0),
    "asyncloader, later": ("plain", 4.0),
    "asyncloader, a function that uses torch": ("uses torch", 0.0),
    "asyncloader, a function that uses torch, later": ("uses torch", 8.0),
    "torch's DataLoader": ("torch", 0.0),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    program = PROGRAM.format(shards=SHARDS, last=SHARDS - 1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for shard in range(SHARDS):
            lines = (json.dumps({"number": shard * LINES + line}) + "\n" for line in range(LINES))
            (folder / f"shard-{shard}.jsonl").write_text("".join(lines))

        def first_batch(kind: str, wait_s: float) -> float:
            command = [sys.executable, "-c", program, name, kind, str(wait_s)]
            return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

        measured: dict[str, Callable[[], float]] = {
            case: lambda setting=setting: first_batch(*setting)  # type: ignore[misc]
            for case, setting in CASES.items()
        }
        measured['python -c "import torch"'] = _import_torch
        took_s: dict[str, list[float]] = {case: [] for case in measured}
        for _ in range(options.rounds):
            for case, measure in measured.items():
                took_s[case].append(measure())
    width = max(map(len, took_s))
    for case, each in took_s.items():
        print(f"{case:{width}}  {statistics.median(each):5.2f} s  ({min(each):.2f} to {max(each):.2f})")


def _import_torch() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
