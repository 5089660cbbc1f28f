"""``simulate`` against passes over the fault server, each slow for a reason that is not this machine's."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
from corpus import tar_of

import asyncloader as al
from asyncloader import testing
from asyncloader.tools.simulate import PlannedRun, simulate

pytestmark = pytest.mark.usefixtures("fork_server")

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
        run: What is simulated.
        limit: What limits, by both.
        function: What is done with each sample.
        options: Of the loader, which the run has as well.
    """

    run: PlannedRun
    limit: str
    function: Callable[[Any], Any] | None = None
    options: Mapping[str, Any] = MappingProxyType({})


def shards(*samples: int, sample_bytes: int) -> dict[str, Any]:
    return {"shard_bytes": [len(tar_of(count, sample_bytes)) for count in samples], "shard_samples": samples}


CASES = {
    "far link": Case(
        PlannedRun(
            **shards(*[10] * 120, sample_bytes=50_000),
            first_byte_s=0.3,
            connection_bytes_s=2e6,
            batch_size=10,
        ),
        "store",
    ),
    "slow link": Case(
        PlannedRun(
            **shards(*[20] * 40, sample_bytes=50_000),
            first_byte_s=0.01,
            connection_bytes_s=0.3e6,
            batch_size=10,
        ),
        "store",
    ),
    "small memory": Case(
        PlannedRun(
            **shards(*[40] * 14, sample_bytes=100_000),
            first_byte_s=0.5,
            connection_bytes_s=8e6,
            batch_size=10,
            memory_limit=16 << 20,
        ),
        "memory_limit",
        options={"memory_limit": "16 MiB"},
    ),
    "slow function": Case(
        PlannedRun(**shards(*[50] * 6, sample_bytes=1000), map_s=0.01, batch_size=8), "map", sleeps
    ),
    "function on threads": Case(
        PlannedRun(**shards(*[50] * 8, sample_bytes=1000), map_s=0.05, concurrency=8, batch_size=8),
        "map",
        sleeps_long,
    ),
    "slow consumer": Case(
        PlannedRun(
            **shards(*[50] * 8, sample_bytes=10_000),
            first_byte_s=0.02,
            connection_bytes_s=20e6,
            batch_size=8,
            step_s=0.06,
        ),
        "consumer",
    ),
    "unequal lanes": Case(
        PlannedRun(
            # One for each lane: sizes of a web server's shards are not known, so that more are dealt in turn.
            **shards(120, 90, sample_bytes=1000),
            first_byte_s=0.01,
            connection_bytes_s=20e6,
            map_s=0.01,
            batch_size=5,
            num_workers=2,
        ),
        "map",
        sleeps,
        {"num_workers": 2},
    ),
}


def measured(case: Case) -> tuple[float, str]:
    """Samples a second from the first batch on, and what limits."""
    run = case.run
    bodies = {
        f"{number}.tar": tar_of(samples, (size_bytes - 1024) // samples // 1024 * 1024)
        for number, (size_bytes, samples) in enumerate(zip(*map(np.ndarray.tolist, run.shards), strict=True))
    }
    rate = run.connection_bytes_s if math.isfinite(run.connection_bytes_s) else None
    with testing.serve(bodies, latency_s=run.first_byte_s, rate_bytes_s=rate) as server:
        recipe = al.from_urls([server.url_of(key) for key in bodies])
        if case.function is not None:
            recipe = recipe.map(case.function, concurrency=run.concurrency)
        loader = al.DataLoader(recipe, run.batch_size, collate_fn=len, **case.options)
        times, samples = [], []
        for batch in loader:
            times.append(time.perf_counter())
            samples.append(batch)
            if run.step_s:
                time.sleep(run.step_s)
        times.append(time.perf_counter())
        report = loader.report()
    assert sum(samples) == run.samples
    return sum(samples[1:]) / (times[-1] - times[0]), report.limit


@pytest.mark.parametrize("name", CASES)
def test_no_pass_is_faster_than_the_simulated_one_and_both_name_the_same_limit(name: str) -> None:
    """All that is slow here waits, and a wait may take longer on a busy machine, but never less."""
    case = CASES[name]
    outcome = simulate(case.run)
    rate, limit = measured(case)
    assert outcome.samples == case.run.samples
    assert outcome.samples_per_s is not None
    assert outcome.samples_per_s / 5 < rate < outcome.samples_per_s * (1 + TOLERANCE)
    assert outcome.limit == limit.partition("(")[0] == case.limit


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_simulated_pass_is_as_fast_as_the_measured_one(name: str) -> None:
    """On a machine with nothing else to do."""
    outcome = simulate(CASES[name].run)
    rate, _ = measured(CASES[name])
    assert outcome.samples_per_s == pytest.approx(rate, rel=TOLERANCE)
