"""How many processors a process may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import asyncloader as al
from asyncloader import testing
from asyncloader.processors import usable_processors

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")


@pytest.fixture(autouse=True)
def _on_one() -> Iterator[None]:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    yield
    os.sched_setaffinity(0, allowed)


def test_those_count_that_are_left_to_the_process() -> None:
    assert usable_processors() == 1


def test_no_more_shards_are_measured_at_a_time_than_there_are_processors(tmp_path: Path) -> None:
    with testing.serve({f"{shard}.jsonl": b"{}\n" for shard in range(6)}, latency_s=0.02) as server:
        urls = [server.url_of(f"{shard}.jsonl") for shard in range(6)]
        al.build_index(urls, output=tmp_path / "asyncloader-index.json")
        assert server.counters.max_concurrent == 1
