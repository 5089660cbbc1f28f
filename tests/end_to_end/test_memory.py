"""What a pass holds under a small limit, and that it delivers the same as under a large one."""

from __future__ import annotations

import io
import re
import tarfile
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

import asyncloader as al
from asyncloader import testing
from asyncloader.plan.topology import Topology

MiB = 1 << 20
LANES, SAMPLES, SAMPLE_BYTES = 48, 15, 200_000


def write_shards(folder: Path, shards: int = LANES, samples: int = SAMPLES, size: int = SAMPLE_BYTES) -> None:
    for shard in range(shards):
        with tarfile.open(folder / f"{shard:03d}.tar", "w") as tar:
            for index in range(samples):
                member = tarfile.TarInfo(f"{shard:03d}-{index:03d}.bin")
                member.size = size
                tar.addfile(member, io.BytesIO(bytes([shard]) * size))


def shared_bytes() -> int:
    """The shared memory that this process maps and that is there."""
    found = re.search(r"^RssShmem:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) << 10


def keys_of(dataset: al.Dataset, **options: Any) -> list[str]:
    """The keys that are delivered, each with bytes of its own shard."""
    keys: list[str] = []
    for batch in al.DataLoader(dataset, 2, collate_fn=list, **options):
        for sample in batch:
            assert sample["bin"] == bytes([int(sample["__key__"][:3])]) * SAMPLE_BYTES
            keys.append(sample["__key__"])
        del batch, sample
    return keys


def traced(dataset: al.Dataset, **options: Any) -> tuple[list[str], int]:
    """The same, and the most bytes that Python held meanwhile."""
    tracemalloc.start()
    try:
        return keys_of(dataset, **options), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_many_lanes_share_what_one_may_have(tmp_path: Path) -> None:
    write_shards(tmp_path)
    dataset = al.from_urls(f"{tmp_path}/*.tar")
    expected = keys_of(dataset, lanes=LANES)
    keys, peak_bytes = traced(dataset, lanes=LANES, memory_limit=16 * MiB)
    assert keys == expected
    assert len(set(keys)) == LANES * SAMPLES
    assert peak_bytes < 64 * MiB


def test_downloads_to_a_disk_cache_count_against_the_limit(tmp_path: Path) -> None:
    """Of shards that stall after two requests, no more is requested in others than the limit allows."""
    limit_bytes, answered, lanes = 16 * MiB, 2, 8
    (tmp_path / "shards").mkdir()
    write_shards(tmp_path / "shards", 1, samples=150)
    content = (tmp_path / "shards" / "000.tar").read_bytes()
    objects = {f"{number}.tar": content for number in range(lanes)}
    stalls = [testing.Stall(0, 60.0, key=key, after=answered) for key in objects]
    with testing.serve(objects, stalls) as server:
        urls = [server.url_of(key) for key in objects]
        dataset = al.from_urls(urls, index=None, cache_dir=tmp_path / "cache")
        loader = al.DataLoader(
            dataset, 1, collate_fn=list, lanes=lanes, memory_limit=limit_bytes, timeout=2.0
        )
        batches = iter(loader)
        with pytest.raises(TimeoutError):
            while True:
                next(batches)
        requested: dict[str, list[int]] = {}
        for request in server.requests:
            first, last = map(int, request.range.removeprefix("bytes=").split("-"))
            requested.setdefault(request.path, []).append(last + 1 - first)
        loader.close()
    stalled = [sum(sizes[answered:]) for sizes in requested.values()]
    assert len(stalled) > 1
    assert 0 < sum(stalled) <= limit_bytes


def test_the_lanes_of_a_worker_come_through_with_little(tmp_path: Path) -> None:
    write_shards(tmp_path)
    dataset = al.from_urls(f"{tmp_path}/*.tar").shuffle(4, seed=1).map(dict)
    expected = keys_of(dataset, lanes=LANES)
    with al.DataLoader(
        dataset, 2, collate_fn=list, lanes=LANES, num_workers=2, memory_limit=16 * MiB
    ) as loader:
        keys = [sample["__key__"] for batch in loader for sample in batch]
    assert keys == expected


def test_large_batches_of_workers_leave_no_shared_memory_once_they_are_copied(tmp_path: Path) -> None:
    write_shards(tmp_path, shards=4, samples=4, size=8 * MiB)
    before = shared_bytes()
    with al.DataLoader(
        al.from_urls(f"{tmp_path}/*.tar"), 4, collate_fn=list, num_workers=2, memory_limit=16 * MiB
    ) as loader:
        for number, batch in enumerate(loader):
            assert [sample["bin"][-1] for sample in batch] == [number] * 4
            assert shared_bytes() < before + 8 * MiB
    assert number == 3


def test_a_shard_made_to_use_up_memory_is_an_error_that_costs_little(tmp_path: Path) -> None:
    head = tarfile.TarInfo("a.bin")
    head.size = 1300 * MiB
    pack = zstandard.ZstdCompressor().compress
    bomb = pack(head.tobuf()) + pack(bytes(65 * MiB)) * 20
    assert len(bomb) < 1 << 17
    (tmp_path / "a.tar.zst").write_bytes(bomb)
    tracemalloc.start()
    try:
        with pytest.raises(al.FormatError, match=r"a\.tar\.zst") as caught:
            [*al.DataLoader(al.from_urls(tmp_path / "a.tar.zst"), memory_limit="64MB")]
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "made to use up memory" in str(caught.value) and peak_bytes < 400 * MiB


def _large(topology: Topology) -> Iterator[np.ndarray[Any, Any]]:
    for _ in topology.split(range(8 * 40)):
        yield np.ones(4 * MiB, np.uint8)


async def _large_async(topology: Topology) -> AsyncIterator[np.ndarray[Any, Any]]:
    for sample in _large(topology):
        yield sample
        del sample


def _growing(topology: Topology) -> Iterator[np.ndarray[Any, Any]]:
    """Small ones, of which a block may have many, and then large ones."""
    for number in topology.split(range(8 * 150)):
        yield np.ones(8 if number < 8 * 110 else 4 * MiB, np.uint8)


@pytest.mark.parametrize("make", [_large, _large_async, _growing])
def test_the_lanes_of_an_iterable_hold_few_of_large_samples(make: Any) -> None:
    loader = al.DataLoader(al.from_iterable(make), 1, collate_fn=len, lanes=8, memory_limit=20_000_000)
    tracemalloc.start()
    try:
        batches = sum(loader)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert batches == (8 * 150 if make is _growing else 8 * 40)
    # Of each lane one that is handed on, one that is made next, and what lies between loop and consumer.
    assert peak_bytes < 8 * 6 * 4 * MiB
