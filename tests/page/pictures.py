"""Take the pictures of docs/how-to/trace.md: ``python tests/page/pictures.py``, with Chromium and Pillow.

The pass is a real one, over a server that refuses, cuts and delays some answers.
"""

from __future__ import annotations

import io
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import asyncloader as al  # noqa: E402
from asyncloader import testing  # noqa: E402
from asyncloader.observe.page import render  # noqa: E402
from asyncloader.observe.trace_file import read_run  # noqa: E402
from page.chromium import run_chromium  # noqa: E402

SHARDS, SAMPLES = 120, 100

# Few enough colours for a small file, and enough that nobody sees it.
COLOURS = 200


def decode(sample: Any) -> Any:
    """Some of a processor's time, as a small image takes."""
    end_s = time.thread_time() + 0.0003
    while time.thread_time() < end_s:
        pass
    return {"tokens": list(sample["txt"])}


def trace(folder: Path) -> Path:
    """A pass whose training step becomes quicker half-way."""
    draw = random.Random(0)
    with al.ShardWriter(str(folder / "train-{:03d}.tar"), samples_per_shard=SAMPLES) as writer:
        for number in range(SHARDS * SAMPLES):
            text = "x" * int(draw.lognormvariate(4, 0.4))
            writer.write({"__key__": f"{number:06d}", "txt": text, "bin": draw.randbytes(20_000)})
    faults = [
        testing.CutAt(150_000, probability=0.06),
        testing.Status(503, probability=0.04),
        testing.Delay(0.4, probability=0.05),
    ]
    path = folder / "run.json"
    with testing.serve(folder, faults, latency_s=0.03, rate_bytes_s=80e6) as server:
        recipe = al.from_urls(f"{server.url}/train-{{000..{SHARDS - 1:03d}}}.tar").shuffle(500).map(decode)
        options: dict[str, Any] = {"batch_size": 32, "num_workers": 2, "collate_fn": al.Pad({"tokens": 0})}
        next(iter(al.DataLoader(recipe, **options)))  # so that the process that workers come from is there
        for number, _ in enumerate(al.DataLoader(recipe, trace=path, **options)):
            time.sleep(0.03 if number < 200 else 0.005)
    return path


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = Path(sys.argv[1]) if len(sys.argv) > 1 else trace(folder)
        page = folder / "report.html"
        page.write_text(render(read_run(str(run))))
        with run_chromium(folder) as chromium:
            for scheme in ("light", "dark"):
                picture = Image.open(io.BytesIO(chromium.open(page, dark=scheme == "dark").picture()))
                few = picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
                few.save(ROOT / f"docs/images/report-{scheme}.png", optimize=True)


if __name__ == "__main__":
    main()
