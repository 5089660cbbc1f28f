"""Other libraries' shards, read by them and by us: whole passes over local disk, in turn, in one run.

    PYTHONPATH=. .peers/bin/python tests/benchmarks/litdata_chunks.py [--rounds 5] [--scale 1] [NAME ...]

In the environment that `make peers` makes. Each case is written by the library itself, and read in batches
without workers; every value of a batch is touched, since a reader that maps files has otherwise read nothing.
The first round is not counted. Shown are the medians of samples/s, and the median of the rounds' ratios with
its range; of large values also what it takes to read the files and to copy as much into `bytes`, and nothing
else: no reader whose samples own their bytes is faster.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import tempfile
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from _measure import machine

import asyncloader as al

BLOCK = 2049


@dataclass(frozen=True)
class Case:
    """Samples, and who reads them.

    Attributes:
        samples: How many at scale 1.
        batch: Samples of a batch.
        write: Writes so many samples into a folder.
        theirs: Their loader over it, with a batch size and what collates a list of samples.
        ours: Our recipe over it.
        collate: What collates; None for the default of each.
        value_bytes: Of samples that are one large value, how large that is.
    """

    samples: int
    batch: int
    write: Callable[[str, int], None]
    theirs: Callable[[str, int, Any], Iterable[Any]]
    ours: Callable[[str], al.Dataset]
    collate: Callable[[list[Any]], Any] | None = None
    value_bytes: int | None = None


def write_chunks(
    make: Callable[[int], Any], chunk_bytes: str = "16MB", **options: Any
) -> Callable[[str, int], None]:
    def write(folder: str, samples: int) -> None:
        from litdata.streaming.writer import BinaryWriter

        writer = BinaryWriter(folder, chunk_bytes=chunk_bytes, **options)
        for number in range(samples):
            writer[number] = make(number)
        writer.done()
        writer.merge()

    return write


def write_tokens(folder: str, samples: int) -> None:
    from litdata.streaming.item_loader import TokensLoader

    make = write_chunks(lambda number: torch.from_numpy(tokens_of(number)), item_loader=TokensLoader(BLOCK))
    make(folder, samples)


def read_chunks(folder: str, batch: int, collate: Any, **options: Any) -> Iterable[Any]:
    from litdata import StreamingDataLoader, StreamingDataset

    more = {} if collate is None else {"collate_fn": collate}
    dataset = StreamingDataset(folder, **options)
    loader: Iterable[Any] = StreamingDataLoader(dataset, batch_size=batch, num_workers=0, **more)
    return loader


def read_tokens(folder: str, batch: int, collate: Any) -> Iterable[Any]:
    from litdata.streaming.item_loader import TokensLoader

    return read_chunks(folder, batch, collate, item_loader=TokensLoader(BLOCK))


BODY = os.urandom(100_000)


def tokens_of(number: int) -> np.ndarray[Any, Any]:
    return np.arange(number, number + BLOCK, dtype=np.int32)


def as_list(samples: list[Any]) -> list[Any]:
    return samples


CASES = {
    # A dict of bytes is written as rows of Arrow, a tuple behind the table of offsets.
    "litdata-bytes-rows": Case(
        3_000,
        64,
        write_chunks(lambda number: {"body": BODY}, "32MB"),
        read_chunks,
        al.from_litdata,
        as_list,
        len(BODY),
    ),
    "litdata-bytes": Case(
        3_000,
        64,
        write_chunks(lambda number: (number, BODY), "32MB"),
        read_chunks,
        al.from_litdata,
        as_list,
        len(BODY),
    ),
    "litdata-tiny-rows": Case(
        200_000,
        256,
        write_chunks(lambda number: {"number": number, "label": number % 10}),
        read_chunks,
        al.from_litdata,
    ),
    "litdata-tiny": Case(
        200_000,
        256,
        write_chunks(lambda number: (number, number % 10)),
        read_chunks,
        al.from_litdata,
    ),
    "litdata-arrays": Case(
        60_000,
        64,
        write_chunks(lambda number: {"x": np.arange(200, dtype=np.int32), "y": number}),
        read_chunks,
        al.from_litdata,
    ),
    "litdata-tokens": Case(
        20_000,
        16,
        write_tokens,
        read_tokens,
        lambda folder: al.from_litdata(folder, block_size=BLOCK),
    ),
}


def touch(value: Any) -> int:
    """How many bytes there are, each page of them looked at."""
    if isinstance(value, dict):
        return sum(map(touch, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(touch, value))
    if isinstance(value, bytes | bytearray | memoryview):
        return int(np.frombuffer(value, np.uint8)[::4096].max(initial=0) >= 0) * len(value)
    return value.nbytes if isinstance(value, torch.Tensor | np.ndarray) else 8


def one_pass(loader: Iterable[Any]) -> float:
    """Seconds from the first request to the last batch."""
    began = time.perf_counter()
    found = 0
    for batch in loader:
        found += touch(batch)
    assert found
    return time.perf_counter() - began


def least_s(folder: str, batch: int, value_bytes: int) -> float:
    """Seconds to read a folder's files in pieces and to have as much of them in ``bytes`` of that length."""
    piece = memoryview(bytearray(256 << 10))
    held: deque[bytes] = deque(maxlen=2 * batch)  # as many as a loader and its consumer hold
    began = time.perf_counter()
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), "rb", buffering=0) as file:
            while size := file.readinto(piece):
                held.extend(
                    bytes(piece[at : min(at + value_bytes, size)]) for at in range(0, size, value_bytes)
                )
    return time.perf_counter() - began


def measure(name: str, case: Case, rounds: int, scale: float) -> None:
    samples = max(int(case.samples * scale), case.batch)
    with tempfile.TemporaryDirectory() as folder:
        case.write(folder, samples)
        times = []
        for _ in range(rounds + 1):
            theirs = one_pass(case.theirs(folder, case.batch, case.collate))
            more = {} if case.collate is None else {"collate_fn": case.collate}
            ours = one_pass(al.DataLoader(case.ours(folder), batch_size=case.batch, **more))
            least = least_s(folder, case.batch, case.value_bytes) if case.value_bytes else math.nan
            times.append((theirs, ours, least))
    theirs_s, ours_s, bare_s = (statistics.median(each) for each in zip(*times[1:], strict=True))
    ratios = sorted(theirs / ours for theirs, ours, _ in times[1:])
    print(
        f"{name:20} theirs {samples / theirs_s:>11,.0f}/s   ours {samples / ours_s:>11,.0f}/s   "
        f"{statistics.median(ratios):.2f}x ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        + (f"   bytes alone {samples / bare_s:>11,.0f}/s" if case.value_bytes else ""),
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", choices=[*CASES, []], help="of cases; all by default")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    print(machine())
    for name in asked.names or CASES:
        measure(name, CASES[name], asked.rounds, asked.scale)


if __name__ == "__main__":
    main()
