from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncloader.plan.lanes import UnknownCount, batch_count, take_share

counts = st.lists(st.integers(0, 50), max_size=20)


@given(st.integers(1, 100), st.integers(1, 10))
def test_a_share_is_as_large_as_any_other_or_one_more(count: int, lanes: int) -> None:
    shares = [take_share(count, lane, lanes) for lane in range(lanes)]
    assert sum(shares) == count
    assert max(shares) - min(shares) <= 1


@given(counts, st.none() | st.integers(1, 10))
def test_each_lane_cuts_its_own_batches(samples: list[int], size: int | None) -> None:
    cut = [len(range(0, count, size or 1)) for count in samples]
    assert batch_count(samples, size, drop_last=False) == sum(cut)
    if size is not None:
        assert batch_count(samples, size, drop_last=True) == sum(count // size for count in samples)


def test_a_lane_that_never_ends_makes_nobody_knows_how_many_batches() -> None:
    with pytest.raises(UnknownCount, match="never ends"):
        batch_count([3, math.inf], 2, drop_last=False)
