"""Sources over several sources, in a lane: whatever the blocks, the same samples, resumed at each of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import pytest
from examples_drawn import examples
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from asyncloader.blocks import Columns, OffsetTrail, Rows
from asyncloader.flow.engine import Engine
from asyncloader.pipeline.components import Composed, Concat, Stages, Zipped
from asyncloader.pipeline.filter import Filter
from asyncloader.pipeline.lane import START
from asyncloader.pipeline.mixture import Mixture
from asyncloader.pipeline.op import Op
from asyncloader.pipeline.shuffle import Shuffle
from asyncloader.pipeline.take import Repeat
from asyncloader.plan.mixing import EpochWeights
from asyncloader.types import Position

from .running import Listed, ListedColumns, lane_of, positions_of

drawn = examples(30, suppress_health_check=[HealthCheck.function_scoped_fixture])
block_sizes = st.lists(st.integers(1, 7), min_size=1, max_size=4)


def _listed(component: int, count: int, sizes: Sequence[int], in_columns: bool = False) -> Listed:
    numbers = [1000 * component + index for index in range(count)]
    if not in_columns or not numbers:
        return Listed([{"n": number} for number in numbers], sizes)
    return ListedColumns(Columns({"n": np.array(numbers)}, OffsetTrail(0, None)), sizes)


def mixture(
    counts: Sequence[int],
    weights: Sequence[float],
    stop: Any,
    sizes: Sequence[int],
    ops: Sequence[Op] = (),
    columns: Sequence[bool] = (False,) * 9,
) -> Mixture:
    names = tuple(map(str, range(len(counts))))
    recipes = tuple(
        Stages(_listed(number, count, sizes, columns[number]), tuple(ops))
        for number, count in enumerate(counts)
    )
    return Mixture(names, recipes, EpochWeights(names, weights), 0, stop)


def samples_of(
    source: Composed, ops: Sequence[Op], engine: Engine, start: Position = START
) -> list[tuple[int, Position]]:
    found = positions_of(source, ops, lane_of(engine), start)  # type: ignore[arg-type]
    return [(int(sample["n"]), json.loads(json.dumps(position))) for sample, position in found]


@drawn
@given(
    st.lists(st.integers(0, 25), min_size=1, max_size=5),
    st.data(),
    st.sampled_from(["first", "all", "repeat"]),
    st.sampled_from(
        [(), (Shuffle(4, 1),), (Filter(lambda sample: sample["n"] % 3),), (Shuffle(3), Repeat(2))]
    ),
    st.sampled_from([(), (Shuffle(5, 2),), (Repeat(2),)]),
)
def test_samples_do_not_depend_on_blocks_and_go_on_from_each_of_them(
    engine: Engine,
    counts: list[int],
    data: st.DataObject,
    stop: str,
    inner: Sequence[Op],
    outer: Sequence[Op],
) -> None:
    weights = data.draw(st.lists(st.floats(0.2, 3), min_size=len(counts), max_size=len(counts)))
    columns = data.draw(st.lists(st.booleans(), min_size=len(counts), max_size=len(counts)))

    def made() -> Mixture:
        return mixture(counts, weights, stop, data.draw(block_sizes), inner, columns)

    whole = samples_of(made(), outer, engine)
    assert samples_of(made(), outer, engine) == whole
    for done in range(1, len(whole), 1 + len(whole) // 12):
        assert samples_of(made(), outer, engine, whole[done - 1][1]) == whole[done:]
    if stop == "all" and not inner and not outer:
        numbers = [
            1000 * component + index for component, count in enumerate(counts) for index in range(count)
        ]
        assert sorted(number for number, _ in whole) == numbers


@drawn
@given(st.lists(st.integers(0, 12), min_size=1, max_size=4), st.data(), st.sampled_from([(), (Shuffle(5),)]))
def test_concat_gives_one_after_another_and_goes_on_from_each_sample(
    engine: Engine, counts: list[int], data: st.DataObject, outer: Sequence[Op]
) -> None:
    def made() -> Concat:
        of_blocks = mixture(counts, [1] * len(counts), "all", data.draw(block_sizes))
        return Concat(of_blocks.names, of_blocks.parts)

    whole = samples_of(made(), outer, engine)
    numbers = [1000 * component + index for component, count in enumerate(counts) for index in range(count)]
    assert sorted(number for number, _ in whole) == numbers
    assert outer or [number for number, _ in whole] == numbers
    for done in range(1, len(whole), 3):
        assert samples_of(made(), outer, engine, whole[done - 1][1]) == whole[done:]


@drawn
@given(st.integers(1, 40), st.data(), st.booleans())
def test_zip_goes_on_from_each_sample(
    engine: Engine, count: int, data: st.DataObject, in_columns: bool
) -> None:
    def made() -> Zipped:
        recipes = []
        for name in ("n", "m"):
            numbers = np.arange(count)
            source: Listed = ListedColumns(
                Columns({name: numbers}, OffsetTrail(0, None)), data.draw(block_sizes)
            )
            if not in_columns:
                source = Listed([{name: number} for number in range(count)], data.draw(block_sizes))
            recipes.append(Stages(source, (Shuffle(6, 3),)))
        return Zipped(("0", "1"), tuple(recipes), False, True)

    lane = lane_of(engine)
    whole = list(positions_of(made(), (), lane))  # type: ignore[arg-type]
    assert all(sample["n"] == sample["m"] for sample, _ in whole) and len(whole) == count
    for done in range(1, count, 3):
        rest = positions_of(made(), (), lane, whole[done - 1][1])  # type: ignore[arg-type]
        assert [sample["n"] for sample, _ in rest] == [sample["n"] for sample, _ in whole[done:]]


def test_a_mixture_holds_one_block_of_each_component(engine: Engine) -> None:
    source = mixture([400, 400], [1, 1], "first", (10,))
    listed = [recipe.source for recipe in source.parts]
    handed_on = 0
    for block in Stages(source).open(START, lane_of(engine)):
        handed_on += len(block)
        assert sum(each.handed_on for each in listed) <= handed_on + 20
    assert all(each.closed == len(each.opened) == 1 for each in listed)


def test_components_are_opened_when_they_are_first_drawn_from(engine: Engine) -> None:
    source = mixture([400, 400], [1, 0], "first", (10,))
    blocks = Stages(source).open(START, lane_of(engine))
    next(blocks)
    assert [len(recipe.source.opened) for recipe in source.parts] == [1, 0]
    blocks.close()
    assert source.parts[0].source.closed == 1


def test_columns_that_are_alike_stay_columns_and_others_become_rows(engine: Engine) -> None:
    for columns, kind in (((True, True), Columns), ((True, False), Rows)):
        source = mixture([100, 100], [1, 1], "all", (20,), columns=columns)
        blocks = list(Stages(source).open(START, lane_of(engine)))
        assert {type(block) for block in blocks if len(set(_components(block))) > 1} == {kind}


def _components(block: Any) -> list[int]:
    found = [*chain.from_iterable(block.trail.place(index).component for index in range(len(block)))]
    assert block.trail.origins.count_components(9) == [found.count(number) for number in range(9)]
    assert found == [int(row["n"]) // 1000 for row in block.rows()]
    return found


def test_a_place_names_the_component_and_is_that_of_one_sample(engine: Engine) -> None:
    source = mixture([40, 30, 9], [3, 2, 1], "repeat", (7,), (Shuffle(5, 1),))
    places = Counter()  # type: Counter[Any]
    for block in Stages(source, (Shuffle(8, 2),)).open(START, lane_of(engine)):
        for index, row in enumerate(block.rows()):
            place = block.trail.place(index)
            assert place.component == (row["n"] // 1000,)
            assert place.sample == row["n"] % 1000
            places[row["n"], place.repetition] += 1
    assert set(places.values()) == {1}


@pytest.mark.parametrize("stop", ["first", "all", "repeat"])
def test_nothing_of_all_components_is_nothing(stop: str, engine: Engine) -> None:
    assert samples_of(mixture([0, 0], [1, 1], stop, (3,)), (), engine) == []
