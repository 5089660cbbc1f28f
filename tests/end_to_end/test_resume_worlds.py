"""An epoch that some ranks began goes on with any other number of ranks: nothing twice, nothing lost."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from corpus import Corpus, keys_of
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import Programs

import asyncloader as al
from asyncloader.plan.topology import Topology

from .drawn_recipes import Batches, Forms, Op, applied, batches, changing, drawn, permuting
from .harness import drained, recipe_of
from .indexed import write_indexed
from .test_resume import RECIPES, Recipe
from .worlds import Make, assert_every_world_goes_on, assert_goes_on, counted, epoch_of, rest_of, steps_of

pytestmark = [
    pytest.mark.usefixtures("fork_server"),
    pytest.mark.filterwarnings("ignore:an epoch had no batch"),  # recipes are drawn, and some keep nothing
    pytest.mark.filterwarnings(r"ignore:take\(\d+\) lacks"),  # recipes are drawn, and some take too much
]

LANES = 4
# Lanes of 7, 0, 9 and 3 samples, so that they run dry one after the other, and one has nothing.
SIZES = (3, 0, 7, 3, 4, 0, 2)
SUFFIXES = ("jsonl", "tar", "tar.gz", "tar.zst", "jsonl.gz", "jsonl.zst")


def maker(recipe: al.Dataset, batch_size: int | None = 3, **given: Any) -> Make:
    return lambda **options: al.DataLoader(recipe, batch_size, **{"lanes": LANES, **given, **options})


def numbers_of_lane(topology: Topology) -> Any:
    return topology.split(range(25))


class Numbers(al.AsyncIterableDataset):
    """A source of one's own, which is asynchronous."""

    async def __aiter__(self) -> Any:
        for number in al.get_topology().split(range(25)):
            yield number


# --- every world from every world ---


@pytest.mark.parametrize("name", ["plain", "shuffle, filter, map", "take, shuffle", "filter_batches"])
def test_every_world_goes_on_from_every_step_of_every_other(
    name: str, make_corpus: Callable[..., Corpus]
) -> None:
    assert_every_world_goes_on(maker(RECIPES[name](recipe_of(make_corpus("jsonl", SIZES)))))


def test_ranks_of_an_index_differ_by_one_batch_at_most_wherever_they_go_on(tmp_path: Path) -> None:
    paths = write_indexed(tmp_path, "jsonl", (30, 51, 7, 90, 1, 40))
    make = maker(al.from_urls(paths, index=tmp_path / "asyncloader-index.json").shuffle(9), 4, lanes=8)
    for size, count, after in ((1, 26, 4), (2, 11, 8), (2, 3, 4)):
        *_, step = (step for _, step in zip(range(count + 1), steps_of(make, size, 0), strict=False))
        left = [len(rest_of(make, rank, after, step.merged, 0)) for rank in range(after)]
        assert max(left) - min(left) <= 1, (size, count, after, left)


def test_any_number_of_workers_goes_on_from_any_world(make_corpus: Callable[..., Corpus]) -> None:
    make = maker(recipe_of(make_corpus("jsonl", SIZES)).shuffle(4))
    whole = drained(make())
    for size, count, after, then in ((4, 1, 2, 3), (2, 3, 4, 1), (1, 0, 2, 3)):
        *_, step = (step for _, step in zip(range(3), steps_of(make, size, count), strict=False))
        rests = [rest_of(make, rank, after, step.merged, then) for rank in range(after)]
        assert counted(chain(*step.seen, *rests)) == counted(whole), (size, count, after, then)


worlds = st.sampled_from([1, 2, 4])
in_a_form = given(
    steps=st.lists(st.one_of(permuting, changing), max_size=4),
    how=batches,
    form=st.sampled_from(["jsonl", "parquet", "tar"]),
    epoch=st.integers(0, 1),
    data=st.data(),
)


@settings(drawn, max_examples=10)
@in_a_form
def test_any_recipe_and_batching_goes_on_in_any_world(
    forms: Forms, steps: list[Op], how: Batches, form: str, epoch: int, data: st.DataObject
) -> None:
    check_a_cut(forms, steps, how, form, epoch, data)


