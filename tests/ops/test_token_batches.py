from __future__ import annotations

import pickle
from collections.abc import Sequence
from contextlib import closing
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import asyncloader as al
from asyncloader.blocks import Columns, OffsetTrail, Ragged, Rows
from asyncloader.flow.engine import Engine
from asyncloader.pipeline.lane import START
from asyncloader.plan.lanes import UnknownCount

from .batching import Made, Texts, assert_resumes_everywhere, lognormal_lengths, made_of
from .running import lane_of

lengths_of_texts = st.lists(st.integers(0, 40), max_size=60)


def sizes_of(made: Made) -> list[int]:
    return [len(row["tokens"]) for row in made.content]


def padded(lengths: Sequence[int], multiple_of: int = 1) -> int:
    return len(lengths) * -(-max(1, *lengths) // multiple_of) * multiple_of if lengths else 0


@settings(deadline=None)
@given(
    lengths=lengths_of_texts,
    max_tokens=st.integers(40, 200),
    max_samples=st.none() | st.integers(1, 9),
    multiple_of=st.sampled_from([1, 8]),
    pool=st.none() | st.integers(1, 70),
)
def test_every_sample_is_in_one_batch_that_fits_and_every_batch_can_be_resumed_from(
    lengths: list[int],
    max_tokens: int,
    max_samples: int | None,
    multiple_of: int,
    pool: int | None,
    engine: Engine,
) -> None:
    batching = al.TokenBatches(
        max_tokens=max_tokens, max_samples=max_samples, multiple_of=multiple_of, pool=pool
    )
    whole = assert_resumes_everywhere(batching, lengths, lane_of(engine))
    numbers = [row["number"] for made in whole for row in made.content]
    assert sorted(numbers) == list(range(len(lengths)))
    if pool is None:
        assert numbers == sorted(numbers)
    for made in whole:
        assert padded(sizes_of(made), multiple_of) <= max_tokens
        assert made.samples == len(made.content) <= (max_samples or made.samples)
        assert made.tokens == sum(sizes_of(made))


@settings(deadline=None)
@given(lengths=lengths_of_texts, max_tokens=st.integers(40, 200))
def test_in_stream_order_a_batch_ends_where_the_next_sample_would_not_fit(
    lengths: list[int], max_tokens: int, engine: Engine
) -> None:
    whole = made_of(al.TokenBatches(max_tokens=max_tokens), Texts(lengths), lane_of(engine))
    for made, following in pairwise(whole):
        assert padded([*sizes_of(made), sizes_of(following)[0]]) > max_tokens


def test_a_batch_that_is_full_waits_for_no_further_sample(engine: Engine) -> None:
    texts = Texts([5] * 12, sizes=(1,))
    with closing(al.TokenBatches(max_tokens=15).open(texts.open, START, lane_of(engine))) as batches:
        for number in range(1, 4):
            assert len(next(batches).block) == 3
            assert texts.handed_on == 3 * number


@pytest.mark.parametrize("multiple_of", [1, 8])
def test_a_pool_pads_under_five_per_cent_of_texts(multiple_of: int, engine: Engine) -> None:
    lengths = lognormal_lengths(20_000)
    batching = al.TokenBatches(max_tokens=16_384, multiple_of=multiple_of, pool=8192)
    whole = made_of(batching, Texts(lengths, as_columns=True, sizes=(1000,)), lane_of(engine))
    size = sum(padded(sizes_of(made), multiple_of) for made in whole)
    assert sum(made.tokens for made in whole) == sum(lengths) > 0.95 * size
    assert sum(made.samples for made in whole) == len(lengths)


def test_the_order_of_a_pools_batches_says_nothing_of_lengths(engine: Engine) -> None:
    batching = al.TokenBatches(max_tokens=16_384, pool=20_000)
    whole = made_of(batching, Texts(lognormal_lengths(20_000), True, (1000,)), lane_of(engine))
    longest = np.array([max(sizes_of(made)) for made in whole])
    assert len(whole) > 200
    assert abs(np.corrcoef(np.arange(len(whole)), longest)[0, 1]) < 0.2


def test_epoch_lane_and_pool_each_draw_another_order(engine: Engine) -> None:
    lengths = [number % 50 + 1 for number in range(400)]
    batching = al.TokenBatches(max_tokens=100, pool=200)

    def widths(**place: int) -> list[int]:
        return [max(sizes_of(made)) for made in made_of(batching, Texts(lengths), lane_of(engine, **place))]

    first = widths(lanes=2)
    assert len({tuple(first), tuple(widths(lane=1, lanes=2)), tuple(widths(lanes=2, epoch=1))}) == 3
    half = len(first) // 2
    assert sorted(first[:half]) == sorted(first[half:]) and first[:half] != first[half:]


def test_the_order_is_the_same_in_every_release(engine: Engine) -> None:
    whole = made_of(
        al.TokenBatches(max_tokens=8, pool=9), Texts([1, 4, 2, 8, 3, 5, 7, 6, 2]), lane_of(engine)
    )
    numbers = [[row["number"] for row in made.content] for made in whole]
    assert numbers == [[1, 4], [3], [5], [7], [2, 8, 0], [6]]


@pytest.mark.parametrize("as_columns", [False, True])
@pytest.mark.parametrize(
    ("length", "values"),
    [
        ("frames", [3, 1, 2]),
        (lambda sample: 2 * sample["frames"], [3, 1, 2]),
        ("frames", [np.int32(3), np.array(1), 2.0]),
        ("frames", [b"abc", "a", [1, 2]]),
    ],
)
def test_a_length_is_a_sequence_s_or_a_number_or_what_a_function_says(
    length: Any, values: list[Any], as_columns: bool, engine: Engine
) -> None:
    trail = OffsetTrail(0, None)
    if as_columns:
        whole = all(isinstance(value, int) for value in values)
        block: Any = Columns({"frames": np.array(values) if whole else values}, trail)
    else:
        block = Rows([{"frames": value} for value in values], trail)
    batching = al.TokenBatches(length=length, max_tokens=100)
    (batch,) = batching.open(lambda start, lane: (block for block in [block]), START, lane_of(engine))
    assert batch.tokens == (6 if isinstance(length, str) else 12)


def test_columns_of_equal_sequences_have_their_width_as_length(engine: Engine) -> None:
    block = Columns({"tokens": np.zeros((5, 7))}, OffsetTrail(0, None))
    batches = al.TokenBatches(max_tokens=14).open(
        lambda *_: (each for each in [block]), START, lane_of(engine)
    )
    assert [(len(batch.block), batch.tokens) for batch in batches] == [(2, 14), (2, 14), (1, 7)]


def test_columns_stay_columns(engine: Engine) -> None:
    texts = Texts([3, 4, 5, 6], as_columns=True)
    for pool in (None, 3):
        for batch in al.TokenBatches(max_tokens=12, pool=pool).open(texts.open, START, lane_of(engine)):
            assert isinstance(batch.block, Columns)
            assert isinstance(batch.block.column("tokens"), Ragged)


@pytest.mark.parametrize("pool", [None, 100])
def test_a_sample_that_is_too_long_is_named(pool: int | None, engine: Engine) -> None:
    batching = al.TokenBatches(max_tokens=10, multiple_of=4, pool=pool)
    found: list[int] = []
    with pytest.raises(ValueError, match=r"at most max_tokens=10, but found 9, rounded up") as caught:
        for batch in batching.open(Texts([1, 2, 3, 4, 9, 1]).open, START, lane_of(engine)):
            found += [row["number"] for row in batch.block.rows()]
    (note,) = caught.value.__notes__
    assert "sample 4 of listed" in note
    assert found == ([0, 1, 2, 3] if pool is None else []), "what was complete before it is handed on"


@pytest.mark.parametrize("pool", [None, 100])
def test_a_sample_that_is_too_long_may_be_a_batch_of_its_own(pool: int | None, engine: Engine) -> None:
    batching = al.TokenBatches(max_tokens=10, pool=pool, overlong="alone")
    lengths = [1, 2, 30, 4, 5]
    whole = assert_resumes_everywhere(batching, lengths, lane_of(engine))
    assert [sizes_of(made) for made in whole if 30 in sizes_of(made)] == [[30]]
    assert sum(made.samples for made in whole) == len(lengths)


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ({"other": [1]}, "expected samples that are mappings with the field 'tokens'"),
        (["a", "b"], "expected samples that are mappings with the field 'tokens'"),
        ({"tokens": None}, "expected a sequence or a number as the length of a sample, but found NoneType"),
        ({"tokens": -1}, "a length of 0 or more, but found -1"),
        ({"tokens": float("nan")}, "a length of 0 or more, but found nan"),
        ({"tokens": True}, "expected a number as length, but found bool"),
        ({"tokens": 1.5}, "a whole number, but found 1.5; count in smaller units"),
    ],
)
@pytest.mark.parametrize("pool", [None, 3])
def test_a_sample_without_a_length_is_named(
    sample: Any, message: str, pool: int | None, engine: Engine
) -> None:
    block = Rows([{"tokens": [1]}, {"tokens": [1, 2]}, sample], OffsetTrail(7, None))
    batching = al.TokenBatches(max_tokens=2, pool=pool)
    found = []
    with pytest.raises(ValueError, match=message) as caught:
        for batch in batching.open(lambda *_: (each for each in [block]), START, lane_of(engine)):
            found.append(len(batch.block))
    assert any("in TokenBatches of sample 9" in note for note in caught.value.__notes__)
    assert found == ([1, 1] if pool is None else [])


