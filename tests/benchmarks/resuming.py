"""The first batch after a resume in the middle of 1,000 shards, beside that of a fresh start.

    python tests/benchmarks/resuming.py [--rounds 7]

The shards are tar on a server with 5 ms to the first byte. Of each kind one loader goes, in turn, to the
beginning of the epoch and to the state after half of its batches; the clock runs from ``load_state_dict`` to
the first batch. Imports, and the start of the process that workers come from, are before.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from _measure import machine

import asyncloader as al
from asyncloader.testing import serve

SHARDS, SAMPLES, SAMPLE_BYTES, BATCH = 1000, 60, 2000, 64
LATENCY_S = 0.005

RECIPES = {
    "in order": lambda recipe: recipe,
    "`.shuffle(1000)`": lambda recipe: recipe.shuffle(1000),
}


def write(folder: Path) -> None:
    """Once with an index and once without."""
    with al.ShardWriter(folder / "indexed" / "{:04d}.tar", samples_per_shard=SAMPLES) as writer:
        for number in range(SHARDS * SAMPLES):
            writer.write({"__key__": f"{number:06d}", "bin": os.urandom(SAMPLE_BYTES)})
    shutil.copytree(folder / "indexed", folder / "plain", copy_function=os.link)
    (folder / "plain" / "asyncloader-index.json").unlink()


def half_way(loader: al.DataLoader[Any]) -> Any:
    """The state of a loader after half of an epoch's batches."""
    batches = iter(loader)
    for _ in range(SHARDS * SAMPLES // BATCH // 2):
        next(batches)
    state = loader.state_dict()
    batches.close()  # type: ignore[attr-defined]
    return state


def first_batch_s(loader: al.DataLoader[Any], state: Any) -> float:
    """Seconds to the first batch from a state on."""
    began_s = time.perf_counter()
    loader.load_state_dict(state)
    batches = iter(loader)
    next(batches)
    took_s = time.perf_counter() - began_s
    batches.close()  # type: ignore[attr-defined]
    return took_s


def measure(loader: al.DataLoader[Any], rounds: int) -> tuple[float, float, float]:
    """Medians of the first batch of a fresh start and after a resume, and of their ratio round by round."""
    fresh, half = loader.state_dict(), half_way(loader)
    pairs = [(first_batch_s(loader, fresh), first_batch_s(loader, half)) for _ in range(rounds + 1)][1:]
    fresh_s, resumed_s = (statistics.median(side) for side in zip(*pairs, strict=True))
    return fresh_s, resumed_s, statistics.median(resumed / began for began, resumed in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    print(machine())
    print("| recipe | workers | index | fresh, ms | resumed, ms | ratio |\n|---|---|---|---|---|---|")
    with TemporaryDirectory() as made:
        folder = Path(made)
        write(folder)
        with serve(folder, latency_s=LATENCY_S) as server:
            for name, complete in RECIPES.items():
                for workers in (0, 2):
                    for kind in ("plain", "indexed"):
                        recipe = complete(al.from_urls(server.url_of(kind) + "/{0000..0999}.tar"))
                        with al.DataLoader(recipe, BATCH, num_workers=workers, collate_fn=len) as loader:
                            fresh_s, resumed_s, ratio = measure(loader, rounds)
                        index = "yes" if kind == "indexed" else "no"
                        print(
                            f"| {name} | {workers} | {index} | {1000 * fresh_s:.1f} | {1000 * resumed_s:.1f} "
                            f"| {ratio:.2f}x |",
                            flush=True,
                        )


if __name__ == "__main__":
    main()
