"""Which files go: properties of the choice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from asyncloader.cache.locks import CacheFile, Demand, choose_oldest, floor_bytes

sizes = st.integers(0, 1000)
files = st.lists(
    st.builds(CacheFile, st.uuids().map(str), sizes, st.integers(0, 50), st.booleans()), max_size=20
)
demands = st.builds(Demand, sizes, sizes, st.integers(1, 5000), st.integers(0, 5000), sizes)


def room(kept: list[CacheFile], demand: Demand, gone: list[CacheFile]) -> tuple[int, int]:
    """Bytes below the limit, and above the floor, once ``gone`` is gone and all is written."""
    freed = sum(file.size_bytes for file in gone)
    held = sum(file.size_bytes for file in kept) - freed + demand.announced_bytes
    left = demand.free_bytes + freed - demand.unwritten_bytes
    return demand.limit_bytes - held, left - demand.floor_bytes


def choose_victims(kept: list[CacheFile], demand: Demand) -> list[CacheFile] | None:
    return choose_oldest(kept, demand.missing_bytes(sum(file.size_bytes for file in kept)))


@given(files, demands)
def test_limit_and_floor_hold_or_nothing_goes(kept: list[CacheFile], demand: Demand) -> None:
    victims = choose_victims(kept, demand)
    if victims is None:
        assert min(room(kept, demand, kept)) < 0
    else:
        assert min(room(kept, demand, victims)) >= 0


@given(files, demands)
def test_no_more_goes_than_must(kept: list[CacheFile], demand: Demand) -> None:
    victims = choose_victims(kept, demand)
    if victims:
        assert min(room(kept, demand, victims[:-1])) < 0


@given(files, demands)
def test_bad_files_go_first_then_those_not_used_for_longest(kept: list[CacheFile], demand: Demand) -> None:
    victims = choose_victims(kept, demand) or []
    stays = [file for file in kept if file not in victims]
    for gone in victims:
        for other in stays:
            assert (not gone.is_bad, -gone.unused_s) <= (not other.is_bad, -other.unused_s)


def test_the_floor_is_a_twentieth_and_at_most_a_gibibyte() -> None:
    assert floor_bytes(20 << 20) == 1 << 20
    assert floor_bytes(1 << 50) == 1 << 30
