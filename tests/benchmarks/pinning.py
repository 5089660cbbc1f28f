"""What pinning and the copy to the device cost, against torch's ways; needs a CUDA device.

    python tests/benchmarks/pinning.py --repeats 100

Each row is one shape of batch. All ways run in turn, within one run; the median of the repeats is shown,
in milliseconds from the batch in ordinary memory to the batch on the device, the device having finished.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data._utils.pin_memory import pin_memory

from asyncloader.device.carriers import Pinner, Uploader
from asyncloader.device.slabs import Accelerator

Batch = list[torch.Tensor]


def batches() -> dict[str, Batch]:
    return {
        "114 tensors of 1 KB": [torch.rand(256) for _ in range(114)],
        "528 tensors of 4 KB": [torch.rand(1024) for _ in range(528)],
        "tokens (64, 4096) int64": [torch.randint(0, 50_000, (64, 4096)) for _ in range(3)],
        "images (256, 3, 224, 224) uint8": [
            torch.randint(0, 256, (256, 3, 224, 224), dtype=torch.uint8),
            torch.randint(0, 1000, (256,)),
        ],
    }


def ways(device: torch.device) -> dict[str, Callable[[Batch], Any]]:
    backend = Accelerator(device)
    # This thread is stage and consumer at once, so that one batch can be timed.
    backend.enter_thread()
    pinner = Pinner(backend)
    uploader = Uploader(backend, count=3, budget_bytes=None)

    def send(batch: Batch) -> Batch:
        return [tensor.to(device, non_blocking=True) for tensor in batch]

    return {
        "to()": send,
        "torch pin": lambda batch: send(pin_memory(batch)),
        "pinned": lambda batch: send(pinner.prepare(batch).hand_over()),
        "device=": lambda batch: uploader.prepare(batch).hand_over(),
    }


def timed_ms(way: Callable[[Batch], Any], batch: Batch) -> float:
    torch.cuda.synchronize()
    started = time.perf_counter()
    way(batch)
    torch.cuda.synchronize()
    return (time.perf_counter() - started) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=100, help="timed rounds of each way (default: 100)")
    parser.add_argument("--device", default="cuda:0", help="the device, with its index (default: cuda:0)")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("This benchmark needs a CUDA device, and torch finds none.")
    device = torch.device(options.device)
    measured = ways(device)
    print(
        f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}, Python {platform.python_version()}"
    )
    print(f"median of {options.repeats}, ms")
    print(f"{'batch':<34}" + "".join(f"{name:>12}" for name in measured))
    for name, batch in batches().items():
        times: dict[str, list[float]] = {way: [] for way in measured}
        for _ in range(options.repeats + 5):  # the first few fill the allocators' caches
            for way, run in measured.items():
                times[way].append(timed_ms(run, batch))
        print(f"{name:<34}" + "".join(f"{statistics.median(column[5:]):>12.3f}" for column in times.values()))


if __name__ == "__main__":
    main()
