"""Looking at a recipe without a loader."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager
from itertools import chain
from typing import Any

import numpy as np
import pytest
from corpus import Corpus

import asyncloader as al
from asyncloader import testing
from asyncloader.pipeline.dataset import stages_of
from asyncloader.plan.topology import Topology


def numbers(count: int) -> al.Dataset:
    return al.from_iterable(lambda topology: topology.split(range(count)))


@pytest.mark.usefixtures("no_leaks")
@pytest.mark.parametrize("remote", [False, True], ids=["disk", "http"])
def test_the_head_is_what_a_loader_in_one_lane_delivers_first(
    remote: bool, make_corpus: Callable[..., Corpus], served: testing.Server
) -> None:
    corpus = make_corpus("tar")
    recipe = al.from_urls(corpus.urls(served) if remote else corpus.paths).shuffle(4, seed=1)
    first = [sample["__key__"] for sample in al.DataLoader(recipe.take(6), None)]
    assert [sample["__key__"] for sample in recipe.head(6)] == first
    assert len(recipe.head()) == 5
    everything = recipe.head(1000)
    assert len(everything) == len(list(al.DataLoader(recipe, None)))


@pytest.mark.usefixtures("no_leaks")
@pytest.mark.parametrize("concurrency", [1, 4])
def test_the_head_calls_functions_for_as_many_samples_as_are_wanted(concurrency: int) -> None:
    asked: list[int] = []
    left: list[int] = []

    @asynccontextmanager
    async def context() -> Any:
        yield 10
        left.append(1)

    async def ask(number: int, factor: int) -> int:
        asked.append(number)
        await asyncio.sleep(0)
        return number * factor

    recipe = numbers(100).map(ask, concurrency=concurrency, context=context)
    assert recipe.head(3) == [0, 10, 20]
    assert asked == [0, 1, 2] and left == [1]
    assert recipe.filter(lambda number: number % 20 == 10).head(2) == [10, 30]
    assert numbers(5).map(lambda number: al.sample_rng().random(), concurrency=concurrency).head(1)[0] > 0


def test_an_error_of_the_recipe_is_the_caller_of_heads() -> None:
    def fails(number: int) -> int:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        numbers(5).map(fails).head()
    with pytest.raises(ValueError, match="n should be a positive integer"):
        numbers(5).head(0)


def test_integers_of_numpy_are_taken_everywhere_and_a_state_can_hold_them() -> None:
    three = np.int64(3)
    recipe = (
        numbers(100)
        .map(lambda number: {"x": number}, concurrency=three)
        .map_batches(lambda columns: columns, batch_size=three, concurrency=three)
        .filter_batches(lambda columns: columns["x"] >= 0, batch_size=three)
        .shuffle(three, seed=three)
        .repeat(three)
        .take(three)
    )
    assert json.loads(json.dumps(stages_of(recipe).describe())) == stages_of(recipe).describe()
    assert len(recipe.head(three)) == 3
    loader = al.DataLoader(recipe, 2, lanes=three, prefetch_factor=three)
    loader.set_epoch(three)
    assert sum(len(batch["x"]) for batch in loader) == 3
    json.dumps(loader.state_dict())


def test_a_recipe_that_is_iterated_says_how_to_load_it() -> None:
    recipe = numbers(5)
    for iterate in (iter, list, next, lambda recipe: [*recipe]):
        with pytest.raises(TypeError) as caught:
            iterate(recipe)  # type: ignore[operator]  # the wrong calls
        if iterate is not next:
            assert "DataLoader(ds.take(1), batch_size=None)" in str(caught.value)
    with pytest.raises(TypeError, match="but got a dataset"):
        al.from_iterable(recipe)
    assert bool(recipe) and copy.deepcopy(recipe.take(1)) == recipe.take(1) != recipe
    assert pickle.loads(pickle.dumps(al.from_iterable(range(3)))).head(1) == [0]


LIST = list(range(10))


@pytest.mark.parametrize(("sequence", "workers"), [(LIST, 2), (tuple(LIST), 0), (range(10), 0)])
def test_a_sequence_deals_itself_and_knows_its_length(sequence: Any, workers: int) -> None:
    loader = al.DataLoader(al.from_iterable(sequence), 2, num_workers=workers, lanes=4, collate_fn=list)
    assert len(loader) == 6  # of 3, 3, 2 and 2 samples
    batches = list(loader)
    assert len(batches) == 6 and sorted(chain(*batches)) == LIST
    resumed = al.DataLoader(al.from_iterable(sequence), 2, lanes=4, collate_fn=list)
    iterator = iter(loader)
    assert [next(iterator), next(iterator)] == batches[:2]
    resumed.load_state_dict(loader.state_dict())
    iterator.close()
    assert list(resumed) == batches[2:]
    ranks = [al.DataLoader(al.from_iterable(sequence), 2, rank=rank, world_size=2) for rank in range(2)]
    assert [len(rank) for rank in ranks] == [3, 3]


def test_a_list_that_finds_its_part_by_itself_is_not_dealt_once_more() -> None:
    class Own(list[int]):
        def __iter__(self) -> Iterator[int]:
            return al.get_topology().split(super().__iter__())

    loader = al.DataLoader(al.from_iterable(Own(LIST)), None, lanes=4)
    assert sorted(loader) == LIST


def test_a_function_without_a_parameter_does_for_one_lane_or_if_it_asks() -> None:
    def all_of_them() -> Iterator[int]:
        yield from LIST

    def mine() -> Iterator[int]:
        yield from al.get_topology().split(LIST)

    def of_default(topology: Topology | None = None) -> Iterator[int]:
        assert topology is not None
        return topology.split(LIST)

    assert list(al.DataLoader(al.from_iterable(all_of_them), None)) == LIST
    for make in (mine, of_default):
        assert sorted(al.DataLoader(al.from_iterable(make), None, lanes=3)) == LIST
    with pytest.raises(RuntimeError, match=r"takes no topology.*topology.split\(.*all_of_them\(\)\)"):
        list(al.DataLoader(al.from_iterable(all_of_them), None, lanes=2))


RECIPE: Any = al.from_iterable(LIST)

#: What people write who come from elsewhere, and what the error tells them to write.
ELSEWHERE: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: RECIPE.batch(32), AttributeError, r"DataLoader\(ds, batch_size=32\)"),
    (lambda: RECIPE.to_tuple("jpg", "cls"), AttributeError, r"\.select_columns\(.*\.map\("),
    (lambda: RECIPE.cache(), AttributeError, r"cache_dir="),
    (lambda: RECIPE.no_such_thing, AttributeError, r"a dataset has no 'no_such_thing'$"),
    (lambda: len(RECIPE), TypeError, r"len\(DataLoader\(ds, batch_size\)\)"),
    (lambda: RECIPE[0], TypeError, r"ds.head\(n\)"),
    (lambda: RECIPE.shuffle(10, buffer_size=10), TypeError, "window or buffer_size, which are the same"),
    (lambda: RECIPE.shuffle(10, sead=3), TypeError, "unexpected keyword argument 'sead'"),
    (lambda: RECIPE.select(lambda sample: True), AttributeError, r"\.select_columns.*\.filter\(function\)"),
    (lambda: RECIPE.select_columns(lambda sample: True), TypeError, r"\.filter\(function\)"),
    (
        lambda: al.from_iterable([{"jpg": 1}]).rename(image="jpg").head(),
        KeyError,
        r"old name first.*rename\(jpg='image'\)",
    ),
    (
        lambda: type("Mine", (al.Dataset,), {}),
        TypeError,
        r"Mine does so: inherit from torch.utils.data.Dataset",
    ),
    (lambda: al.Dataset(LIST), TypeError, "not by al.Dataset"),  # type: ignore[arg-type]
    (lambda: al.split(LIST), ImportError, "asyncloader.split is now split_iterable"),  # type: ignore[attr-defined]
    (lambda: al.Topology, ImportError, "now asyncloader.plan.topology.Topology"),  # type: ignore[attr-defined]
    (
        lambda: al.DataLoader(RECIPE, ahead=0),
        TypeError,
        "DataLoader has no argument 'ahead': write prefetch_f",
    ),
    (
        lambda: al.DataLoader(RECIPE, replicate=2),
        TypeError,
        r"write rank=rank // n and world_size=world_size",
    ),
    (lambda: al.DataLoader(RECIPE).receipt(), AttributeError, r"no 'receipt': loader\.statistics"),  # type: ignore[attr-defined]
    (lambda: al.DataLoader(RECIPE, sampler=LIST), ValueError, r"sampler=.*its own part.*\.shuffle\(window"),
    (lambda: al.DataLoader(RECIPE, batch_sampler=[LIST]), ValueError, r"batch_sampler=.*batching="),
    (
        lambda: al.DataLoader(RECIPE, batch_size=al.TokenBatches(length="tokens", max_tokens=64)),  # type: ignore[call-overload]
        TypeError,
        r"TokenBatches.*give that as batching=",
    ),
]


@pytest.mark.parametrize("row", range(len(ELSEWHERE)))
def test_what_other_libraries_have_is_refused_with_what_to_write_instead(row: int) -> None:
    call, error, told = ELSEWHERE[row]
    with pytest.raises(error, match=told):
        call()
    assert RECIPE and not hasattr(RECIPE, "batch") and copy.copy(RECIPE) == RECIPE


def test_class_names_are_of_parquet() -> None:
    with pytest.raises(ValueError, match="needs shards of Parquet, but the dataset is of"):
        al.from_urls("a.jsonl").class_names("label")
