"""How much is asked of a store that is near, and of one that is far."""

from __future__ import annotations

import itertools
import time
from collections.abc import Generator
from typing import Any

import pytest
from corpus import tar_of

import asyncloader as al
from asyncloader import testing
from asyncloader.flow import budget as readahead
from asyncloader.flow.budget import ReadAhead

MiB = 1 << 20
SHARDS, SAMPLES, SAMPLE_BYTES = 24, 160, 100_000


@pytest.fixture(scope="module")
def objects() -> dict[str, bytes]:
    return dict.fromkeys((f"{shard:02d}.tar" for shard in range(SHARDS)), tar_of(SAMPLES, SAMPLE_BYTES))


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What is allowed, each time that it is decided."""
    decided: list[int] = []

    class Watched(ReadAhead):
        def handed_on(self, *arguments: Any) -> None:
            super().handed_on(*arguments)
            decided.append(self.size_bytes)

    monkeypatch.setattr(readahead, "ReadAhead", Watched)
    return decided


def batches_of(
    server: testing.Server, objects: dict[str, bytes], **options: Any
) -> Generator[list[Any], None, None]:
    loader = al.DataLoader(
        al.from_urls([server.url_of(key) for key in objects], index=None), 16, collate_fn=list, **options
    )
    yield from loader


def asked_bytes(server: testing.Server) -> int:
    spans = [(request.range or "").removeprefix("bytes=").split("-") for request in server.requests]
    return sum(int(last) + 1 - int(first) for first, last in spans)


def test_of_a_store_that_is_near_little_is_asked_ahead(objects: dict[str, bytes], sizes: list[int]) -> None:
    taken_bytes = 0
    with testing.serve(objects) as server:
        batches = batches_of(server, objects)
        for batch in itertools.islice(batches, 60):
            taken_bytes += len(batch) * SAMPLE_BYTES
            time.sleep(0.05)  # a step of training
        ahead_bytes = asked_bytes(server) - taken_bytes
        batches.close()
    # Beside what is under way: what lies between loop and decoder, and batches made. On a busy machine the
    # consumer has to wait for a store that is near as well, now and then.
    assert ahead_bytes < max(sizes) + 16 * MiB
    assert sizes[-1] < 128 * MiB


def test_of_a_store_that_is_far_more_is_asked_until_the_consumer_need_not_wait(
    objects: dict[str, bytes], sizes: list[int]
) -> None:
    with testing.serve(objects, latency_s=0.2, rate_bytes_s=10e6) as server:
        for _ in batches_of(server, objects):
            pass
        delivered = server.counters.bytes_sent
    assert delivered > SHARDS * SAMPLES * SAMPLE_BYTES
    assert max(sizes) > 50 * MiB


def test_memory_limit_is_a_cap(objects: dict[str, bytes], sizes: list[int]) -> None:
    with testing.serve(objects, latency_s=0.1) as server:
        assert sum(map(len, batches_of(server, objects, memory_limit="16 MiB"))) == SHARDS * SAMPLES
    assert max(sizes) <= 12 * MiB


def test_the_first_part_of_the_first_shard_is_asked_for_alone(objects: dict[str, bytes]) -> None:
    """Until it is answered, whatever else is wanted."""
    latency_s = 0.2
    with testing.serve(objects, latency_s=latency_s) as server:
        batches = batches_of(server, objects, lanes=4)
        next(batches)
        batches.close()
        asked_s = [request.time_s for request in server.requests]
    assert asked_s[1] - asked_s[0] > latency_s * 0.9
