"""``simulate`` against passes over the fault server, each slow for a reason that is not this machine's."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
from corpus import tar_of

import asyncloader as al
from asyncloader import testing
from asyncloader.simulate import Link, Operator, Setting, ShardSize, simulate

pytestmark = pytest.mark.usefixtures("fork_server")

MB = 1_000_000

# How far the two may be apart.
TOLERANCE = 0.2


def sleeps(sample: Any) -> Any:
    time.sleep(0.01)
    return sample


def sleeps_long(sample: Any) -> Any:
    time.sleep(0.05)
    return sample


class Case(NamedTuple):
    """A pass that is measured and simulated.

    Attributes:
        setting: What is simulated.
        limit: What limits, by both.
        recipe: What is done with each sample, as arguments of ``map``.
        options: Of the loader, which the setting has as well.
    """

    setting: Setting
    limit: str
    recipe: tuple[Any, Mapping[str, Any]] | None = None
    options: Mapping[str, Any] = MappingProxyType({})


def shards(*samples: int, sample_bytes: int) -> list[ShardSize]:
    return [ShardSize(len(tar_of(count, sample_bytes)), count) for count in samples]


CASES = {
    "far link": Case(
        Setting(shards(*[10] * 120, sample_bytes=50_000), Link(0.3, 2e6), batch_size=10),
        "store",
    ),
    "slow link": Case(
        Setting(shards(*[20] * 40, sample_bytes=50_000), Link(0.01, 0.3e6), batch_size=10),
        "store",
    ),
    "small memory": Case(
        Setting(
            shards(*[40] * 14, sample_bytes=100_000), Link(0.5, 8e6), batch_size=10, memory_limit=16 << 20
        ),
        "memory_limit",
        options={"memory_limit": "16 MiB"},
    ),
    "slow function": Case(
        Setting(
            shards(*[50] * 6, sample_bytes=1000), operators=[Operator(0.01, name="map(sleeps)")], batch_size=8
        ),
        "map(sleeps)",
        (sleeps, {}),
    ),
    "function on threads": Case(
        Setting(
            shards(*[50] * 8, sample_bytes=1000),
            operators=[Operator(0.05, 8, "map(sleeps_long)")],
            batch_size=8,
        ),
        "map(sleeps_long)",
        (sleeps_long, {"concurrency": 8}),
    ),
    "slow consumer": Case(
        Setting(shards(*[50] * 8, sample_bytes=10_000), Link(0.02, 20e6), batch_size=8, step_s=0.06),
        "consumer",
    ),
    "unequal lanes": Case(
        Setting(
            shards(60, 10, 60, 10, 60, 10, sample_bytes=1000),
            Link(0.01, 20e6),
            operators=[Operator(0.01, name="map(sleeps)")],
            batch_size=5,
            num_workers=2,
        ),
        "map(sleeps)",
        (sleeps, {}),
        {"num_workers": 2},
    ),
}


def measured(case: Case) -> tuple[float, str]:
    """Samples a second from the first batch on, and what limits."""
    setting = case.setting
    bodies = {
        f"{number}.tar": tar_of(shard.samples, (shard.size_bytes - 1024) // shard.samples // 1024 * 1024)
        for number, shard in enumerate(setting.shards)
    }
    link = setting.link
    rate = link.connection_bytes_s if link.connection_bytes_s < 1e12 else None
    with testing.serve(bodies, latency_s=link.first_byte_s, rate_bytes_s=rate) as server:
        recipe = al.from_urls([server.url_of(key) for key in bodies])
        if case.recipe is not None:
            recipe = recipe.map(case.recipe[0], **case.recipe[1])
        loader = al.DataLoader(recipe, setting.batch_size, collate_fn=len, **case.options)
        times, samples = [], []
        for batch in loader:
            times.append(time.perf_counter())
            samples.append(batch)
            if setting.step_s:
                time.sleep(setting.step_s)
        times.append(time.perf_counter())
        report = loader.report()
    assert sum(samples) == setting.samples
    return sum(samples[1:]) / (times[-1] - times[0]), report.limit


@pytest.mark.parametrize("name", CASES)
def test_no_pass_is_faster_than_the_simulated_one_and_both_name_the_same_limit(name: str) -> None:
    """All that is slow here waits, and a wait may take longer on a busy machine, but never less."""
    case = CASES[name]
    outcome = simulate(case.setting)
    rate, limit = measured(case)
    assert outcome.samples == case.setting.samples
    assert outcome.samples_per_s / 5 < rate < outcome.samples_per_s * (1 + TOLERANCE)
    assert outcome.limit == limit == case.limit


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_simulated_pass_is_as_fast_as_the_measured_one(name: str) -> None:
    """On a machine with nothing else to do."""
    outcome = simulate(CASES[name].setting)
    rate, _ = measured(CASES[name])
    assert outcome.samples_per_s == pytest.approx(rate, rel=TOLERANCE)
