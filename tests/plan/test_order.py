from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncloader.plan.lanes import permutation

keys = st.lists(st.integers(-(2**63), 2**64 - 1), max_size=5)


@given(st.integers(0, 500), keys)
def test_a_permutation_has_every_index_once(n: int, key: list[int]) -> None:
    assert sorted(permutation(n, *key)) == list(range(n))


@given(st.integers(0, 100), keys)
def test_the_same_key_draws_the_same_permutation(n: int, key: list[int]) -> None:
    assert permutation(n, *key) == permutation(n, *key)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=4), st.data())
def test_another_number_anywhere_in_the_key_draws_another_permutation(
    key: list[int], data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(key) - 1))
    other = [*key[:place], key[place] + 1, *key[place + 1 :]]
    assert permutation(200, *key) != permutation(200, *other)
    assert permutation(200, *key) != permutation(200, *key, 0)


@pytest.mark.parametrize(
    ("n", "key", "expected"),
    [
        (8, (), [6, 7, 1, 2, 0, 5, 3, 4]),
        (8, (0,), [2, 6, 1, 4, 3, 5, 7, 0]),
        (8, (0, 1), [7, 4, 0, 5, 6, 3, 1, 2]),
        (8, (1, 0), [0, 6, 7, 2, 1, 5, 4, 3]),
        (10, (42, 3, 0, 7, 2), [3, 9, 5, 0, 7, 2, 1, 6, 8, 4]),
        (5, (-1,), [1, 0, 2, 3, 4]),
        (5, (2**64 - 1,), [1, 0, 2, 3, 4]),
    ],
)
def test_permutations_are_the_same_in_every_release(
    n: int, key: tuple[int, ...], expected: list[int]
) -> None:
    """A saved position means the same samples for as long as the file exists: never change these."""
    assert permutation(n, *key) == expected


MASK = 2**64 - 1


def mix(z: int) -> int:
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


@given(st.integers(0, 60), keys)
def test_permutations_sort_splitmix64_words_as_plain_python_reckons_them(n: int, key: list[int]) -> None:
    state, gamma = 0, 0x9E3779B97F4A7C15
    for part in (*key, len(key)):
        state = mix(state ^ mix(part + gamma & MASK))
    words = [mix(state + gamma * (index + 1) & MASK) for index in range(n)]
    assert permutation(n, *key) == sorted(range(n), key=words.__getitem__)


def test_another_process_draws_the_same_permutation() -> None:
    program = "from asyncloader.plan.lanes import permutation; print(permutation(50, 7, 1))"
    run = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": _path()},
    )
    assert run.stdout == f"{permutation(50, 7, 1)}\n"


def _path() -> str:
    return ":".join(sys.path)


def test_every_index_comes_to_every_place_about_equally_often() -> None:
    draws = 12_000
    places = [Counter(column) for column in zip(*(permutation(6, 0, n) for n in range(draws)), strict=True)]
    for counts in places:
        # Five degrees of freedom; beyond 30 lies one in a hundred thousand.
        assert sum((counts[i] - draws / 6) ** 2 / (draws / 6) for i in range(6)) < 30
