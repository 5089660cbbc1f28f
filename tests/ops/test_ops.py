"""What all operators have in common: positions, closing, notes at errors, descriptions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import cloudpickle
import pytest
from examples_drawn import examples
from hypothesis import given
from hypothesis import strategies as st

from asyncloader import testing
from asyncloader.blocks import OffsetTrail, Rows, join
from asyncloader.flow.engine import Engine
from asyncloader.pipeline.filter import Filter, Rename, Select
from asyncloader.pipeline.map import Map
from asyncloader.pipeline.op import Op, name_of, note_batch, note_sample
from asyncloader.pipeline.shuffle import Shuffle
from asyncloader.pipeline.take import Repeat, Take

from .running import Listed, assert_resumes_everywhere, lane_of, positions_of, run


def plus_one(number: int) -> int:
    return number + 1


async def plus_one_later(number: int) -> int:
    await asyncio.sleep(0)
    return number + 1


def odd(number: int) -> bool:
    return number % 2 == 1


a_map = st.builds(Map, st.just(plus_one), st.sampled_from([1, 3]))
an_async_map = st.builds(Map, st.just(plus_one_later), st.sampled_from([1, 5]))
a_filter = st.just(Filter(odd))
a_shuffle = st.builds(Shuffle, st.integers(1, 12), st.integers(0, 3))
a_repeat = st.builds(Repeat, st.integers(1, 3))
a_take = st.builds(Take, st.integers(1, 8))
an_op = st.one_of(a_map, an_async_map, a_filter, a_shuffle, a_repeat, a_take)


@pytest.mark.filterwarnings("ignore:take")
@examples(60)
@given(ops=st.lists(an_op, max_size=4), count=st.integers(0, 20))
def test_any_recipe_can_be_reopened_after_any_sample(ops: list[Op], count: int, engine: Engine) -> None:
    assert_resumes_everywhere(range(count), ops, lane_of(engine))


@pytest.mark.filterwarnings("ignore:take")
@examples(60)
@given(
    ops=st.lists(an_op, max_size=4),
    count=st.integers(0, 40),
    sizes=st.lists(st.integers(1, 50), min_size=1, max_size=5),
)
def test_no_recipe_depends_on_how_its_source_is_cut_into_blocks(
    ops: list[Op], count: int, sizes: list[int], engine: Engine
) -> None:
    one = run(Listed(range(count)), ops, lane_of(engine))
    assert run(Listed(range(count), sizes), ops, lane_of(engine)) == one


EACH: dict[str, Op] = {
    "map": Map(plus_one),
    "map on threads": Map(plus_one, 4),
    "async map": Map(plus_one_later, 4),
    "filter": Filter(odd),
    "shuffle": Shuffle(5),
    "repeat": Repeat(None),
    "take": Take(1000),
}
each = pytest.mark.parametrize("op", EACH.values(), ids=EACH.keys())


@each
@pytest.mark.parametrize("after", [0, 1, 10])
def test_closing_an_operator_closes_its_upstream_and_leaves_nothing(op: Op, after: int) -> None:
    with testing.check_leaks():
        source = Listed(range(1000))
        with Engine() as engine:
            blocks = _opened(source, [op], engine)
            for _ in range(after):
                next(blocks)
            blocks.close()
            assert source.closed == len(source.opened) <= 1


@each
def test_an_error_of_the_source_goes_through_every_operator(op: Op, engine: Engine) -> None:
    class Cut(Exception):
        pass

    class Broken(Listed):
        def open(self, start: Any, lane: Any) -> Any:
            yield from super().open(start, lane)
            raise Cut

    with pytest.raises(Cut):
        run(Broken(range(10)), [op], lane_of(engine))


@each
def test_operators_travel_to_workers_and_tell_what_they_are(op: Op) -> None:
    assert cloudpickle.loads(cloudpickle.dumps(op)) == op
    described = op.describe()
    assert json.loads(json.dumps(described)) == described
    assert described["op"] == type(op).__name__.lower().replace("async", "")


@pytest.mark.parametrize(
    "op",
    [
        Map(lambda sample: 1 // 0),
        Map(lambda sample: 1 // 0, 4),
        Filter(lambda sample: 1 // 0),
    ],
)
def test_an_error_of_the_users_function_names_the_sample(op: Op, engine: Engine) -> None:
    samples = [{"__key__": f"k{n}", "__url__": "u.tar", "b": 1, "a": 2} for n in range(5)]
    with pytest.raises(ZeroDivisionError) as caught:
        run(Listed(samples), [op], lane_of(engine))
    (note,) = caught.value.__notes__
    assert note.endswith("of sample 0 of listed, __key__ 'k0' (fields: a, b)")
    assert note.startswith(f"in {op.describe()['op']}(")


def test_a_sample_without_a_key_is_told_by_its_place() -> None:
    error = ValueError()
    note_sample(error, "map(f)", Rows([{"n": 1}, 3], OffsetTrail(7, None, line=8)), 0)
    note_sample(error, "map(f)", Rows([{"n": 1}, 3], OffsetTrail(7, None)), 1)
    assert error.__notes__ == [
        "in map(f) of sample 7, line 8 (fields: n)",
        "in map(f) of sample 8, of type int",
    ]


def test_a_batch_is_told_by_the_places_of_its_first_samples() -> None:
    error = ValueError()
    one, other = (
        Rows([None] * count, OffsetTrail(first, None).within(f"{first}.tar", 0, 0))
        for first, count in ((3, 2), (5, 20))
    )
    trail = join([one, other]).trail
    note_batch(error, "collate_fn", trail, 3)
    note_batch(error, "collate_fn", trail, 1)
    note_batch(error, "collate_fn", trail, 22)
    note_batch(error, "collate_fn", OffsetTrail(3, None), 2)
    whole, single, long, plain = error.__notes__
    assert whole == "in collate_fn of 3 samples: samples 3, 4 of 3.tar; samples 5 of 5.tar"
    assert single == "in collate_fn of sample 3 of 3.tar"
    assert long.startswith("in collate_fn of 22 samples: ") and long.endswith("18 of 5.tar; and 6 more")
    assert plain == "in collate_fn of 2 samples: samples 3, 4"


def test_functions_are_named_as_their_author_named_them() -> None:
    from functools import partial

    class Callable_:
        def __call__(self, sample: Any) -> Any:
            return sample

    assert name_of(plus_one) == "plus_one"
    assert name_of(partial(plus_one)) == "plus_one"
    assert name_of(Callable_()).endswith("Callable_")


def _opened(source: Listed, ops: Sequence[Op], engine: Engine) -> Any:
    from asyncloader.pipeline.components import Stages

    return Stages(source, tuple(ops)).open([], lane_of(engine))


def test_select_keeps_the_named_fields_in_the_given_order(engine: Engine) -> None:
    samples = [{"a": 1, "b": 2, "c": 3}] * 5
    (first, *_) = run(Listed(samples), [Select(("c", "a"))], lane_of(engine))
    assert list(first.items()) == [("c", 3), ("a", 1)]


def test_rename_keeps_values_and_the_other_fields(engine: Engine) -> None:
    samples = [{"a": 1, "b": 2, "c": 3}] * 5
    (first, *_) = run(Listed(samples), [Rename((("a", "b"), ("b", "a")))], lane_of(engine))
    assert first == {"b": 1, "a": 2, "c": 3}


@pytest.mark.parametrize(
    ("op", "kind", "message"),
    [
        (Select(("x",)), KeyError, "x"),
        (Rename((("x", "y"),)), KeyError, "x"),
        (Rename((("a", "b"),)), ValueError, r"rename would overwrite the fields \['b'\]"),
    ],
)
def test_fields_that_do_not_fit_the_sample_are_refused_by_name(
    op: Op, kind: type[Exception], message: str, engine: Engine
) -> None:
    with pytest.raises(kind, match=message) as caught:
        run(Listed([{"__key__": "k", "a": 1, "b": 2}]), [op], lane_of(engine))
    assert "__key__ 'k'" in caught.value.__notes__[0]


@pytest.mark.parametrize("op", [Select(("a",)), Rename((("a", "b"),))])
def test_samples_before_one_that_lacks_a_field_are_handed_on(op: Op, engine: Engine) -> None:
    samples: list[dict[str, int]] = [{"a": 1}, {"a": 2}, {"c": 3}, {"a": 4}]
    handed_on = []
    with pytest.raises(KeyError) as caught:
        for sample, _ in positions_of(Listed(samples, sizes=(4,)), [op], lane_of(engine)):
            handed_on.append(sample)
    assert [list(sample.values()) for sample in handed_on] == [[1], [2]]
    assert "sample 2 of listed" in caught.value.__notes__[0]
