"""How many processors a process may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import asyncloader as al
from asyncloader import testing
from asyncloader.flow.process import (
    cpu_stat_paths,
    parse_run_delay,
    parse_throttled,
    read_delay_s,
    usable_processors,
)

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


@pytest.mark.parametrize(
    ("schedstat", "seconds"),
    [
        ("87471 1583259 2\n", 0.001583259),
        ("15000000000 2500000000 77\n", 2.5),
        ("0 0 0\n", 0.0),  # a kernel that does not count
        ("", 0.0),
        ("1 2\n", 0.0),
        ("1 many 3\n", 0.0),
    ],
)
def test_the_wait_for_a_processor_is_the_second_number_of_schedstat(schedstat: str, seconds: float) -> None:
    assert parse_run_delay(schedstat) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("cpu_stat", "seconds"),
    [
        ("usage_usec 7\nuser_usec 5\nnr_periods 9\nnr_throttled 3\nthrottled_usec 1250000\n", 1.25),
        ("usage_usec 7\nuser_usec 5\nsystem_usec 2\n", 0.0),  # the root has no quota
        ("throttled_usec never\n", 0.0),
        ("", 0.0),
    ],
)
def test_a_quota_s_throttling_is_read(cpu_stat: str, seconds: float) -> None:
    assert parse_throttled(cpu_stat) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("cgroup", "paths"),
    [
        ("0::/\n", ["/sys/fs/cgroup/cpu.stat", "/sys/fs/cgroup/cpu.stat"]),
        ("0::/docker/7\n", ["/sys/fs/cgroup/docker/7/cpu.stat", "/sys/fs/cgroup/cpu.stat"]),
        ("3:memory:/a\n2:cpu,cpuacct:/b\n0::/c\n", ["/sys/fs/cgroup/c/cpu.stat", "/sys/fs/cgroup/cpu.stat"]),
        ("3:memory:/a\n2:cpu,cpuacct:/b\n", []),
        ("", []),
    ],
)
def test_the_file_of_the_quota_is_looked_for_where_containers_have_it(cgroup: str, paths: list[str]) -> None:
    assert cpu_stat_paths(cgroup) == paths


def test_a_thread_that_has_ended_has_no_wait() -> None:
    assert read_delay_s(2**30) == 0.0
