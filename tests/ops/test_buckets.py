from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import asyncloader as al
from asyncloader.blocks import Columns, OffsetTrail, Rows
from asyncloader.flow.engine import Engine
from asyncloader.pipeline.lane import START
from asyncloader.plan.lanes import UnknownCount

from .batching import Texts, assert_resumes_everywhere, made_of
from .running import lane_of


@settings(deadline=None)
@given(
    lengths=st.lists(st.integers(0, 40), max_size=60),
    bounds=st.lists(st.integers(1, 40), min_size=1, max_size=4, unique=True).map(sorted),
    sizes=st.lists(st.integers(1, 6), min_size=5, max_size=5),
    pool=st.none() | st.integers(1, 70),
)
def test_each_batch_is_of_one_bucket_and_can_be_resumed_from(
    lengths: list[int], bounds: list[int], sizes: list[int], pool: int | None, engine: Engine
) -> None:
    sizes = sizes[: len(bounds) + 1]
    batching = al.Buckets(bounds=bounds, batch_sizes=sizes, pool=pool)
    whole = assert_resumes_everywhere(batching, lengths, lane_of(engine))
    assert sorted(row["number"] for made in whole for row in made.content) == list(range(len(lengths)))
    short: dict[int, int] = {}
    for made in whole:
        found = [len(row["tokens"]) for row in made.content]
        (bucket,) = {sum(length >= bound for bound in bounds) for length in found}
        assert (made.samples, made.tokens) == (len(found), sum(found))
        assert len(found) <= sizes[bucket]
        short[bucket] = short.get(bucket, 0) + (len(found) < sizes[bucket])
    pools = -(-len(lengths) // (pool or 16 * sum(sizes)))
    assert all(count <= pools for count in short.values()), "one short batch of a bucket and pool"


def test_samples_of_a_bucket_stay_in_order(engine: Engine) -> None:
    batching = al.Buckets(bounds=[3, 6], batch_sizes=[3, 2, 1], pool=9)
    whole = made_of(batching, Texts([1, 4, 2, 8, 3, 5, 0, 6, 2]), lane_of(engine))
    numbers = [[row["number"] for row in made.content] for made in whole]
    assert numbers == [[3], [0, 2, 6], [5], [1, 4], [7], [8]], "the same in every release"


@pytest.mark.parametrize("as_columns", [False, True])
def test_lengths_may_be_seconds(as_columns: bool, engine: Engine) -> None:
    seconds, trail = [0.5, 12.25, 3.0, 4.999], OffsetTrail(0, None)
    block: Any = (
        Columns({"seconds": np.array(seconds)}, trail)
        if as_columns
        else Rows([{"seconds": value} for value in seconds], trail)
    )
    batching = al.Buckets(length="seconds", bounds=[3, 5.0], batch_sizes=[4, 2, 1])
    batches = list(batching.open(lambda *_: (each for each in [block]), START, lane_of(engine)))
    found = sorted(list(batch.block.column("seconds")) for batch in batches)
    assert found == [[0.5], [3.0, 4.999], [12.25]]
    assert [batch.tokens for batch in batches] == [0, 0, 0], "seconds are no tokens"


def test_the_default_pool_makes_one_in_sixteen_batches_short() -> None:
    described = al.Buckets(bounds=[10], batch_sizes=[8, 4]).describe()
    assert described["batching"]["pool"] == 16 * 12
    assert described["batching"]["multiple_of"] == 1


def test_a_sample_without_a_length_is_named(engine: Engine) -> None:
    block = Rows([{"tokens": [1]}, {"tokens": object()}], OffsetTrail(4, None))
    batching = al.Buckets(bounds=[2], batch_sizes=[1, 1])
    with pytest.raises(ValueError, match="found object") as caught:
        list(batching.open(lambda *_: (each for each in [block]), START, lane_of(engine)))
    assert "in Buckets of sample 5" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"bounds": [5, 5]}, ValueError, "bounds should be numbers that rise"),
        ({"bounds": [0, 5]}, ValueError, "bounds should be numbers that rise from above 0"),
        ({"bounds": []}, ValueError, "bounds should be numbers that rise"),
        ({"bounds": [1, float("nan")]}, ValueError, "bounds should be numbers that rise"),
        ({"bounds": ["a", "b"]}, ValueError, "bounds should be numbers that rise"),
        ({"bounds": 5}, ValueError, "bounds should be a list of numbers"),
        ({"bounds": np.array(3)}, ValueError, "bounds should be a list of numbers"),
        ({"batch_sizes": torch.tensor(2)}, ValueError, "batch_sizes should be a list of numbers"),
        ({"batch_sizes": [4, 2]}, ValueError, r"one more than bounds, .* so 3, but got 2: \(4, 2\)"),
        ({"batch_sizes": [4, 2, 0]}, ValueError, "batch_sizes should be a positive integer"),
        ({"pool": 0}, ValueError, "pool should be a positive integer"),
        ({"multiple_of": 0}, ValueError, "multiple_of should be a positive integer"),
        ({"length": None}, TypeError, "length should be the name of a field or a function"),
    ],
)
def test_options_are_checked(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        al.Buckets(**{"bounds": [5, 10], "batch_sizes": [4, 2, 1], **options})


def test_its_number_of_batches_is_not_known() -> None:
    with pytest.raises(UnknownCount, match="depends on how long the samples are"):
        al.Buckets(bounds=[1], batch_sizes=[1, 1]).count_batches(lambda: [1.0])


def test_it_pickles_compares_and_hashes() -> None:
    batching = al.Buckets(bounds=[5], batch_sizes=[4, 2])
    assert pickle.loads(pickle.dumps(batching)) == batching == al.Buckets(bounds=(5,), batch_sizes=(4, 2))
    assert hash(batching)


NUMPY: Any = np  # whose integers are no int to a type checker


@pytest.mark.parametrize(
    "batching",
    [
        al.Buckets(
            bounds=NUMPY.array([3, 5]),
            batch_sizes=NUMPY.array([4, 2, 1]),
            pool=NUMPY.int64(9),
            multiple_of=NUMPY.int8(8),
        ),
        al.Buckets(bounds=[NUMPY.float32(0.5)], batch_sizes=[NUMPY.int32(4), 2]),
        al.TokenBatches(max_tokens=NUMPY.int64(64), max_samples=NUMPY.int64(9), pool=NUMPY.int64(9)),
        al.Pack(length=NUMPY.int64(64), batch_size=NUMPY.int64(4), pool=NUMPY.int64(9)),
    ],
)
def test_numbers_of_numpy_are_taken_and_described_as_json(batching: Any) -> None:
    described = batching.describe()
    assert json.loads(json.dumps(described)) == described


@pytest.mark.parametrize("size", [NUMPY.float64(2), NUMPY.bool_(True), NUMPY.int64(0)])
def test_a_batch_size_of_numpy_that_is_no_count_is_refused(size: Any) -> None:
    with pytest.raises(ValueError, match="batch_sizes should be a positive integer"):
        al.Buckets(bounds=[3], batch_sizes=[1, size])


def test_a_bad_length_is_a_value_error_by_name(engine: Engine) -> None:
    batching = al.Buckets(length=lambda sample: None, bounds=[3], batch_sizes=[1, 1])  # type: ignore[arg-type,return-value]
    with pytest.raises(ValueError, match="expected a number as length") as caught:
        made_of(batching, Texts([1, 2]), lane_of(engine))
    assert caught.type is ValueError
