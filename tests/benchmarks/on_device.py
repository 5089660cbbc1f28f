"""Batches on a CUDA device: what each way there costs, and whether copies run beside the computation.

    python tests/benchmarks/on_device.py [--rounds 9]

Three tables, in Markdown. All ways run in turn within a round, and the medians over the rounds are shown.

1. One batch, from ordinary memory to the device, the device having finished.
2. Passes over batches that lie ready, so that nothing but the stage is measured; in GB/s. The bare copy is
   a loop of a few lines: two pinned buffers, filled in turn by another thread and sent on a side stream.
3. Training on images from tar files: the samples per second, and by torch's profiler how much of the time in
   which something was copied to the device its kernels ran.
"""

from __future__ import annotations

import argparse
import io
import itertools
import platform
import queue
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterableDataset
from torch.utils.data._utils.pin_memory import pin_memory

import asyncloader as al
from asyncloader.device.carriers import Pinner, Uploader
from asyncloader.device.slabs import Accelerator

Batch = list[torch.Tensor]

_BATCH = 256
_SHAPE = (3, 224, 224)
_READY_BATCHES = 200
_SHARDS, _SHARD_SAMPLES, _TRAINING_EPOCHS = 8, 512, 6
_WORKERS = 8
#: A batch of images: 38.5 MB.
_BATCH_BYTES = _BATCH * int(np.prod(_SHAPE))


def one_batch(device: torch.device, repeats: int) -> None:
    shapes: dict[str, Batch] = {
        "114 tensors of 1 KB": [torch.rand(256) for _ in range(114)],
        "528 tensors of 4 KB": [torch.rand(1024) for _ in range(528)],
        "tokens, 3 x (64, 4096) int64": [torch.randint(0, 50_000, (64, 4096)) for _ in range(3)],
        "images, (256, 3, 224, 224) uint8": [images(), torch.randint(0, 1000, (_BATCH,))],
    }
    backend = Accelerator(device)
    # This thread is stage and consumer at once, so that one batch can be timed.
    backend.enter_thread()
    pinner = Pinner(backend)
    uploader = Uploader(backend, count=3, budget_bytes=None)

    def send(batch: Batch) -> Batch:
        return [tensor.to(device, non_blocking=True) for tensor in batch]

    ways: dict[str, Callable[[Batch], Any]] = {
        "`.to()`": send,
        "torch's pinning, `.to()`": lambda batch: send(pin_memory(batch)),
        "`pin_memory=True`, `.to()`": lambda batch: send(pinner.prepare(batch).hand_over()),
        "`device=`": lambda batch: uploader.prepare(batch).hand_over(),
    }
    header("one batch, ms", ways)
    for name, batch in shapes.items():
        times: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(repeats + 5):  # the first few fill the allocators' caches
            for way, run in ways.items():
                times[way].append(seconds_of(lambda run=run, batch=batch: run(batch)))
        row(name, [f"{1000 * statistics.median(column[5:]):.3f}" for column in times.values()])


def images() -> torch.Tensor:
    return torch.randint(0, 256, (_BATCH, *_SHAPE), dtype=torch.uint8)


