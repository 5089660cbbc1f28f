from __future__ import annotations

import threading
from dataclasses import astuple, fields

from asyncloader.observe.statistics import Meter, NetworkCounts
from asyncloader.observe.stopwatch import Spent


def test_every_count_is_subtracted_and_added() -> None:
    count = len(fields(NetworkCounts))
    more, before = NetworkCounts(*range(10, 10 + count)), NetworkCounts(*range(count))
    assert astuple(more.since(before)) == (10,) * count
    before.add(more)
    assert astuple(before) == tuple(range(10, 10 + 2 * count, 2))


class Collected(Spent):
    """What a worker has spent; to add to it runs the iterator's finalizer, as a collection might."""

    counters: Meter

    def plus(self, more: Spent) -> Spent:
        self.counters.end()
        return more


def test_a_pass_that_is_collected_while_it_counts_ends() -> None:
    counters, spent = Meter(), Collected({}, {})
    spent.counters = counters
    counters.spend(0, spent)
    counting = threading.Thread(target=counters.spend, args=(0, Spent({}, {})), daemon=True)
    counting.start()
    counting.join(10)
    assert not counting.is_alive()
    assert counters.snapshot().state == "ended"
