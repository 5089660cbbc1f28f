"""What is under way over simulated links: as much as they need, whatever memory there is."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from asyncloader.flow.budget import ReadAhead

MiB = 1 << 20
LEAST, CAP = 8 * MiB, 768 * MiB
PART = 2 * MiB


@dataclass
class Link:
    """A store behind a network: how long answers take; its clock is that of ``play``.

    Attributes:
        first_byte_s: From a request to its first byte, the median if there is a ``sigma``.
        connection_bytes_s: The most that one answer is sent at.
        all_bytes_s: The most that all answers together are sent at.
        sigma: Of lognormal times to the first byte.
    """

    first_byte_s: float
    connection_bytes_s: float
    all_bytes_s: float = float("inf")
    sigma: float = 0.0
    draw: random.Random = field(default_factory=lambda: random.Random(0))
    free_s: float = 0.0

    def answer_s(self, asked_s: float, size: int) -> tuple[float, float]:
        """When the first and the last byte come."""
        jitter = self.draw.lognormvariate(0, self.sigma) if self.sigma else 1.0
        first_s = asked_s + self.first_byte_s * jitter
        begins_s = max(first_s, self.free_s)
        self.free_s = begins_s + size / self.all_bytes_s
        return first_s, max(self.free_s, first_s + size / self.connection_bytes_s)


@dataclass
class Played:
    """What came of it: rows of seconds, bytes handed on until then, bytes that may be under way."""

    rows: list[tuple[float, int, int]] = field(default_factory=list)

    def rate(self, begin_s: float, end_s: float) -> float:
        rows = [row for row in self.rows if begin_s <= row[0] <= end_s]
        return (rows[-1][1] - rows[0][1]) / (rows[-1][0] - rows[0][0])

    def sizes(self, begin_s: float, end_s: float = float("inf")) -> list[int]:
        return [size for at_s, _, size in self.rows if begin_s <= at_s <= end_s]

    def mean_size(self, begin_s: float, end_s: float = float("inf")) -> float:
        sizes = self.sizes(begin_s, end_s)
        return sum(sizes) / len(sizes)


def play(
    ahead: ReadAhead, link: Link, consumer_bytes_s: float | Callable[[float], float], seconds: float
) -> Played:
    """A reader that requests parts up to what is allowed, and a consumer that takes them in order."""
    played = Played()
    under_way = handed_on = 0
    parts: deque[tuple[int, float, float, float]] = deque()

    def top_up(now_s: float) -> None:
        nonlocal under_way
        while under_way + PART <= ahead.size_bytes and (ahead.is_open or not parts):
            parts.append((PART, now_s, *link.answer_s(now_s, PART)))
            under_way += PART

    top_up(0.0)
    now_s = 0.0
    while now_s < seconds:
        size, asked_s, first_s, last_s = parts.popleft()
        was_open = ahead.is_open
        ahead.answered("there", first_s - asked_s, first_s)
        if not was_open:
            top_up(first_s)
        ahead.received("there", size, last_s - asked_s)
        if last_s > now_s:
            ahead.waited(last_s - now_s)
            now_s = last_s
        speed = consumer_bytes_s(now_s) if callable(consumer_bytes_s) else consumer_bytes_s
        for _ in range(8):
            now_s += size / 8 / speed
            under_way -= size // 8
            handed_on += size // 8
            ahead.handed_on(size // 8, under_way, now_s)
            top_up(now_s)
        played.rows.append((now_s, handed_on, ahead.size_bytes))
    return played


@pytest.mark.parametrize("consumer_bytes_s", [100e6, 1e9])
@pytest.mark.parametrize("connection_bytes_s", [40e6, 1e9])
@pytest.mark.parametrize("first_byte_s", [0.0005, 0.005, 0.05, 0.2])
def test_what_is_under_way_comes_to_a_few_products_of_bandwidth_and_delay(
    first_byte_s: float, connection_bytes_s: float, consumer_bytes_s: float
) -> None:
    link = Link(first_byte_s, connection_bytes_s)
    played = play(ReadAhead(LEAST, CAP), link, consumer_bytes_s, 25)
    product = consumer_bytes_s * (first_byte_s + PART / connection_bytes_s)
    assert played.rate(10, 25) > 0.9 * consumer_bytes_s
    assert max(product, LEAST) * 0.6 < played.mean_size(10) < max(3 * product, 1.5 * LEAST)


@pytest.mark.parametrize("first_byte_s", [0.005, 0.05])
def test_it_gets_there_within_two_seconds(first_byte_s: float) -> None:
    played = play(ReadAhead(LEAST, CAP), Link(first_byte_s, 40e6), 1e9, 4)
    assert played.rate(2, 4) > 0.8e9


def test_a_far_link_begins_with_what_a_connection_brings_until_it_answers() -> None:
    played = play(ReadAhead(LEAST, CAP), Link(0.2, 40e6, all_bytes_s=1.6e9), 1.6e9, 4)
    assert LEAST + 15 * MiB < played.rows[0][2] < LEAST + 17 * MiB
    assert max(played.sizes(0, 1.0)) > 16 * LEAST  # one round earlier than from the least
    narrow = play(ReadAhead(LEAST, CAP), Link(0.2, 40e6, all_bytes_s=20e6), 1e9, 20)
    assert narrow.rate(0, 20) > 19e6
    assert max(narrow.sizes(0)) < 32 * LEAST


def test_a_link_that_is_full_is_not_filled_any_more() -> None:
    link = Link(0.05, 40e6, all_bytes_s=100e6)
    played = play(ReadAhead(LEAST, CAP), link, 1e9, 40)
    assert played.rate(5, 40) > 95e6
    assert played.mean_size(10) < 6 * 100e6 * 0.1


def test_a_store_that_is_near_gets_the_least_there_is() -> None:
    played = play(ReadAhead(LEAST, CAP), Link(0.0005, 1e9), 700e6, 10)
    assert max(played.sizes(0)) < 4 * LEAST
    assert set(played.sizes(8)) == {LEAST}


def test_it_shrinks_when_the_consumer_slows_down_and_grows_again() -> None:
    ahead, link = ReadAhead(LEAST, CAP), Link(0.2, 40e6)
    played = play(ahead, link, lambda now_s: 100e6 if 20 < now_s < 50 else 800e6, 70)
    assert played.mean_size(15, 20) > 150 * MiB
    assert played.mean_size(40, 50) < 75 * MiB
    assert played.rate(40, 50) > 90e6
    assert played.rate(60, 70) > 600e6


def test_late_answers_are_covered_though_others_come_early() -> None:
    """In order, one answer in a hundred that takes ten times as long holds up the others."""
    jittery = Link(0.05, 400e6, sigma=1.0)
    played = play(ReadAhead(LEAST, CAP), jittery, 1e9, 20)
    unbounded = play(ReadAhead(CAP, CAP), Link(0.05, 400e6, sigma=1.0), 1e9, 20)
    assert played.rate(8, 20) > 0.8 * unbounded.rate(8, 20)


def test_it_stays_within_its_bounds() -> None:
    for cap in (MiB, 20 * MiB):
        ahead = ReadAhead(LEAST, cap)
        for second in range(100):
            ahead.waited(1.0)
            ahead.handed_on(50 * MiB, 0, float(second))
            assert min(LEAST, cap) <= ahead.size_bytes <= cap


def test_rates_that_grow_by_themselves_are_not_taken_for_the_links() -> None:
    """A machine that is getting into its stride, with a store that is near."""
    near = Link(0.001, 500e6)

    def speed_up(now_s: float) -> float:
        near.all_bytes_s = min(20e6 * 2 ** (now_s / 0.3), 800e6)
        return 2e9

    played = play(ReadAhead(LEAST, CAP), near, speed_up, 10)
    assert max(played.sizes(0)) < CAP / 2
    assert played.sizes(0)[-1] < 128 * MiB


def test_a_burst_is_not_taken_for_the_rate_of_a_link_that_is_far() -> None:
    """The first parts come all at once; a rate counts from a round trip on."""
    ahead = ReadAhead(LEAST, CAP)
    ahead.answered("there", 0.2, 0.0)
    begin_bytes = ahead.size_bytes
    ahead.received("there", 2 * MiB, 0.4)
    ahead.waited(0.05)
    ahead.handed_on(LEAST, 0, 0.06)
    assert ahead.size_bytes == begin_bytes
    ahead.waited(0.15)
    ahead.handed_on(PART, 0, 0.21)
    assert ahead.size_bytes > 2 * begin_bytes


def test_a_number_that_was_given_up_too_early_comes_back() -> None:
    """One burst makes all that follows look slow, and going back shows that it was not."""
    ahead = ReadAhead(LEAST, CAP)
    ahead.answered("there", 0.2, 0.0)
    ahead.received("there", 2 * MiB, 0.4)
    now_s, size_bytes = 0.0, [ahead.size_bytes]
    for seconds in (0.2, *[1.0] * 12):  # passes on what is allowed, five times as fast in the first round
        now_s += seconds
        ahead.waited(0.9 * seconds)
        ahead.handed_on(ahead.size_bytes, 0, now_s)
        size_bytes.append(ahead.size_bytes)
    assert max(size_bytes[2:]) > 2 * size_bytes[1]
    assert size_bytes[-1] >= size_bytes[1]
