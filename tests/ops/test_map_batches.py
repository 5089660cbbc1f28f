from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from drawn_columns import plain
from hypothesis import given, settings
from hypothesis import strategies as st

import asyncloader as al
from asyncloader.blocks import Columns, OffsetTrail, Ragged
from asyncloader.flow.engine import Engine
from asyncloader.pipeline.components import Stages
from asyncloader.pipeline.dataset import dataset_of
from asyncloader.pipeline.filter import Filter, FilterBatches
from asyncloader.pipeline.map import Map, MapBatches
from asyncloader.pipeline.op import Op
from asyncloader.pipeline.shuffle import Shuffle
from asyncloader.pipeline.take import Repeat, Take

from .running import Listed, ListedColumns, assert_resumes_everywhere, lane_of, places_of, positions_of, run


def numbers(count: int) -> list[dict[str, Any]]:
    return [{"x": number, "name": f"n{number}"} for number in range(count)]


def beside_its_chunk(batch: dict[str, Any]) -> dict[str, Any]:
    """Shows which samples came together."""
    batch["chunk"] = [str(batch["x"].tolist())] * len(batch["x"])
    return batch


def is_odd_from_the_chunks_first(batch: dict[str, Any]) -> Any:
    return (batch["x"] - batch["x"][0]) % 2 == 1


@given(count=st.integers(0, 30), size=st.integers(1, 12))
@settings(deadline=None)
def test_a_function_gets_consecutive_samples_as_columns(count: int, size: int, engine: Engine) -> None:
    came: list[list[int]] = []

    def double(batch: dict[str, Any]) -> dict[str, Any]:
        came.append(batch["x"].tolist())
        assert batch["x"].dtype == np.int64
        return {"twice": batch["x"] * 2, "name": batch["name"]}

    made = run(Listed(numbers(count)), [MapBatches(double, size)], lane_of(engine))
    assert made == [{"twice": 2 * number, "name": f"n{number}"} for number in range(count)]
    assert came == [list(range(first, min(first + size, count))) for first in range(0, count, size)]


@given(count=st.integers(0, 30), size=st.integers(1, 12))
@settings(deadline=None)
def test_a_mask_says_which_samples_are_kept(count: int, size: int, engine: Engine) -> None:
    kept = run(Listed(numbers(count)), [FilterBatches(is_odd_from_the_chunks_first, size)], lane_of(engine))
    expected = [
        sample for first in range(0, count, size) for sample in numbers(count)[first : first + size][1::2]
    ]
    assert kept == expected
    assert all(type(sample["x"]) is int for sample in kept), "rows that are kept stay what they were"


@pytest.mark.parametrize(
    "ops",
    [
        [MapBatches(beside_its_chunk, 5)],
        [MapBatches(beside_its_chunk, 5, 3)],
        [FilterBatches(is_odd_from_the_chunks_first, 4)],
        [FilterBatches(lambda batch: batch["x"] % 10 < 3, 4), MapBatches(beside_its_chunk, 3)],
        [Shuffle(6), MapBatches(beside_its_chunk, 4), Take(15)],
        [MapBatches(beside_its_chunk, 4), Shuffle(6), Repeat(2)],
        [Repeat(2), MapBatches(beside_its_chunk, 7), FilterBatches(is_odd_from_the_chunks_first, 5)],
        [Map(dict), Filter(lambda sample: sample["x"] % 3), MapBatches(beside_its_chunk, 4)],
    ],
    ids=lambda ops: " ".join(type(op).__name__ for op in ops),
)
def test_a_resume_inside_a_chunk_gives_the_function_the_same_chunk(ops: list[Op], engine: Engine) -> None:
    came = assert_resumes_everywhere(numbers(23), ops, lane_of(engine))
    assert came
    block = Columns(
        {"x": np.arange(23), "name": [f"n{number}" for number in range(23)]}, OffsetTrail(0, None)
    )
    assert [plain(row) for row in run(ListedColumns(block), ops, lane_of(engine))] == [
        plain(row) if type(row["x"]) is not int else plain(row | {"x": np.int64(row["x"])}) for row in came
    ]


def test_what_is_dropped_at_the_end_of_a_chunk_is_not_asked_for_again(engine: Engine) -> None:
    asked: list[int] = []

    def first_two(batch: dict[str, Any]) -> Any:
        asked.append(int(batch["x"][0]))
        return np.arange(len(batch["x"])) < 2

    ops = [FilterBatches(first_two, 5)]
    whole = list(positions_of(Listed(numbers(10)), ops, lane_of(engine)))
    asked.clear()
    run(Listed(numbers(10)), ops, lane_of(engine), whole[1][1])
    assert asked == [5]


