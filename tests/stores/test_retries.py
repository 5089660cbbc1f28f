"""When another attempt is made, when not, and how long it waits: the rules without a network."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncloader.errors import StoreError
from asyncloader.stores.failures import TransientError
from asyncloader.stores.pacing import Attempts, RetryBudget
from asyncloader.stores.store import NetworkPolicy

CUT = TransientError("the body was cut", shard="http://host/x", status=None, offset=7)


def pauses(policy: NetworkPolicy, seed: int, *, error: TransientError = CUT) -> list[float]:
    """The pauses until it is given up, each waited for."""
    attempts = Attempts(policy, RetryBudget(), random.Random(seed))
    now, waited = 100.0, []
    while True:
        try:
            waited.append(attempts.pause_s(error, now))
        except StoreError:
            return waited
        now += waited[-1]


@pytest.mark.parametrize(
    ("policy", "failures", "ends"),
    [
        # Moments at which an attempt fails, with the bytes that it brought: how the series goes on.
        (NetworkPolicy(attempts=1), [(0, 0)], r"gave up after 1 attempt \["),
        (NetworkPolicy(attempts=2), [(0, 0)], None),
        (NetworkPolicy(attempts=2), [(0, 0), (3, 0)], r"gave up after 2 attempts in 3\.0 s \["),
        (NetworkPolicy(attempts=2), [(0, 0), (3, 128 << 10)], None),  # counted anew after a small part
        (NetworkPolicy(attempts=2), [(0, 0), (3, 127 << 10)], r"after 2 attempts in 3\.0 s \["),
        (NetworkPolicy(attempts=2), [(0, 0), (3, 128 << 10), (5, 100)], r"after 2 attempts in 2\.0 s \["),
        (NetworkPolicy(attempts=9, deadline_s=60), [(0, 0), (40, 0)], None),
        (NetworkPolicy(attempts=9, deadline_s=60), [(0, 0), (60, 0)], r"after 2 attempts in 60\.0 s \["),
        (NetworkPolicy(attempts=9, deadline_s=60), [(0, 0), (60, 128 << 10)], None),
    ],
)
def test_a_series_of_attempts_ends_by_their_number_or_by_the_time_since_the_first_failure(
    policy: NetworkPolicy, failures: list[tuple[float, int]], ends: str | None
) -> None:
    attempts = Attempts(policy, RetryBudget(), random.Random(0))
    for number, (now_s, size) in enumerate(failures):
        attempts.received(size)
        if ends is not None and number == len(failures) - 1:
            with pytest.raises(StoreError, match=ends):
                attempts.pause_s(CUT, now_s)
        else:
            assert attempts.pause_s(CUT, now_s) >= 0


@pytest.mark.parametrize(
    ("failed_s", "outlook"),
    [
        (
            [0.0],
            "retrying in 0.5 s, attempt 2 of at most 6 for these bytes, all of them to begin within 60 s",
        ),
        (
            [0.0, 9.7],
            "retrying in 0.5 s, attempt 3 of at most 6 for these bytes, all of them to begin within 51 s",
        ),
    ],
)
def test_the_outlook_says_what_ends_the_attempts_and_no_time_that_is_too_short(
    failed_s: list[float], outlook: str
) -> None:
    attempts = Attempts(NetworkPolicy(), RetryBudget(), random.Random(0))
    for now_s in failed_s:
        attempts.pause_s(CUT, now_s)
    assert attempts.outlook(0.5, failed_s[-1]) == outlook


@given(st.integers(), st.integers(1, 12), st.floats(0.01, 5))
def test_there_are_as_many_attempts_as_the_policy_says(seed: int, attempts: int, backoff_s: float) -> None:
    policy = NetworkPolicy(attempts=attempts, deadline_s=1e6, backoff_s=backoff_s)
    waited = pauses(policy, seed)
    assert len(waited) == attempts - 1
    assert all(0 <= pause <= 15 for pause in waited)
    assert all(pause >= backoff_s for pause in waited[1:])


@given(st.integers(), st.floats(0.1, 30))
def test_no_attempt_begins_after_the_deadline(seed: int, deadline_s: float) -> None:
    assert sum(pauses(NetworkPolicy(attempts=100, deadline_s=deadline_s), seed)) <= deadline_s


def test_the_pauses_of_clients_that_failed_together_differ() -> None:
    assert len({tuple(pauses(NetworkPolicy(), seed)) for seed in range(20)}) == 20


def test_six_attempts_span_the_restart_of_a_server() -> None:
    spans = sorted(sum(pauses(NetworkPolicy(), seed)) for seed in range(1000))
    assert spans[500] > 10
    assert spans[-1] <= 60


def test_the_rest_that_a_server_asks_for_is_kept() -> None:
    throttled = TransientError("busy", shard="x")
    throttled.retry_after_s = 7.0
    assert all(pause >= 7 for pause in pauses(NetworkPolicy(), 0, error=throttled))


def test_a_rest_beyond_the_deadline_is_an_error_at_once() -> None:
    throttled = TransientError("the server answered 503", shard="http://host/x", status=503, offset=3)
    throttled.retry_after_s = 3600.0
    attempts = Attempts(NetworkPolicy(), RetryBudget(), random.Random(0))
    given_up = r"gave up after 1 attempt, since the server asks to wait 3600 s"
    with pytest.raises(StoreError, match=given_up) as caught:
        attempts.pause_s(throttled, 0.0)
    assert (caught.value.shard, caught.value.status, caught.value.offset) == ("http://host/x", 503, 3)
    assert not isinstance(caught.value, TransientError)


def test_attempts_are_counted_anew_after_a_part_of_good_bytes() -> None:
    attempts = Attempts(NetworkPolicy(attempts=2), RetryBudget(), random.Random(0))
    for now in range(50):
        attempts.pause_s(CUT, float(now))
        attempts.received(128 << 10)
    attempts.pause_s(CUT, 50.0)
    attempts.received(100)
    with pytest.raises(StoreError, match="gave up after 2 attempts"):
        attempts.pause_s(CUT, 50.0)


def test_retries_stay_below_a_tenth_of_the_requests_and_what_time_gives() -> None:
    budget, now, retries = RetryBudget(), 0.0, 0
    for request in range(100_000):
        budget.request()
        now = request / 1000
        if budget._tokens >= 1:
            retries += budget.take(now) == 0
    assert retries <= 0.1 * 100_000 + budget.most + budget.trickle_per_s * now
    assert retries >= 0.1 * 100_000


def test_an_empty_budget_delays_and_does_not_forbid() -> None:
    budget = RetryBudget()
    granted = [budget.take(0.0) for _ in range(110)]
    assert granted[:100] == [0.0] * 100
    assert granted[100:] == [count / 2 for count in range(1, 11)]
    assert budget.take(1000.0) == 0  # full again


def test_attempts_that_are_given_up_leave_the_budget_to_others() -> None:
    budget, policy = RetryBudget(), NetworkPolicy()
    for _ in range(1000):  # a server goes down, and all that it was asked for at once
        with suppress(StoreError):
            Attempts(policy, budget, random.Random(0)).pause_s(CUT, 0.0)
    assert Attempts(policy, budget, random.Random(0)).pause_s(CUT, policy.deadline_s) < 1
