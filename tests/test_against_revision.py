"""The benchmark against an older revision: that it sees what became worse, and compares what it says."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parent / "benchmarks"


@pytest.fixture(autouse=True)
def benchmarks_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def passes(rate: float, peak_mb: float = 100.0, wrong: str = "") -> dict[str, Any]:
    return {"samples_s": rate, "first_s": 1.0, "peak_mb": peak_mb, "wrong": wrong}


@pytest.mark.parametrize(
    ("now", "is_worse"),
    [
        (passes(100), False),
        (passes(97), False),
        (passes(94), True),
        (passes(200), False),
        (passes(100, peak_mb=109), False),
        (passes(100, peak_mb=112), True),
        (passes(100, wrong="1 lost"), True),
    ],
)
def test_what_became_worse_is_told(now: dict[str, Any], is_worse: bool) -> None:
    from against_revision import told

    assert told("a row", [(passes(100), now)] * 15) is is_worse


def test_what_may_have_become_worse_is_told_too() -> None:
    from against_revision import told

    noisy = [(passes(100), passes(100 + 20 * (-1) ** number)) for number in range(15)]
    assert told("a row", noisy)


def test_of_few_pairs_nothing_can_be_said() -> None:
    from against_revision import bounds_of_median

    assert bounds_of_median([1.0] * 5) == (0.0, math.inf)
    assert bounds_of_median([1.0] * 6) == (1.0, 1.0)


def test_the_bounds_hold_the_median_as_often_as_they_say() -> None:
    from against_revision import bounds_of_median

    drawn, held = random.Random(1), 0
    for _ in range(1000):
        low, high = bounds_of_median([drawn.expovariate(1) for _ in range(15)])
        held += low <= math.log(2) <= high
    assert 950 <= held < 990


@pytest.mark.slow
def test_each_workload_runs_beside_the_last_commit() -> None:
    command = [
        sys.executable,
        BENCHMARKS / "against_revision.py",
        "HEAD",
        "--rounds",
        "1",
        "--scale",
        "0.001",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    lines = done.stdout.splitlines()[1:]
    assert len(lines) > 30 and not any("wrong" in line for line in lines), done.stdout + done.stderr