@settings(drawn, max_examples=15)
@given(data=st.data(), sizes=st.lists(st.integers(0, 9), min_size=8, max_size=12))
def test_a_world_resized_again_and_again_gives_each_sample_once(
    data: st.DataObject, sizes: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    # Ranks that are not in step: each goes on for as many batches as it likes before it saves.
    make = maker(_numbered(tmp_path_factory.mktemp("shards"), sizes).shuffle(3), 2, lanes=12)
    came: list[int] = []
    state: Any = None
    for size in data.draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=5)):
        states = []
        for rank in range(size):
            loader = make(rank=rank, world_size=size)
            if state is not None:
                loader.load_state_dict(state)
            states.append(loader.state_dict())
            count = data.draw(st.integers(0, 4))
            for _, batch in zip(range(count), loader, strict=False):
                came += batch["number"].tolist()
                states[-1] = loader.state_dict()
            loader.close()
        state = json.loads(json.dumps(al.merge_states(states)))
    loader = make()
    loader.load_state_dict(state)
    came += [number for batch in loader for number in batch["number"].tolist()]
    assert sorted(came) == list(range(sum(sizes)))


def _numbered(folder: Path, sizes: list[int]) -> al.Dataset:
    numbers = iter(range(sum(sizes)))
    for shard, size in enumerate(sizes):
        lines = [json.dumps({"number": next(numbers)}) + "\n" for _ in range(size)]
        (folder / f"{shard:02d}.jsonl").write_text("".join(lines))
    return al.from_urls(str(folder / f"{{00..{len(sizes) - 1:02d}}}.jsonl"))


def test_a_fresh_process_goes_on_in_another_world(
    make_corpus: Callable[..., Corpus], tmp_path: Path, programs: Programs
) -> None:
    corpus = make_corpus("jsonl", SIZES)
    make = maker(recipe_of(corpus).shuffle(4))
    *_, step = (step for _, step in zip(range(2), steps_of(make, 4), strict=False))
    (tmp_path / "state.json").write_text(json.dumps(step.merged))
    program = """
import json, sys
import asyncloader as al
folder, *urls = sys.argv[1:]
for rank in range(2):
    recipe = al.from_urls(urls).select_columns("key", "number").shuffle(4)
    loader = al.DataLoader(recipe, 3, rank=rank, world_size=2, num_workers=rank)
    loader.load_state_dict(json.load(open(folder + "/state.json")))
    print(json.dumps([key for batch in loader for key in batch["key"]]))
"""
    script = tmp_path / "resume.py"
    script.write_text(program)
    run = programs.run(script, tmp_path, *corpus.paths)
    assert run.returncode == 0, run.stderr
    first, second = map(json.loads, run.stdout.splitlines())
    whole = keys_of(make())
    came = [key for rank in step.seen for _, fields in rank for key in _list(dict(fields)["key"])]
    assert sorted([*came, *first, *second]) == sorted(whole)


def _list(printed: tuple[str, list[tuple[str, Any]]]) -> list[Any]:
    return [value for _, value in printed[1]]


# --- the course of epochs ---


def test_after_the_epoch_that_a_merged_state_is_of_comes_the_next(make_corpus: Callable[..., Corpus]) -> None:
    make = maker(recipe_of(make_corpus("jsonl", SIZES)).shuffle(4))
    expected = [steps.seen for steps in steps_of(make, 2, epoch=4)][-1]
    for step in steps_of(make, 4, epoch=3):
        loaders = [make(rank=rank, world_size=2) for rank in range(2)]
        for loader in loaders:
            loader.load_state_dict(step.merged)
            loader.set_epoch(step.merged["epoch"])  # undoes no resume
        if not all(step.ended):
            for loader in loaders:
                drained(loader)
        assert [drained(loader) for loader in loaders] == expected


def test_a_rank_that_has_ended_waits_for_the_others_in_the_epoch_they_are_in(
    make_corpus: Callable[..., Corpus],
) -> None:
    make = maker(recipe_of(make_corpus("jsonl", SIZES)))
    step = next(step for step in steps_of(make, 4) if any(step.ended))
    (ended, *_) = [rank for rank, is_ended in enumerate(step.ended) if is_ended]
    for workers in (0, 2):
        loader = make(rank=ended, world_size=4, num_workers=workers)
        loader.load_state_dict(step.merged)
        assert loader.state_dict()["epoch"] == 0
        assert drained(loader) == []
        assert loader.state_dict()["epoch"] == 1


