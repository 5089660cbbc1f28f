"""What an audit costs: one process, lines of JSON, plain, shuffled and filtered, with and without it.

    python tests/benchmarks/auditing.py

Processor time of the whole process. Of other formats and with work in the recipe, batches cost more and the
audit as much.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncloader as al

SHARDS, SAMPLES, REPEATS = 20, 5000, 7


def write(folder: Path) -> None:
    for shard in range(SHARDS):
        samples = ({"n": at, "tokens": list(range(at % 50 + 50))} for at in range(SAMPLES))
        (folder / f"{shard:03d}.jsonl").write_text("".join(json.dumps(each) + "\n" for each in samples))


def is_third(sample: dict[str, Any]) -> bool:
    return bool(sample["n"] % 3 == 0)


RECIPES: dict[str, Callable[[al.Dataset], al.Dataset]] = {
    "in order": lambda recipe: recipe,
    "window of 10,000": lambda recipe: recipe.shuffle(10_000),
    "a third kept": lambda recipe: recipe.filter(is_third),
    "a third kept of a window": lambda recipe: recipe.shuffle(10_000).filter(is_third),
}


def cpu_s(folder: Path, name: str, audit: Path | None) -> float:
    recipe = RECIPES[name](al.from_urls(str(folder / "*.jsonl")))
    loader = al.DataLoader(recipe, 64, collate_fn=al.Pad({"tokens": 0}), lanes=4, audit=audit)
    began = time.process_time()
    for _ in loader:
        pass
    return time.process_time() - began


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write(folder)
        for name in RECIPES:
            pairs = [
                (cpu_s(folder, name, None), cpu_s(folder, name, folder / f"audit-{name}-{number}"))
                for number in range(REPEATS)
            ]
            ratio = statistics.median(audited / plain for plain, audited in pairs)
            print(f"{name}: {min(plain for plain, _ in pairs):.2f} s without, ratio {ratio:.3f}")


if __name__ == "__main__":
    main()
