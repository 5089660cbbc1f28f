"""What a function draws for a sample depends on the sample, and not on who makes it or when."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from corpus import Corpus

import asyncloader as al

from .harness import recipe_of

pytestmark = pytest.mark.usefixtures("fork_server")

Recipe = Callable[[al.Dataset], al.Dataset]


def _augmented(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "draw": al.sample_rng().random()}


async def _augmented_later(sample: dict[str, Any]) -> dict[str, Any]:
    await asyncio.sleep(sample["number"] % 3 / 1000)  # so that calls overtake one another
    return _augmented(sample)


def _lucky(sample: object) -> bool:
    return bool(al.sample_rng().random() < 0.7)


def draws(recipe: al.Dataset, epoch: int = 0, **options: Any) -> dict[int, Any]:
    """What was drawn for each sample."""
    loader = al.DataLoader(recipe, None, **options)
    loader.set_epoch(epoch)
    found = [(sample["number"], sample["draw"]) for sample in loader]
    assert len(dict(found)) == len(found)
    return dict(found)


@pytest.fixture
def source(make_corpus: Callable[..., Corpus]) -> al.Dataset:
    return recipe_of(make_corpus("jsonl", (3, 0, 4, 3, 8, 2)))


RECIPES: dict[str, Recipe] = {
    "map before shuffle": lambda ds: ds.map(_augmented).shuffle(2),
    "map on threads": lambda ds: ds.shuffle(3).map(_augmented, concurrency=4),
    "async map": lambda ds: ds.shuffle(3).map(_augmented_later, concurrency=4),
    "two windows": lambda ds: ds.shuffle(2).repeat(2).shuffle(3, seed=1).filter(_lucky).map(_augmented),
}


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES.keys())
def test_augmented_batches_are_the_same_for_any_number_of_workers_and_from_every_batch_on(
    recipe: Recipe, make_corpus: Callable[..., Corpus], assert_resumes: Callable[..., None]
) -> None:
    source = recipe_of(make_corpus("jsonl", (2, 0, 3, 4)))
    assert_resumes(lambda workers: al.DataLoader(recipe(source), 3, num_workers=workers, lanes=3))


def test_a_source_of_your_own_is_augmented_alike_from_every_batch_on(
    assert_resumes: Callable[..., None],
) -> None:
    recipe = al.from_iterable(lambda t: ({"number": n} for n in t.split(range(10))))
    assert_resumes(
        lambda workers: al.DataLoader(
            recipe.shuffle(4).map(_augmented, concurrency=3), 3, num_workers=workers, lanes=3
        )
    )


def test_neither_threads_nor_coroutines_nor_lanes_nor_the_order_change_what_a_sample_is_given(
    source: al.Dataset,
) -> None:
    expected = draws(source.map(_augmented))
    assert len(set(expected.values())) == len(expected) == 20
    for concurrency in (1, 4):
        assert draws(source.map(_augmented, concurrency=concurrency)) == expected
        assert draws(source.map(_augmented_later, concurrency=concurrency)) == expected
    assert draws(source.map(_augmented), lanes=5) == expected
    assert draws(source.map(_augmented).shuffle(6)) == expected
    assert draws(source.map(_augmented).shuffle(16), lanes=3, num_workers=2) == expected


def test_each_epoch_repetition_operator_and_seed_draws_anew(source: al.Dataset) -> None:
    def both(sample: dict[str, Any]) -> dict[str, Any]:
        return {**sample, "draw": (sample["draw"], al.sample_rng().random())}

    found = [
        draws(source.shuffle(5).map(_augmented)),
        draws(source.shuffle(5).map(_augmented), epoch=1),
        draws(source.shuffle(5, seed=1).map(_augmented)),
        draws(source.shuffle(5, seed=-1).map(_augmented)),
    ]
    pairs = draws(source.shuffle(5).map(_augmented).map(both)).values()
    drawn = [draw for of_sample in found for draw in of_sample.values()] + [second for _, second in pairs]
    assert len(set(drawn)) == len(drawn)
    repeated = [sample["draw"] for sample in al.DataLoader(source.map(_augmented).repeat(3), None)]
    assert len(set(repeated)) == len(repeated) == 60


def test_asked_again_for_the_same_sample_it_draws_on() -> None:
    def twice(number: int) -> list[Any]:
        first, second = al.sample_rng(), al.sample_rng()
        return [first is second, first.random(), second.random()]

    rows = list(al.DataLoader(al.from_iterable(lambda t: range(3)).map(twice), None, collate_fn=list))
    assert all(same for same, *_ in rows)
    drawn = [value for _, *values in rows for value in values]
    assert len(set(drawn)) == len(drawn)


def _of_each_library(number: int) -> list[float]:
    generator = al.sample_rng(library="torch")
    assert generator is al.sample_rng("torch")
    drawn = torch.rand(1, generator=generator).item()
    return [
        drawn,
        al.sample_rng("random").random(),
        al.sample_rng().random(),
        al.sample_rng("numpy").random(),
    ]


def _of_global_generators(number: int) -> list[float]:
    with al.sample_seeded():
        first = [random.random(), float(np.random.rand()), torch.rand(1).item()]
    with al.sample_seeded():
        assert first == [random.random(), float(np.random.rand()), torch.rand(1).item()]
    return first


@pytest.mark.parametrize("draw", [_of_each_library, _of_global_generators])
def test_generators_of_each_library_are_keyed_by_the_sample(draw: Any, fork_server: object) -> None:
    recipe = al.from_iterable(lambda t: t.split(range(6))).map(draw)
    found = [
        list(al.DataLoader(recipe, None, lanes=2, num_workers=workers, collate_fn=list))
        for workers in (0, 2, 0)
    ]
    assert found[0] == found[1] == found[2]
    drawn = [number for of_sample in found[0] for number in of_sample]
    assert len(set(drawn)) == len(drawn)


def test_seeding_leaves_the_programs_own_generators_as_they_were() -> None:
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # type: ignore[index]
    assert len(al.from_iterable(range(3)).map(_of_global_generators).head(3)) == 3
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # type: ignore[index]
    assert before == after


@pytest.mark.parametrize("concurrency", [1, 4])
def test_threads_are_seeded_one_at_a_time(concurrency: int) -> None:
    recipe = al.from_iterable(range(40)).map(_of_global_generators, concurrency=concurrency)
    assert len({tuple(drawn) for drawn in al.DataLoader(recipe, None, collate_fn=list)}) == 40


def test_what_would_seed_wrongly_is_refused() -> None:
    def nested(number: int) -> None:
        with al.sample_seeded(), al.sample_seeded():
            raise AssertionError("not reached")

    async def awaits(number: int) -> int:
        with al.sample_seeded():
            await asyncio.sleep(0.01)
        return number

    with pytest.raises(RuntimeError, match="within another such block"):
        al.from_iterable(range(3)).map(nested).head()
    with pytest.raises(RuntimeError, match="before an await"):
        list(al.DataLoader(al.from_iterable(range(3)).map(awaits, concurrency=2), None))
    with pytest.raises(
        ValueError, match="library should be 'numpy', 'torch' or 'random', but got library='jax'"
    ):
        al.from_iterable(range(3)).map(lambda _: al.sample_rng("jax")).head()  # type: ignore[call-overload]


def test_the_draw_is_the_same_in_every_release() -> None:
    def draw(sample: int) -> int:
        return int(al.sample_rng().bit_generator.random_raw())

    recipe = al.from_iterable(lambda t: range(2)).shuffle(1, seed=7).map(draw)
    assert list(al.DataLoader(recipe, None)) == [16491239794598842277, 7488231418532201886]


def test_elsewhere_there_is_no_sample_to_draw_for() -> None:
    with pytest.raises(RuntimeError, match=r"functions given to \.map, \.filter"):
        al.sample_rng()

    def draws_in_a_batch(samples: list[int]) -> float:
        return al.sample_rng().random()

    with pytest.raises(RuntimeError, match=r"functions given to \.map, \.filter"):
        list(al.DataLoader(al.from_iterable(lambda t: range(3)), 2, collate_fn=draws_in_a_batch))

    def draws_on_a_thread(sample: int) -> int:
        found: list[BaseException] = []

        def draw() -> None:
            try:
                al.sample_rng()
            except RuntimeError as error:
                found.append(error)

        thread = threading.Thread(target=draw)
        thread.start()
        thread.join()
        return len(found)

    recipe = al.from_iterable(lambda t: range(3)).map(draws_on_a_thread)
    assert list(al.DataLoader(recipe, None)) == [1, 1, 1]
