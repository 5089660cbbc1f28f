"""Which files go: properties of the choice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from asyncloader.cache.locks import CacheFile, choose_oldest, floor_bytes

sizes = st.integers(0, 1000)
files = st.lists(
    st.builds(CacheFile, st.uuids().map(str), sizes, st.integers(0, 50), st.booleans()), max_size=20
)
missing = st.integers(-5000, 20_000)


def freed(gone: list[CacheFile]) -> int:
    return sum(file.size_bytes for file in gone)


@given(files, missing)
def test_enough_goes_or_nothing(kept: list[CacheFile], missing_bytes: int) -> None:
    victims = choose_oldest(kept, missing_bytes)
    if victims is None:
        assert freed(kept) < missing_bytes
    else:
        assert freed(victims) >= missing_bytes


@given(files, missing)
def test_no_more_goes_than_must(kept: list[CacheFile], missing_bytes: int) -> None:
    victims = choose_oldest(kept, missing_bytes)
    if victims:
        assert freed(victims[:-1]) < missing_bytes


@given(files, missing)
def test_bad_files_go_first_then_those_not_used_for_longest(
    kept: list[CacheFile], missing_bytes: int
) -> None:
    victims = choose_oldest(kept, missing_bytes) or []
    stays = [file for file in kept if file not in victims]
    for gone in victims:
        for other in stays:
            assert (not gone.is_bad, -gone.unused_s) <= (not other.is_bad, -other.unused_s)


def test_the_floor_is_a_twentieth_and_at_most_a_gibibyte() -> None:
    assert floor_bytes(20 << 20) == 1 << 20
    assert floor_bytes(1 << 50) == 1 << 30
