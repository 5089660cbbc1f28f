"""The plan: a function of counts and options, for whatever was made before."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from asyncloader.tools.convert_job import cut_by_sizes, cut_evenly, new_shards, runs_of


@given(st.integers(0, 10_000), st.integers(1, 3000))
def test_even_cuts_are_as_few_as_can_be_and_equal(samples: int, most: int) -> None:
    shards = new_shards(cut_evenly(samples, most), ".tar")
    counts = [shard.samples for shard in shards]
    assert (sum(counts), len(counts)) == (samples, -(-samples // most))
    assert max(counts, default=0) - min(counts, default=0) <= 1
    assert max(counts, default=0) <= most


@given(st.lists(st.integers(0, 50)), st.integers(1, 100), st.none() | st.integers(1, 5))
def test_what_fits_is_in_one_shard(sizes: list[int], most_bytes: int, most: int | None) -> None:
    shards = new_shards(cut_by_sizes(sizes, most_bytes, most), ".tar")
    assert [number for shard in shards for number in range(shard.first, shard.stop)] == [*range(len(sizes))]
    for shard, after in zip(shards, [*shards[1:], None], strict=False):
        size = sum(sizes[shard.first : shard.stop])
        assert shard.samples == 1 or size <= most_bytes
        assert most is None or shard.samples <= most
        if after is not None:  # the next sample has no room
            assert size + sizes[after.first] > most_bytes or shard.samples == most


@given(st.integers(1, 200), st.integers(1, 20), st.sets(st.integers(0, 200)), st.integers(1, 90))
def test_runs_are_what_is_missing_each_once(samples: int, most: int, done: set[int], entry: int) -> None:
    shards = new_shards(cut_evenly(samples, most), ".tar")
    names = {shard.name for number, shard in enumerate(shards) if number in done}
    runs = [*runs_of(shards, names, lambda first: first % entry)]
    assert [shard for run in runs for shard in run] == [shard for shard in shards if shard.name not in names]
    for run in runs:
        assert all(one.stop == other.first for one, other in pairwise(run))
        assert all(shard.first % entry > shard.samples / 2 for shard in run[1:])


def test_names_sort_as_numbers_do() -> None:
    names = [shard.name for shard in new_shards(range(1, 100_002), ".tar")]
    assert (names[0], names[-1], sorted(names)) == ("shard-000000.tar", "shard-100000.tar", names)
