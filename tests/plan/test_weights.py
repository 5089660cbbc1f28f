from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from asyncloader.plan.mixing import EpochWeights

NAMES = ("web", "books")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, [(1, 1), (1, 1), (1, 1)]),
        ([3, 1], [(3, 1)] * 3),
        ({"books": 0.25, "web": 0.75}, [(0.75, 0.25)] * 3),
        ({0: [1, 0], 2: {"books": 2, "web": 1}}, [(1, 0), (1, 0), (1, 2)]),
        ({np.int64(0): [1, 0], np.int64(2): [0, 1]}, [(1, 0), (1, 0), (0, 1)]),
        (np.array([3, 1]), [(3, 1)] * 3),
        (np.array([0.5, 0.25], np.float32), [(0.5, 0.25)] * 3),
        (np.array([0.5, 0.25], np.float16), [(0.5, 0.25)] * 3),
        (iter([3, 1]), [(3, 1)] * 3),
        (lambda epoch: [1, epoch], [(1, 0), (1, 1), (1, 2)]),
    ],
)
def test_weights_of_each_epoch(given: Any, expected: list[tuple[float, ...]]) -> None:
    weights = EpochWeights(NAMES, given)
    assert [weights.of(epoch) for epoch in range(3)] == expected
    assert json.loads(json.dumps(weights.describe())) == weights.describe()


def test_weights_stay_as_they_were_when_the_list_changes() -> None:
    given = [3, 1]
    weights = EpochWeights(NAMES, given)
    given[0] = 0
    assert weights.of(0) == (3, 1)


def _by_epoch(epoch: int) -> list[float]:
    return [1.0, epoch]


def test_weights_are_described_as_they_were_given() -> None:
    for plain in ([1, 3], {"books": 3, "web": 1}, iter([1, 3])):
        assert EpochWeights(NAMES, plain).describe() == [1, 3]
    assert EpochWeights(NAMES).describe() == [1, 1]
    assert EpochWeights(NAMES, {0: [1, 3]}).describe() == {"0": [1, 3]}
    assert EpochWeights(NAMES, {3: [0, 1], 0: [1, 0]}).describe() == {"0": [1, 0], "3": [0, 1]}
    assert EpochWeights(NAMES, _by_epoch).describe() == "_by_epoch()"


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ([1], ValueError, "weights should be 2, one for each component, but got 1"),
        ([1, -1], ValueError, r"weights should be 0 or more, up to 1e\+300, but got -1 for 'books'"),
        ([1, math.nan], ValueError, r"weights should be 0 or more, up to 1e\+300, but got nan for 'books'"),
        ([1, math.inf], ValueError, r"weights should be 0 or more, up to 1e\+300, but got inf for 'books'"),
        ([1e308, 1e308], ValueError, "0 or more, up to"),
        ([10**400, 1], ValueError, "0 or more, up to"),
        ([0, 0.0], ValueError, "one above 0, or nothing is drawn"),
        ([1, "2"], TypeError, "weights should be numbers, but got '2' for 'books'"),
        ([1, True], TypeError, "weights should be numbers, but got True for 'books'"),
        (3, TypeError, "a number for each component, in a list or by name, but got int"),
        ("ab", TypeError, "a number for each component, in a list or by name, but got str"),
        ({1, 2}, TypeError, "a number for each component, in a list or by name, but got set"),
        ({"web": 1}, ValueError, r"a weight for each of \['web', 'books'\], but got them for \['web'\]"),
        ({}, ValueError, r"a weight for each of \['web', 'books'\], but got them for \[\]"),
        ({1: [1, 1]}, ValueError, r"should begin with epoch 0, but got those of \[1\]"),
        ({-1: [1, 1], 0: [1, 1]}, ValueError, "should begin with epoch 0"),
        ({0: [1, 1], 4: [1]}, ValueError, r"weights\[4\] should be 2"),
        (lambda epoch: [1], ValueError, r"weights\(0\) should be 2"),
    ],
)
def test_what_are_no_weights_is_refused_at_once(given: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        EpochWeights(NAMES, given)


def test_what_a_function_gives_later_is_refused_when_it_does() -> None:
    weights = EpochWeights(NAMES, lambda epoch: [1, 1 - epoch])
    assert weights.of(1) == (1, 0)
    with pytest.raises(
        ValueError, match=r"weights\(2\) should be 0 or more, up to 1e\+300, but got -1 for 'books'"
    ):
        weights.of(2)