def test_columns_are_handed_on_as_they_are_and_no_row_is_made(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = Ragged(np.arange(30, dtype=np.int32), np.arange(11) * 3)
    source = ListedColumns(Columns({"tokens": tokens, "y": np.zeros(10)}, OffsetTrail(0, None)), sizes=(10,))
    monkeypatch.setattr(Columns, "rows", lambda self: pytest.fail("rows were made"))

    def check(batch: dict[str, Any]) -> dict[str, Any]:
        assert isinstance(batch["tokens"], Ragged)
        assert np.shares_memory(batch["tokens"].values, tokens.values), "without a copy"
        return {"length": batch["tokens"].lengths, **batch}

    recipe = Stages(source, (MapBatches(check, 5), FilterBatches(lambda batch: batch["length"] == 3, 5)))
    blocks = list(recipe.open([], lane_of(engine)))
    assert [list(block.fields) for block in blocks] == [["length", "tokens", "y"]] * 2


def test_the_dict_is_the_functions_own(engine: Engine) -> None:
    block = Columns({"x": np.arange(4)}, OffsetTrail(0, None))

    def change(batch: dict[str, Any]) -> dict[str, Any]:
        batch["y"] = batch.pop("x")
        return batch

    assert [list(row) for row in run(ListedColumns(block), [MapBatches(change, 2)], lane_of(engine))] == [
        ["y"]
    ] * 4
    assert list(block.fields) == ["x"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([[1, 2], [3]], [("<i8", (2,), [1, 2]), ("<i8", (1,), [3])]),
        ((0.5, 1.5), [("<f8", (), 0.5), ("<f8", (), 1.5)]),
        (["a", "b"], ["a", "b"]),
        (np.array(["a", "b"]), ["a", "b"]),
        (np.array(["a", None]), ["a", None]),
        (torch.tensor([[1.0], [2.0]]), [("<f4", (1,), [1.0]), ("<f4", (1,), [2.0])]),
        (Ragged.of([[1], []]), [("<i8", (1,), [1]), ("<i8", (0,), [])]),
        (np.array([1, 2], np.int8), [("|i1", (), 1), ("|i1", (), 2)]),
    ],
    ids=str,
)
def test_what_a_function_gives_back_becomes_a_column(given: Any, expected: Any, engine: Engine) -> None:
    made = run(Listed(numbers(2)), [MapBatches(lambda batch: {"made": given}, 2)], lane_of(engine))
    assert [plain(sample["made"]) for sample in made] == expected


def fail(batch: dict[str, Any]) -> Any:
    raise LookupError("mine")


@pytest.mark.parametrize(
    ("op", "kind", "message"),
    [
        (MapBatches(fail, 3), LookupError, "mine"),
        (FilterBatches(fail, 3), LookupError, "mine"),
        (
            MapBatches(lambda batch: [1], 3),
            TypeError,
            "expected the function to return a mapping of columns.*found list",
        ),
        (MapBatches(lambda batch: {}, 3), ValueError, "at least one column"),
        (
            MapBatches(lambda batch: {"y": batch["x"][:2]}, 3),
            ValueError,
            "the 3 samples that it was given, found 2 in 'y'; .filter_batches drops samples",
        ),
        (MapBatches(lambda batch: {"y": 7}, 3), TypeError, "found int as 'y'"),
        (MapBatches(lambda batch: {"y": np.array(7)}, 3), TypeError, r"found ndarray of shape \(\) as 'y'"),
        (
            MapBatches(lambda batch: {"y": torch.zeros(3, dtype=torch.bfloat16)}, 3),
            TypeError,
            "bfloat16 on cpu as 'y'",
        ),
        (
            MapBatches(lambda batch: {"y": torch.zeros(3, requires_grad=True)}, 3),
            TypeError,
            r"use \.detach\(\)",
        ),
        (MapBatches(lambda batch: {"y": "abc"}, 3), TypeError, "found str as 'y'"),
        (FilterBatches(lambda batch: None, 3), ValueError, r"boolean mask \(3,\).*found NoneType"),
        (FilterBatches(lambda batch: [0, 2], 3), ValueError, r"found int64 of shape \(2,\)"),
        (FilterBatches(lambda batch: np.ones(2, bool), 3), ValueError, r"found bool of shape \(2,\)"),
        (FilterBatches(lambda batch: np.ones((3, 1), bool), 3), ValueError, r"found bool of shape \(3, 1\)"),
        (FilterBatches(lambda batch: [[True], [True, False]], 3), ValueError, "boolean mask"),
    ],
)
@pytest.mark.parametrize("concurrency", [1, 2])
def test_an_error_says_which_samples_the_function_was_given(
    op: Any, kind: type[Exception], message: str, concurrency: int, engine: Engine
) -> None:
    if isinstance(op, MapBatches):
        op = MapBatches(op.fn, op.batch_size, concurrency)
    with pytest.raises(kind, match=message) as caught:
        run(Listed(numbers(3)), [op], lane_of(engine))
    assert "atches(" in caught.value.__notes__[0]
    assert caught.value.__notes__[0].endswith("of 3 samples: samples 0, 1, 2 of listed")


