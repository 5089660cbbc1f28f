"""One pass of one loader, in this process, which prints what it measured as a line of JSON.

    python -m peers.one_pass MODULE FUNCTION COUNTED SOURCE [--first | --half STATE | --from STATE]

The clock starts before the loader is made, and after its module is imported, and torch, as every training has
it. The processor's time is that of this process and all below it from there on. Each sample is looked at, so
that one that is lost, repeated or damaged is seen.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import pickle
import time
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from _measure import descendants

from .corpora import BODY_BYTES
from .given import Source

__all__ = ["COUNTED", "wrong_about"]

_TICKS_S = os.sysconf("SC_CLK_TCK")


def numbers_of_bodies(batch: Any) -> list[int]:
    """Of byte strings that begin and end with it; -1 for one that is damaged."""
    return [
        int.from_bytes(body[:8], "big") if len(body) == BODY_BYTES and body[:8] == body[-8:] else -1
        for body in batch
    ]


def numbers_of_images(batch: Any) -> list[int]:
    assert tuple(batch["image"].shape[1:]) == (224, 224, 3), batch["image"].shape
    return batch["number"].tolist()  # type: ignore[no-any-return]


def numbers_of_tokens(batch: Any) -> list[int]:
    """The first token of each row."""
    tokens = batch["tokens"] if isinstance(batch, dict) else batch
    return tokens[:, 0].tolist()  # type: ignore[no-any-return]


#: How the numbers of a batch's samples are found; a limit yields how many bytes came instead.
COUNTED: dict[str, Callable[[Any], list[int]]] = {
    "bodies": numbers_of_bodies,
    "images": numbers_of_images,
    "tokens": numbers_of_tokens,
    "tiny tar": lambda batch: [int(number) for number, _ in batch],
    "tiny lines": lambda batch: [sample["num"] for sample in batch],
    "items": lambda batch: batch[0].tolist(),
    "single bodies": lambda sample: numbers_of_bodies([sample["bin"]]),
    "made": lambda batch: batch["number"].tolist(),
    "many shards": lambda batch: [0] * len(batch["txt"]),
}


def wrong_about(numbers: np.ndarray[Any, Any], samples: int, times: int) -> str:
    """What is wrong with what came; empty if each of ``samples`` numbers came ``times`` times."""
    damaged = int(np.count_nonzero((numbers < 0) | (numbers >= samples)))
    counts = np.bincount(numbers[(numbers >= 0) & (numbers < samples)], minlength=samples)
    found = {
        "lost": int(np.maximum(times - counts, 0).sum()),
        "repeated": int(np.maximum(counts - times, 0).sum()),
        "damaged": damaged,
    }
    return ", ".join(f"{count:,} {word}" for word, count in found.items() if count)


def cpu_s() -> float:
    """Of this process and all below it, those included that have ended and were waited for."""
    ticks = 0
    for pid in descendants(os.getpid()):
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            continue
        ticks += sum(map(int, stat.rpartition(")")[2].split()[11:15]))
    return ticks / _TICKS_S


@dataclass
class Clock:
    """When what came."""

    cpu_began_s: float = field(default_factory=cpu_s)
    began_s: float = field(default_factory=time.perf_counter)
    first: tuple[float, int] | None = None

    def count(self, samples: int) -> None:
        if self.first is None:
            self.first = (time.perf_counter() - self.began_s, samples)

    def figures(self, samples: int) -> dict[str, float]:
        took_s = time.perf_counter() - self.began_s
        first_s, of_first = self.first or (took_s, 0)
        rest_s = max(took_s - first_s, 1e-9)
        return {
            "samples_s": samples / took_s,
            "steady_samples_s": (samples - of_first) / rest_s if samples > of_first else samples / took_s,
            "first_s": first_s,
            "cpu_s": cpu_s() - self.cpu_began_s,
        }


def run_limit(chunks: Iterable[int], samples: int, clock: Clock) -> dict[str, Any]:
    """A limit, as if its bytes were samples."""
    total = sum(chunks)
    missing = max(0, samples * BODY_BYTES - total)
    return {**clock.figures(samples), "wrong": f"{missing:,} bytes lost" if missing else ""}


def run_loader(
    loader: Any, counted: str, source: Source, clock: Clock, options: argparse.Namespace
) -> dict[str, Any]:
    """A whole pass, or half of one and its state, or the rest from a state on."""
    numbers = array("q")
    if options.rest_from:
        # Pickled, which the states of all loaders can be; written a moment ago, by ourselves.
        state, earlier = pickle.loads(Path(options.rest_from).read_bytes())
        loader.load_state_dict(state)
        numbers.extend(earlier)
    before = len(numbers)
    half = source.samples // 2 if options.half_to else None
    for batch in loader:
        came = COUNTED[counted](batch)
        numbers.extend(came)
        clock.count(len(came))
        if options.first:
            return {**clock.figures(len(came)), "wrong": "" if came else "no samples"}
        if half is not None and len(numbers) >= half:
            Path(options.half_to).write_bytes(pickle.dumps((loader.state_dict(), numbers)))
            return {**clock.figures(len(numbers)), "wrong": ""}
    figures = clock.figures(len(numbers) - before)
    return {**figures, "wrong": wrong_about(np.array(numbers), source.samples, options.times)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("module")
    parser.add_argument("function")
    parser.add_argument("counted")
    parser.add_argument("source", help="as JSON")
    parser.add_argument("--times", type=int, default=1, help="how often each sample is to come")
    parser.add_argument("--first", action="store_true", help="stop after the first batch")
    parser.add_argument("--half", dest="half_to", help="stop there, and write the state to this file")
    parser.add_argument("--from", dest="rest_from", help="go on from the state in this file")
    options = parser.parse_args()
    source = Source.from_json(options.source)
    import_module("torch.utils.data")  # as every training has
    open_loader = getattr(import_module(options.module), options.function)
    if options.counted == "items":
        import_module("peers.items").items_of(source)
    # How many objects the imports have made decides when the next full collection comes, which takes 10 ms.
    gc.collect()
    clock = Clock()
    loader = open_loader(source)
    if options.counted == "bytes":
        found = run_limit(loader, source.samples, clock)
    else:
        found = run_loader(loader, options.counted, source, clock, options)
        if hasattr(loader, "report"):  # others are not to pay for an import of ours
            found["shares"] = {stage: round(share, 3) for stage, share in loader.report().shares.items()}
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