def test_an_error_of_the_users_function_keeps_its_type_and_names_the_sample(engine: Engine) -> None:
    batching = al.TokenBatches(length=lambda sample: 1 // sample["number"], max_tokens=9)
    with pytest.raises(ZeroDivisionError) as caught:
        list(batching.open(Texts([1, 1]).open, START, lane_of(engine)))
    assert "sample 0 of listed" in caught.value.__notes__[0]


def test_the_upstream_is_closed_with_the_batches(engine: Engine) -> None:
    closed = []

    def upstream(start: Any, lane: Any) -> Any:
        try:
            yield from Texts([1] * 20).open(start, lane)
        finally:
            closed.append(True)

    for batching in (al.TokenBatches(max_tokens=2), al.TokenBatches(max_tokens=2, pool=4)):
        batches = batching.open(upstream, START, lane_of(engine))
        next(batches)
        batches.close()
    assert closed == [True, True]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"max_tokens": 0}, ValueError, "max_tokens should be a positive integer"),
        ({"max_tokens": 8.0}, ValueError, "max_tokens should be a positive integer"),
        ({"max_samples": 0}, ValueError, "max_samples should be a positive integer"),
        ({"multiple_of": True}, ValueError, "multiple_of should be a positive integer"),
        ({"multiple_of": 64}, ValueError, "multiple_of should be at most max_tokens=32"),
        ({"pool": -1}, ValueError, "pool should be a positive integer"),
        ({"overlong": "skip"}, ValueError, "overlong should be 'raise' or 'alone'"),
        ({"length": 3}, TypeError, "length should be the name of a field or a function"),
    ],
)
def test_options_are_checked(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        al.TokenBatches(**{"max_tokens": 32, **options})


def test_its_number_of_batches_is_not_known() -> None:
    with pytest.raises(UnknownCount, match="depends on how long the samples are"):
        al.TokenBatches(max_tokens=9).count_batches(lambda: [1.0])


def test_it_pickles_and_compares() -> None:
    batching = al.TokenBatches(max_tokens=32, pool=7)
    assert pickle.loads(pickle.dumps(batching)) == batching != al.TokenBatches(max_tokens=32)
