"""Pass over samples that do not decode and shards that are gone, within a budget, and see what it was."""

import json
import tempfile
from pathlib import Path
from typing import Any

import asyncloader as al
from asyncloader.observe import Statistics


def parse(sample: dict[str, Any]) -> dict[str, Any]:
    return {"number": int(sample["number"])}  # which some samples have as a word


def train(urls: list[str], folder: Path) -> Statistics:
    budget = al.SkipErrors(max=100, consecutive=20, dead_letters=folder / "dead-letters.jsonl")
    loader = al.DataLoader(al.from_urls(urls).map(parse), batch_size=8, num_workers=2, on_error=budget)
    for _ in loader:
        ...
    return loader.statistics


def write(folder: Path) -> list[str]:
    """Four shards of 25 samples, of which two lack a number; a fifth one is not there."""
    paths = [folder / f"{shard}.jsonl" for shard in range(5)]
    for shard, path in enumerate(paths[:4]):
        numbers: list[Any] = list(range(shard * 25, shard * 25 + 25))
        if shard % 2:
            numbers[7] = "seven"
        path.write_text("".join(json.dumps({"number": number}) + "\n" for number in numbers))
    return list(map(str, paths))


with tempfile.TemporaryDirectory() as name:
    told = train(write(Path(name)), Path(name))
    letters = (Path(name) / "dead-letters.jsonl").read_text().splitlines()
print(f"{told.samples} samples, {told.skipped} skipped")
for letter in sorted(map(json.loads, letters), key=lambda letter: letter["shard"]):
    shard, error = Path(letter["shard"]).name, letter["error"].partition(":")[0]
    print(f"{letter['what']} {letter['sample']} of {shard}: {error}")
