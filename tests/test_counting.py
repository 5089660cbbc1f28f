from __future__ import annotations

from dataclasses import astuple, fields

from asyncloader.counting import NetworkCounts


def test_every_count_is_subtracted_and_added() -> None:
    count = len(fields(NetworkCounts))
    more, before = NetworkCounts(*range(10, 10 + count)), NetworkCounts(*range(count))
    assert astuple(more.since(before)) == (10,) * count
    before.add(more)
    assert astuple(before) == tuple(range(10, 10 + 2 * count, 2))
