"""Numbers as the page writes them, and the steps of its axes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncloader.observe.plots import OverTime
from asyncloader.quantity import amount, bytes_text, percent, seconds_text, ticks


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (amount(0), "0"),
        (amount(999.4), "999"),
        (amount(999.6), "1 k"),
        (amount(12_345), "12.3 k"),
        (bytes_text(1.5e9), "1.5 GB"),
        (seconds_text(0), "0 s"),
        (seconds_text(0.000_25), "250 µs"),
        (seconds_text(0.0305), "30.5 ms"),
        (seconds_text(0.9999), "1 s"),
        (seconds_text(90), "90 s"),
        (seconds_text(300), "5 min"),
        (seconds_text(9_000), "2.5 h"),
        (percent(0.5), "50 %"),
        (percent(0.012), "1.2 %"),
    ],
)
def test_numbers_are_short_and_have_units(text: str, expected: str) -> None:
    assert text == expected


@given(st.floats(1e-9, 1e15), st.integers(2, 6))
def test_steps_are_round_few_and_reach_the_highest(highest: float, most: int) -> None:
    steps = ticks(highest, most)
    assert steps[0] == 0 and 2 <= len(steps) <= most + 1
    assert steps[-1] >= highest * 0.999 and steps[-2] < highest
    assert f"{steps[1]:.1e}"[:3] in ("1.0", "2.0", "5.0")


@given(st.integers(1, 240), st.floats(0.05, 400), st.integers(0, 10_000))
def test_fewer_bins_hold_as_much(bins: int, bin_s: float, batches: int) -> None:
    row = [float(number % 7) for number in range(bins)]
    over = OverTime({"bin_s": bin_s, "rows": {"a": row}}, (bins - 0.25) * bin_s, batches)
    assert len(over.row("a")) == over.count <= 97
    assert sum(over.row("a")) == pytest.approx(sum(row))
    assert sum(over.seconds) == pytest.approx(over.elapsed_s)
    assert all(0 <= part <= 1 for part, _ in over.x_ticks)
