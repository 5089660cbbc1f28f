"""The same seed gives the same batches, byte for byte, whoever computes them and however they are taken."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, pairwise
from typing import Any

import pytest
from corpus import Corpus, in_turn

import asyncloader as al
from asyncloader import testing

from .harness import drained, drained_async, fingerprint, recipe_of

pytestmark = pytest.mark.usefixtures("fork_server")

LANES = 6
WIDE = (5, 9, 6, 8, 4, 7, 5, 6, 9, 4, 8, 7)


@pytest.fixture
def recipe(make_corpus: Callable[..., Corpus]) -> al.Dataset:
    return recipe_of(make_corpus("jsonl", WIDE)).shuffle(7, seed=3)


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_batches_do_not_depend_on_the_workers_or_on_the_kind_of_loop(
    workers: int, recipe: al.Dataset
) -> None:
    expected = drained(al.DataLoader(recipe, 3, lanes=LANES))
    assert drained(al.DataLoader(recipe, 3, num_workers=workers, lanes=LANES)) == expected
    assert drained_async(al.DataLoader(recipe, 3, num_workers=workers, lanes=LANES)) == expected


@pytest.mark.parametrize("workers", [0, 3])
def test_tar_over_http_with_answers_out_of_order_comes_in_the_order_of_the_disk(
    workers: int, make_corpus: Callable[..., Corpus]
) -> None:
    corpus = make_corpus("tar", WIDE)
    on_disk = in_turn(recipe_of(corpus))  # as on the server, of whose index nobody is told
    expected = keys_only(al.DataLoader(on_disk.shuffle(4), 3, lanes=LANES))
    with testing.serve(corpus.folder.parent, latency_s=lambda rng: rng.uniform(0, 0.05)) as server:
        recipe = recipe_of(corpus, server).shuffle(4)
        assert keys_only(al.DataLoader(recipe, 3, num_workers=workers, lanes=LANES)) == expected


def keys_only(loader: al.DataLoader[Any]) -> list[Any]:
    return [batch["__key__"] for batch in loader]


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("workers", [0, 1])
def test_ranks_together_deliver_the_sequence_of_one_rank_until_a_lane_is_dry(
    ranks: int, workers: int, recipe: al.Dataset
) -> None:
    def of_rank(rank: int, size: int, workers: int = 0) -> list[Any]:
        options = {"rank": rank, "world_size": size, "num_workers": workers}
        return drained(al.DataLoader(recipe, 3, lanes=LANES, **options))

    alone = of_rank(0, 1)
    lanes = [of_rank(lane, LANES) for lane in range(LANES)]
    comparable = LANES * min(map(len, lanes))
    assert comparable >= 2 * LANES, "the corpus gives this test something to compare"

    parts = [of_rank(rank, ranks, workers) for rank in range(ranks)]
    merged = [parts[j % ranks][j // ranks] for j in range(comparable)]
    assert merged == alone[:comparable]
    assert sorted(map(str, chain.from_iterable(parts))) == sorted(map(str, alone))
    for number, lane in enumerate(lanes):
        of_lane = [batch for batch in parts[number % ranks] if batch in lane]
        assert of_lane == lane, f"lane {number} keeps its own order to its end"


def test_a_map_of_random_duration_changes_nothing(recipe: al.Dataset) -> None:
    def dawdle(sample: Any) -> Any:
        time.sleep(random.random() / 500)
        return sample

    slow = recipe.map(dawdle, concurrency=4)
    assert drained(al.DataLoader(slow, 3, lanes=LANES)) == drained(al.DataLoader(recipe, 3, lanes=LANES))


def test_each_epoch_has_an_order_of_its_own_and_set_epoch_repeats_it(recipe: al.Dataset) -> None:
    with al.DataLoader(recipe, 3, lanes=LANES) as loader:
        epochs = [drained(loader) for _ in range(3)]
        assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
        loader.set_epoch(1)
        assert [drained(loader), drained(loader)] == epochs[1:]
        loader.set_epoch(0)
        assert drained_async(loader) == epochs[0]


def test_without_a_shuffle_every_epoch_is_the_same(make_corpus: Callable[..., Corpus]) -> None:
    loader = al.DataLoader(recipe_of(make_corpus("jsonl")), 4)
    assert drained(loader) == drained(loader)


def test_another_seed_gives_another_order(make_corpus: Callable[..., Corpus]) -> None:
    plain = recipe_of(make_corpus("jsonl", WIDE))
    one, other = (drained(al.DataLoader(plain.shuffle(7, seed=seed), 3)) for seed in (0, 1))
    assert one != other


def test_the_shuffle_moves_shards_and_samples(make_corpus: Callable[..., Corpus]) -> None:
    plain = recipe_of(make_corpus("jsonl", WIDE))
    order = [batch["key"] for batch in al.DataLoader(plain.shuffle(7), None)]
    shards = [key.partition("-")[0] for key in order]
    assert list(dict.fromkeys(shards)) != sorted(set(shards), key=int), "shards are out of order"
    assert any(a == b and int(x) > int(y) for (a, x), (b, y) in neighbours(order)), "samples are too"


def neighbours(keys: list[str]) -> Any:
    split = [tuple(key.split("-")) for key in keys]
    return pairwise(split)


def test_samples_beside_which_others_have_no_key_do_not_depend_on_how_bytes_arrive(
    tmp_path: Any,
) -> None:
    lines = [b'{"__key__": "a", "n": 1}\n', b'{"n": 2}\n'] * 40
    (tmp_path / "mixed.jsonl").write_bytes(b"".join(lines))
    with testing.serve(tmp_path, [testing.Drip(bytes_per_s=5_000)]) as slow, testing.serve(tmp_path) as fast:
        seen = [
            [
                "__url__" in sample
                for sample in al.DataLoader(al.from_urls(server.url_of("mixed.jsonl")), None)
            ]
            for server in (slow, fast)
        ]
    assert seen[0] == seen[1]


@pytest.mark.parametrize("workers", [0, 2])
def test_tasks_and_threads_that_share_an_iterator_get_each_batch_once(
    workers: int, recipe: al.Dataset
) -> None:
    expected = drained(al.DataLoader(recipe, 3, lanes=LANES))
    loader = al.DataLoader(recipe, 3, num_workers=workers, lanes=LANES)

    async def take_all() -> list[Any]:
        batches = aiter(loader)
        taken: list[Any] = []

        async def take() -> None:
            async for batch in batches:
                taken.append(fingerprint(batch))

        await asyncio.gather(*(take() for _ in range(4)))
        return taken

    assert asyncio.run(take_all()) == expected

    loader.set_epoch(0)
    batches = iter(loader)
    with ThreadPoolExecutor(4) as threads:
        taken = list(chain.from_iterable(threads.map(lambda _: [*map(fingerprint, batches)], range(4))))
    assert sorted(taken, key=repr) == sorted(expected, key=repr)
