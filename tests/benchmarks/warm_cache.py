"""What it costs to hold each read from the disk cache against its checksum.

    python tests/benchmarks/warm_cache.py

Tars of 128 MB with samples of 100 kB are kept in a cache in memory; then passes over it, the ways in turn in
each of five rounds. Medians are shown, with the processor's time. "not compared" reads the same files and
compares nothing, which the library never does.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from _measure import machine

import asyncloader as al
from asyncloader import testing
from asyncloader.cache.copy import has_crc32c
from asyncloader.cache.folder import STRETCH_BYTES, Header
from asyncloader.formats.fields import encode_tar_sample, tar_end
from asyncloader.types import Buffer

ROUNDS = 5
SHARDS, SAMPLES, SAMPLE_BYTES = 4, 1280, 100_000


def read_unchecked(number: int, header: Header, start: int, stop: int) -> list[Buffer]:
    return [os.pread(number, stop - start, header.begin + start)]


@contextmanager
def way(name: str) -> Iterator[None]:
    if name == "not compared":
        with patch("asyncloader.cache.store.read_stretches", read_unchecked):
            yield
    elif name == "crc32":
        with patch.dict(sys.modules, {"google_crc32c": None}):
            yield
    else:
        yield


def seconds_of_pass(loader: al.DataLoader[Any]) -> tuple[float, float]:
    began, cpu_began = time.perf_counter(), time.process_time()
    assert sum(len(batch) for batch in loader) == SHARDS * SAMPLES
    return time.perf_counter() - began, time.process_time() - cpu_began


def main() -> None:
    print(machine(), f"stretches of {STRETCH_BYTES >> 10} KiB", sep=", ")
    ways = ["not compared", *(["crc32c"] if has_crc32c() else []), "crc32"]
    memory = Path("/dev/shm")
    content = os.urandom(SAMPLE_BYTES)
    tar = b"".join(encode_tar_sample({"__key__": str(n), "bin": content}) for n in range(SAMPLES)) + tar_end
    with (
        tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder,
        testing.serve({f"{n}.tar": tar for n in range(SHARDS)}) as server,
    ):
        urls = [server.url_of(f"{n}.tar") for n in range(SHARDS)]
        loader = al.DataLoader(al.from_urls(urls, cache_dir=folder), 64, collate_fn=list)
        seconds_of_pass(loader)
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for _ in range(ROUNDS):
            for name in ways:
                with way(name):
                    taken[name].append(seconds_of_pass(loader))
    for name, times in taken.items():
        wall, cpu = (statistics.median(column) for column in zip(*times, strict=True))
        size_gb = SHARDS * SAMPLES * SAMPLE_BYTES / 1e9
        print(f"| {name} | {size_gb / wall:.2f} GB/s | {cpu / size_gb:.2f} s of processor a GB |")


if __name__ == "__main__":
    main()
