"""Numbers over time, latencies, and what is kept where there is no room for all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncloader.observe.trace_keeping import Latencies, Series
from asyncloader.observe.tracing import Dropped, Recorder, Slice, drop_shortest

times = st.floats(0, 100_000, allow_nan=False)


@given(st.lists(st.tuples(times, times, st.floats(0, 1e9)), max_size=30))
def test_nothing_is_lost_however_long_a_pass_goes_on(rows: list[tuple[float, float, float]]) -> None:
    series = Series(1_000.0)
    for start_s, took_s, amount in rows:
        series.spread("a", 1_000 + start_s, 1_000 + start_s + took_s, amount)
        series.add("b", 1_000 + start_s, amount)
    end_s = max((1_000 + start_s + took_s for start_s, took_s, _ in rows), default=1_000)
    told = series.as_dict(end_s)["rows"]
    total = sum(amount for _, _, amount in rows)
    for row in told.values():
        assert len(row) <= 240
        assert sum(row) == pytest.approx(total, rel=1e-6, abs=1e-3)


def test_bins_are_where_and_as_wide_as_they_say() -> None:
    series = Series(0.0)
    series.spread("a", 0.05, 0.15, 10.0)
    series.add("a", 0.2, 1.0)
    assert series.bin_s == 0.05
    assert series.as_dict(0.24)["rows"]["a"] == pytest.approx([0, 5, 5, 0, 1])
    series.add("b", 23.95, 2.0)
    assert series.bin_s == pytest.approx(0.1)
    rows = series.as_dict(23.97)["rows"]
    assert rows["a"][:3] == pytest.approx([5, 5, 1]) and rows["b"][239] == 2
    assert len(series.as_dict(5.0)["rows"]["b"]) == 51  # what lies behind the end is not told


def test_the_width_that_is_told_is_that_of_the_rows() -> None:
    series = Series(0.0)
    series.add("a", 1.0, 1.0)
    told = series.as_dict(13.0)  # of which nothing was told: the bins become wider just now
    assert told["bin_s"] * len(told["rows"]["a"]) == pytest.approx(13.0, abs=1.1 * told["bin_s"])


def test_percentiles_are_within_a_bin_of_what_they_are() -> None:
    latencies = Latencies()
    for number in range(1, 1_001):
        latencies.add(number / 1_000)
    told = latencies.as_dict()
    assert told["count"] == 1_000 == sum(told["bins"].values())
    for percent, seconds in ((50, 0.5), (95, 0.95), (99, 0.99)):
        assert told[f"p{percent}_s"] == pytest.approx(seconds, rel=0.13)
    assert Latencies().as_dict()["p50_s"] is None


def test_the_longest_stay_in_their_order() -> None:
    slices = [Slice(0, "a", start_s, start_s + took_s) for start_s, took_s in enumerate([0.1, 0.9, 0.2, 0.5])]
    kept = [*slices]
    dropped = drop_shortest(kept, 2)
    assert kept == [slices[1], slices[3]] and dropped == [slices[0], slices[2]]


def test_a_recorder_tells_once_and_counts_what_it_has_no_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncloader.observe.tracing._MOST_TOLD", 3)
    monkeypatch.setattr("asyncloader.observe.tracing._MOST_HELD", 4)
    recorder = Recorder()
    for number in range(6):
        recorder.record(Slice(0, "store", number, number + 0.25 * (number + 1)))
    told = recorder.take(9.0)
    assert [each.start_s for each in told.events if isinstance(each, Slice)] == [1, 2, 3]
    assert told.dropped == Dropped(slices=3, seconds=1.25 + 1.5 + 0.25)
    assert recorder.take(10.0).dropped == Dropped() and not recorder.take(11.0).events
