"""When a second request is worth it, and that two that race give every byte once."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from asyncloader import testing
from asyncloader.observe.statistics import NetworkCounts
from asyncloader.stores.pacing import Hedges
from asyncloader.stores.store import NetworkPolicy

MiB = 1 << 20


def learned(times_s: list[float]) -> Hedges:
    hedges = Hedges(NetworkCounts(), True)
    for first_byte_s in times_s:
        hedges.answered(first_byte_s)
    return hedges


@pytest.mark.parametrize(
    ("times_s", "late_s"),
    [
        ([0.1] * 19, None),  # the usual time is not known yet
        ([0.1] * 20, 0.1),
        ([index / 100 for index in range(100)], 0.95),  # later than nineteen of twenty
        ([0.1] * 100 + [0.5] * 100, 0.5),  # the network has changed
        ([0.0001] * 50, 0.02),  # a fast server: so much is the noise of the machine
    ],
)
def test_bytes_are_late_when_they_take_longer_than_those_of_nearly_all_requests(
    times_s: list[float], late_s: float | None
) -> None:
    assert learned(times_s).late_s == late_s


@pytest.mark.parametrize(("answers", "granted"), [(0, 0), (19, 0), (20, 1), (200, 10)])
def test_at_most_one_request_in_twenty_is_a_hedge(answers: int, granted: int) -> None:
    hedges = learned([0.1] * answers)
    assert sum(hedges.take() for _ in range(100)) == granted


def test_an_overloaded_origin_is_not_asked_twice() -> None:
    hedges = learned([0.1] * 50)
    hedges.throttled()
    assert hedges.late_s is None


def test_a_policy_can_switch_it_off() -> None:
    hedges = Hedges(NetworkCounts(), False)
    for _ in range(50):
        hedges.answered(0.1)
    assert hedges.late_s is None


@pytest.mark.parametrize(
    "late",
    [testing.Delay(20, after=60, times=1), testing.Stall(300_000, 20, after=60, times=1)],
    ids=["first byte", "in the middle"],
)
def test_a_late_part_is_asked_for_twice_and_the_loser_cancelled(
    serve: Any, reading: Any, late: testing.Fault
) -> None:
    draw = random.Random(1)
    objects = {f"{number:03d}": draw.randbytes(400_000) for number in range(120)}
    server = serve(objects, [late], latency_s=0.005)
    began = time.monotonic()
    with reading([server.url_of(key) for key in objects], 4 * MiB, network=NetworkPolicy()) as run:
        assert run.all_shards() == list(objects.values())
        assert time.monotonic() - began < 10
        assert server.wait_idle(1), "the late request was not cancelled"
    hedged = [request for request in server.requests if late.__class__.__name__ in request.faults]
    assert [request.client_left for request in hedged] == [True]
    assert run.counts.hedges <= 0.05 * len(server.requests)


def test_two_requests_that_race_give_every_byte_once(serve: Any, reading: Any) -> None:
    """Latency that scatters widely makes many hedges, and both requests answer."""
    draw = random.Random(2)
    objects = {f"{number:03d}": draw.randbytes(20_000) for number in range(400)}
    server = serve(objects, latency_s=lambda rng: rng.choice([0.001] * 18 + [0.03, 0.06]), rate_bytes_s=5e6)
    with reading([server.url_of(key) for key in objects], 2 * MiB, network=NetworkPolicy()) as run:
        assert run.all_shards() == list(objects.values())
    assert 0 < run.counts.hedges <= 0.05 * len(server.requests)