def seconds_of(run: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    started = time.perf_counter()
    run()
    torch.cuda.synchronize()
    return time.perf_counter() - started


def ready(batches: list[torch.Tensor]) -> Any:
    """A stream of the same few batches again and again."""
    return al.from_iterable(lambda: itertools.islice(itertools.cycle(batches), _READY_BATCHES))


class Ready(IterableDataset[torch.Tensor]):
    """The same for torch's loader."""

    def __init__(self, batches: list[torch.Tensor]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[torch.Tensor]:
        return itertools.islice(itertools.cycle(self._batches), _READY_BATCHES)


def ready_batches(device: torch.device, rounds: int) -> None:
    ordinary = [images() for _ in range(4)]
    pinned = [batch.pin_memory() for batch in ordinary]

    def stage(batches: list[torch.Tensor]) -> Iterable[torch.Tensor]:
        return al.DataLoader(ready(batches), None, device=device)

    passes: dict[str, Callable[[], object]] = {
        "bare copy": lambda: last(bare_copies(device, ordinary)),
        "`device=`": lambda: last(stage(ordinary)),
        "`pin_memory=True`, `.to()`": lambda: last(
            batch.to(device, non_blocking=True)
            for batch in al.DataLoader(ready(ordinary), None, pin_memory=True)
        ),
        "torch, `pin_memory=True`, `.to()`": lambda: last(
            batch.to(device, non_blocking=True)
            for batch in TorchDataLoader(Ready(ordinary), None, pin_memory=True)
        ),
        "`.to()`": lambda: last(batch.to(device) for batch in al.DataLoader(ready(ordinary), None)),
        "bare copy of pinned ones": lambda: last(
            pinned[number % 4].to(device, non_blocking=True) for number in range(_READY_BATCHES)
        ),
        "`device=`, pinned ones": lambda: last(stage(pinned)),
    }
    header("batches that lie ready", ["GB/s", "to the bare copy"])
    ways = {way: partial(seconds_of, run) for way, run in passes.items()}
    rates = interleaved(ways, rounds, _READY_BATCHES * _BATCH_BYTES / 1e9)
    bare = rates["bare copy"]
    for way, found in rates.items():
        beside = rates["bare copy of pinned ones"] if "pinned ones" in way else bare
        ratio = statistics.median(now / base for now, base in zip(found, beside, strict=True))
        row(way, [f"{statistics.median(found):.1f}", f"{ratio:.2f}"])


def bare_copies(device: torch.device, batches: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    """What a person would write who has a thread to fill one pinned buffer while the other is sent."""
    stream = torch.cuda.Stream(device)
    buffers = [torch.empty_like(batches[0]).pin_memory() for _ in range(3)]
    sent: list[torch.cuda.Event | None] = [None] * len(buffers)
    outlet: queue.Queue[tuple[torch.Tensor, torch.cuda.Event]] = queue.Queue(2)

    def fill() -> None:
        for number in range(_READY_BATCHES):
            slot = number % len(buffers)
            if (before := sent[slot]) is not None:
                before.synchronize()
            buffers[slot].copy_(batches[number % len(batches)])
            with torch.cuda.stream(stream):
                there = buffers[slot].to(device, non_blocking=True)
                event = torch.cuda.Event(blocking=True)
                event.record(stream)
            sent[slot] = event
            outlet.put((there, event))

    thread = threading.Thread(target=fill)
    thread.start()
    for _ in range(_READY_BATCHES):
        there, event = outlet.get()
        current = torch.cuda.current_stream(device)
        current.wait_event(event)
        there.record_stream(current)
        yield there
    thread.join()


def last(batches: Iterable[object]) -> None:
    for _batch in batches:
        pass


def interleaved(ways: dict[str, Callable[[], float]], rounds: int, amount: float) -> dict[str, list[float]]:
    """The amount a second of each way in each round, by the seconds that it returns."""
    rates: dict[str, list[float]] = {way: [] for way in ways}
    # The first round fills the allocators' caches, and starts the workers' server.
    for number in range(rounds + 1):
        for way, run in ways.items():
            rate = amount / run()
            if number:
                rates[way].append(rate)
    return rates


def decode(sample: dict[str, Any]) -> torch.Tensor:
    return torch.from_numpy(np.load(io.BytesIO(sample["npy"])))


class Step:
    """A training step of some milliseconds that needs the whole batch."""

    def __init__(self, device: torch.device) -> None:
        self._convolution = torch.nn.Conv2d(3, 256, 7, stride=4).to(device, torch.bfloat16)
        self._mix = torch.nn.Conv2d(256, 256, 3).to(device, torch.bfloat16)

    def __call__(self, batch: torch.Tensor) -> None:
        features = self._convolution(batch.to(torch.bfloat16).div_(255))
        self._mix(features).mean().backward()


def training(device: torch.device, rounds: int, folder: Path) -> None:
    with al.ShardWriter(str(folder / "train-%03d.tar"), samples_per_shard=_SHARD_SAMPLES) as writer:
        generator = np.random.default_rng(0)
        for number in range(_SHARDS * _SHARD_SAMPLES):
            image = generator.integers(0, 256, _SHAPE, dtype=np.uint8)
            buffer = io.BytesIO()
            np.save(buffer, image)
            writer.write({"__key__": f"{number:06}", "npy": buffer.getvalue()})
    dataset = al.from_urls(str(folder / "*.tar")).map(decode).repeat(_TRAINING_EPOCHS)
    step = Step(device)

    def trained(options: dict[str, Any]) -> float:
        """The seconds from the first batch on."""
        batches = iter(al.DataLoader(dataset, _BATCH, num_workers=_WORKERS, **options))
        first = next(batches)

        def train() -> None:
            for batch in itertools.chain([first], batches):
                step(batch if batch.is_cuda else batch.to(device, non_blocking=True))

        return seconds_of(train)

    ways = {
        "`pin_memory=False`, `.to()`": partial(trained, {}),
        "`pin_memory=True`, `.to()`": partial(trained, {"pin_memory": True}),
        "`device=`": partial(trained, {"device": device}),
    }
    one = images().to(device)
    step_ms = 1000 * statistics.median(seconds_of(lambda: step(one)) for _ in range(20))
    title = f"training, {_WORKERS} workers, {step_ms:.1f} ms a step"
    header(title, ["samples/s", "to the first row", "copied while kernels ran"])
    amount = _TRAINING_EPOCHS * _SHARDS * _SHARD_SAMPLES
    rates = interleaved(ways, rounds, amount)
    for way, found in rates.items():
        plain = next(iter(rates.values()))
        ratio = statistics.median(now / base for now, base in zip(found, plain, strict=True))
        overlapping = overlap(ways[way])
        row(way, [f"{statistics.median(found):,.0f}", f"{ratio:.2f}", f"{100 * overlapping:.0f} %"])


def overlap(run: Callable[[], object]) -> float:
    """The part of the time of copies to the device in which a kernel ran too."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, acc_events=True) as profiler:
        run()
        torch.cuda.synchronize()
    copies, kernels = [], []
    for event in profiler.events():
        if event.device_type != torch.autograd.DeviceType.CUDA:
            continue
        spans = copies if "Memcpy HtoD" in event.name else None if "Mem" in event.name else kernels
        if spans is not None:
            spans.append((event.time_range.start, event.time_range.end))
    both = total = 0.0
    for start, end in copies:
        total += end - start
        both += sum(max(0.0, min(end, other) - max(start, began)) for began, other in merged(kernels))
    return both / total


def merged(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    found: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def header(name: str, columns: Iterable[str]) -> None:
    columns = list(columns)
    print(f"\n| {name} | " + " | ".join(columns) + " |\n|" + "---|" * (len(columns) + 1), flush=True)


def row(name: str, columns: list[str]) -> None:
    print(f"| {name} | " + " | ".join(columns) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=9, help="timed rounds of passes (default: 9)")
    parser.add_argument("--repeats", type=int, default=100, help="of single batches (default: 100)")
    parser.add_argument("--device", default="cuda:0", help="the device, with its index (default: cuda:0)")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("This benchmark needs a CUDA device, and torch finds none.")
    device = torch.device(options.device)
    print(
        f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}, Python {platform.python_version()}"
    )
    one_batch(device, options.repeats)
    ready_batches(device, options.rounds)
    with tempfile.TemporaryDirectory(prefix="on-device-") as folder:
        training(device, options.rounds, Path(folder))


if __name__ == "__main__":
    main()