@pytest.mark.parametrize("concurrency", [1, 2])
def test_chunks_before_a_failure_are_handed_on(concurrency: int, engine: Engine) -> None:
    def second_fails(batch: dict[str, Any]) -> dict[str, Any]:
        if batch["x"][0]:
            raise LookupError("mine")
        return batch

    came = []
    with pytest.raises(LookupError):
        for sample, _ in positions_of(
            Listed(numbers(9)), [MapBatches(second_fails, 3, concurrency)], lane_of(engine)
        ):
            came.append(int(sample["x"]))
    assert came == [0, 1, 2]


def test_samples_of_unlike_fields_are_refused_with_where_they_are(engine: Engine) -> None:
    with pytest.raises(ValueError, match=r"in sample 0 of listed and .* in sample 1 of listed"):
        run(Listed([{"x": 1}, {"y": 1}]), [MapBatches(dict, 2)], lane_of(engine))


def test_chunks_are_made_at_a_time_on_threads_and_come_in_order(engine: Engine) -> None:
    together = threading.Barrier(3, timeout=30)

    def meet(batch: dict[str, Any]) -> dict[str, Any]:
        together.wait()
        return batch

    made = run(Listed(numbers(36)), [MapBatches(meet, 4, 3)], lane_of(engine))
    assert [sample["x"] for sample in made] == list(range(36))


def draw(batch: dict[str, Any]) -> dict[str, Any]:
    return {"x": batch["x"], "drawn": al.sample_rng().integers(1 << 30, size=len(batch["x"]))}


def draw_mask(batch: dict[str, Any]) -> Any:
    return al.sample_rng().random(len(batch["x"])) < 0.5


@pytest.mark.parametrize(
    "ops", [[MapBatches(draw, 4)], [MapBatches(draw, 4, 2)], [FilterBatches(draw_mask, 4)]]
)
def test_random_numbers_are_drawn_for_the_chunk_and_the_same_after_a_resume(
    ops: list[Op], engine: Engine
) -> None:
    came = assert_resumes_everywhere(numbers(11), ops, lane_of(engine))
    assert came != run(Listed(numbers(11)), ops, lane_of(engine, epoch=1))


def test_each_sample_keeps_its_place(engine: Engine) -> None:
    ops: list[Op] = [Shuffle(5), MapBatches(dict, 4), FilterBatches(is_odd_from_the_chunks_first, 3)]
    for sample, place in places_of(Listed(numbers(20)), ops, lane_of(engine)):
        assert place.sample == sample["x"]


@pytest.mark.parametrize("concurrency", [1, 4])
def test_no_more_is_made_than_the_chunks_that_are_wanted(concurrency: int) -> None:
    calls: list[int] = []
    chunks: list[int] = []

    def note(sample: dict[str, Any]) -> dict[str, Any]:
        calls.append(sample["x"])
        return sample

    def note_chunk(batch: dict[str, Any]) -> dict[str, Any]:
        chunks.append(len(batch["x"]))
        return batch

    recipe = dataset_of(Listed(numbers(1000), sizes=(100,)))
    head = recipe.map(note).map_batches(note_chunk, batch_size=10, concurrency=concurrency).head(12)
    assert [sample["x"] for sample in head] == list(range(12))
    assert (len(calls), chunks) == (20, [10, 10])


def test_an_early_close_closes_the_source_and_the_threads(engine: Engine) -> None:
    source = Listed(numbers(100))
    for concurrency in (1, 3):
        stream = positions_of(source, [MapBatches(dict, 5, concurrency)], lane_of(engine))
        next(stream)
        stream.close()
    assert source.closed == 2
    assert not [thread for thread in threading.enumerate() if "map-batches" in thread.name]


async def asynchronous(batch: Any) -> Any:
    return batch


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (
            lambda ds: ds.map_batches(3, batch_size=2),
            TypeError,
            "map_batches should get a function of columns",
        ),
        (
            lambda ds: ds.filter_batches(3, batch_size=2),
            TypeError,
            "filter_batches should get a function of col",
        ),
        (lambda ds: ds.map_batches(dict, batch_size=0), ValueError, "batch_size should be a positive"),
        (lambda ds: ds.map_batches(dict, batch_size=2, concurrency=0), ValueError, "concurrency should be"),
        (lambda ds: ds.filter_batches(dict, batch_size=0), ValueError, "batch_size should be a positive"),
        (
            lambda ds: ds.map_batches(asynchronous, batch_size=2),
            TypeError,
            "got a coroutine function; use .map",
        ),
        (lambda ds: ds.filter_batches(asynchronous, batch_size=2), TypeError, "got a coroutine function"),
    ],
)
def test_wrong_calls_are_refused_at_once(
    make: Callable[[al.Dataset], Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        make(dataset_of(Listed([])))


def test_both_are_told_as_they_are_called() -> None:
    recipe = dataset_of(Listed([])).map_batches(draw, batch_size=4).filter_batches(draw_mask, batch_size=3)
    assert repr(recipe).endswith("map_batches(draw, batch_size=4), filter_batches(draw_mask, batch_size=3))")


def test_a_filter_has_no_concurrency_that_a_report_could_advise() -> None:
    assert not hasattr(FilterBatches(draw_mask, 3), "concurrency")