@pytest.mark.parametrize("epoch", [0, 1, 2, 4])
def test_a_loaded_position_is_not_dropped_for_another_epoch(
    epoch: int, make_corpus: Callable[..., Corpus]
) -> None:
    loader = al.DataLoader(recipe_of(make_corpus("jsonl", SIZES)).shuffle(4).take(12), 4)
    loader.set_epoch(2)
    batches, states = zip(*((keys_of([batch]), loader.state_dict()) for batch in loader), strict=True)
    resumed = copy.copy(loader)
    resumed.load_state_dict(states[1])
    if epoch != 2:
        says = rf"in epoch 2 after 2 of 3 batches, but set_epoch\({epoch}\) would begin epoch {epoch}"
        with pytest.raises(ValueError, match=says):
            resumed.set_epoch(epoch)
    resumed.set_epoch(2)
    assert [keys_of([batch]) for batch in resumed] == list(batches[2:])
    # It holds for what was loaded, and not for what was read since.
    resumed.set_epoch(epoch)
    assert len(list(resumed)) == 3


@pytest.mark.parametrize("knows_length", [False, True])
def test_behind_the_last_batch_of_an_epoch_the_next_one_may_be_asked_for(
    knows_length: bool, make_corpus: Callable[..., Corpus]
) -> None:
    recipe = recipe_of(make_corpus("jsonl", SIZES)).shuffle(4)
    loader = al.DataLoader(recipe.take(12) if knows_length else recipe, 4)
    for _ in loader:
        state = loader.state_dict()
    following, again = drained(loader), copy.copy(loader)
    again.load_state_dict(state)
    with pytest.raises(ValueError, match=r"but set_epoch\(2\) would begin epoch 2"):
        again.set_epoch(2)
    again.set_epoch(1)
    assert drained(again) == following


@pytest.mark.parametrize("source", [Numbers(), al.from_iterable(numbers_of_lane)], ids=["class", "function"])
def test_a_source_of_ones_own_goes_on_in_any_world(source: Any) -> None:
    assert_every_world_goes_on(maker(source))


# --- at length ---


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> Forms:
    return Forms(tmp_path_factory.mktemp("forms")).write()


def check_a_cut(
    forms: Forms, steps: list[Op], how: Batches, form: str, epoch: int, data: st.DataObject
) -> None:
    recipe = applied(forms.recipe(form), steps)

    def make(num_workers: int = 0, **options: Any) -> al.DataLoader[Any]:
        return how.loader(recipe, num_workers, **{"lanes": LANES, **options})

    course = list(steps_of(make, data.draw(worlds), epoch=epoch))
    cut = data.draw(st.sampled_from(course))
    assert_goes_on(make, cut, course[-1].seen, epoch_of(make, epoch), [data.draw(worlds)])


@pytest.mark.slow
@pytest.mark.timeout(1200)
@settings(drawn, max_examples=400)
@in_a_form
def test_many_recipes_go_on_in_any_world(
    forms: Forms, steps: list[Op], how: Batches, form: str, epoch: int, data: st.DataObject
) -> None:
    check_a_cut(forms, steps, how, form, epoch, data)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES.keys())
def test_every_operator_in_every_cell_of_workers_and_ranks(
    recipe: Recipe, make_corpus: Callable[..., Corpus]
) -> None:
    make = maker(recipe(recipe_of(make_corpus("jsonl", SIZES))))
    assert_every_world_goes_on(make, workers=(0, 1, 3))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_kind_of_shard_in_every_cell_of_workers_and_ranks(
    suffix: str, make_corpus: Callable[..., Corpus]
) -> None:
    assert_every_world_goes_on(maker(recipe_of(make_corpus(suffix, SIZES)).shuffle(3)), workers=(0, 1, 3))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("source", [Numbers(), al.from_iterable(numbers_of_lane)], ids=["class", "function"])
def test_every_source_of_ones_own_in_every_cell_of_workers_and_ranks(source: Any) -> None:
    assert_every_world_goes_on(maker(source), workers=(0, 1, 3))
