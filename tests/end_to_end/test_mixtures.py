"""Recipes of any source and format in one: mixed, one after another, side by side; resumed at every batch."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpus import Corpus

import asyncloader as al
from asyncloader import testing
from asyncloader.pipeline.components import places_of
from asyncloader.pipeline.dataset import dataset_of, stages_of
from asyncloader.pipeline.shards import Shards
from asyncloader.plan.lanes import Deal
from asyncloader.plan.states import read_state
from asyncloader.plan.topology import Topology

from .harness import LARGEST_STATE_BYTES, assert_resume_everywhere, drained
from .indexed import write_indexed
from .worlds import assert_every_world_goes_on

pytestmark = pytest.mark.usefixtures("fork_server")

# Samples of each shard. Numbers tell which component a sample is of, by their thousands.
SHARDS = {"tar": (9, 0, 11, 8), "jsonl": (5, 4, 6), "parquet": (12,), "own": (7, 6)}
COMPONENTS = dict(enumerate(SHARDS))
SIZES = {name: sum(sizes) for name, sizes in SHARDS.items()}


def _samples(component: int, shard: int, count: int) -> list[dict[str, Any]]:
    numbers = [1000 * component + 100 * shard + index for index in range(count)]
    return [{"number": number, "tokens": [number] * (number % 5)} for number in numbers]


NUMBERS = {
    name: sorted(
        sample["number"] for shard, count in enumerate(sizes) for sample in _samples(component, shard, count)
    )
    for component, (name, sizes) in enumerate(SHARDS.items())
}

EVERY = sorted(number for numbers in NUMBERS.values() for number in numbers)


def _member(sample: Mapping[str, Any]) -> Any:
    return sample["json"]


async def _later(sample: Mapping[str, Any]) -> dict[str, Any]:
    await asyncio.sleep(sample["number"] % 3 / 2000)
    return {"number": int(sample["number"]), "tokens": list(sample["tokens"])}


def _own(topology: Topology) -> Any:
    return (
        sample
        for shard in topology.split(range(len(SHARDS["own"])))
        for sample in _samples(3, shard, SHARDS["own"][shard])
    )


@dataclass(frozen=True)
class Folder:
    """The components on disk."""

    path: Path

    def write(self) -> Folder:
        for component, (name, sizes) in enumerate(SHARDS.items()):
            (self.path / name).mkdir()
            for shard, count in enumerate(sizes):
                self._write(name, self.path / name / f"{shard}.{name}", _samples(component, shard, count))
        return self

    def recipe(self, name: str) -> al.Dataset:
        if name == "own":
            return al.from_iterable(_own)
        recipe = al.from_urls(f"{self.path}/{name}/*.{name}")
        return recipe.decode().map(_member) if name == "tar" else recipe

    def recipes(self) -> dict[str, al.Dataset]:
        return {
            "tar": self.recipe("tar").shuffle(5),
            "jsonl": self.recipe("jsonl").map(_later, concurrency=3),
            "parquet": self.recipe("parquet").shuffle(4),
            "own": self.recipe("own"),
        }

    def _write(self, name: str, path: Path, samples: list[dict[str, Any]]) -> None:
        if name == "parquet":
            schema = pa.schema({"number": pa.int64(), "tokens": pa.list_(pa.int64())})
            pq.write_table(pa.Table.from_pylist(samples, schema), path, row_group_size=5)
        elif name == "tar" and not samples:
            path.write_bytes(bytes(1024))
        elif name != "own":
            with al.ShardWriter(path) as writer:
                for sample in samples:
                    key = str(sample["number"])
                    writer.write({"__key__": key, "json": sample} if name == "tar" else sample)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    return Folder(tmp_path_factory.mktemp("components")).write()


def numbers_of(loader: al.DataLoader[Any]) -> list[int]:
    return [number for batch in loader for number in np.asarray(batch["number"]).tolist()]


def components_of(numbers: list[int]) -> dict[str, int]:
    counts = Counter(COMPONENTS[number // 1000] for number in numbers)
    return {name: counts[name] for name in SHARDS}


WEIGHTS = {"tar": 0.4, "jsonl": 0.3, "parquet": 0.2, "own": 0.1}
PAD = al.Pad({"tokens": 0})

MIXTURES: dict[str, Callable[[Folder], al.Dataset]] = {
    "first": lambda folder: al.mix(folder.recipes(), weights=WEIGHTS).shuffle(6),
    "all": lambda folder: al.mix(folder.recipes(), weights=WEIGHTS, stop="all"),
    "repeat": lambda folder: al.mix(folder.recipes(), weights=WEIGHTS, stop="repeat", seed=3),
    "twice over": lambda folder: al.mix(folder.recipes(), weights=WEIGHTS, stop="repeat").repeat(2).take(90),
    "concat": lambda folder: al.concat(folder.recipes()).shuffle(7),
    "one in the other": lambda folder: al.concat(
        [
            al.mix([folder.recipe("tar"), folder.recipe("own").repeat()], weights=[2, 1]),
            al.mix([folder.recipe("jsonl"), folder.recipe("parquet")], stop="all").shuffle(4),
        ]
    ),
}


@pytest.mark.parametrize("mixture", MIXTURES.values(), ids=MIXTURES.keys())
def test_every_batch_can_be_resumed_from(mixture: Callable[[Folder], al.Dataset], folder: Folder) -> None:
    recipe = mixture(folder)
    assert_resume_everywhere(
        lambda workers: al.DataLoader(recipe, 8, num_workers=workers, lanes=3, collate_fn=PAD), workers=(0,)
    )


def test_any_number_of_workers_gives_the_same_batches_and_goes_on_from_any_of_them(
    folder: Folder, assert_resumes: Callable[..., None]
) -> None:
    recipe = al.mix(folder.recipes(), weights=WEIGHTS, stop="repeat").shuffle(5).take(45)
    assert_resumes(
        lambda workers: al.DataLoader(recipe, 10, num_workers=workers, lanes=3, collate_fn=PAD),
        workers=(0, 2),
    )


@pytest.mark.parametrize(
    "batching",
    [
        al.TokenBatches(max_tokens=16, pool=9),
        al.TokenBatches(max_tokens=16),
        al.Pack("tokens", length=8, batch_size=2),
        al.Pack("tokens", length=8, batch_size=2, pool=9),
    ],
    ids=["tokens of pools", "tokens", "packed", "packed pools"],
)
def test_every_batching_takes_a_mixture_and_goes_on_with_it(batching: Any, folder: Folder) -> None:
    recipe = al.mix(folder.recipes(), weights=WEIGHTS, stop="all")
    assert_resume_everywhere(
        lambda workers: al.DataLoader(recipe, num_workers=workers, lanes=2, batching=batching), workers=(0,)
    )
    loader = al.DataLoader(recipe, lanes=2, batching=batching)
    assert drained(loader)
    # Documents without tokens at a lane's end are in no block.
    counted = loader.statistics.components
    assert sum(counted.values()) == loader.statistics.samples
    assert all(SIZES[name] - 4 <= count <= SIZES[name] for name, count in counted.items())


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("ranks", [1, 2])
def test_all_brings_every_sample_once_over_ranks_and_workers(
    ranks: int, workers: int, folder: Folder
) -> None:
    found: list[int] = []
    counted: Counter[str] = Counter()
    recipe = al.mix(folder.recipes(), weights=WEIGHTS, stop="all").shuffle(4)
    for rank in range(ranks):
        loader = al.DataLoader(
            recipe, 4, num_workers=workers, rank=rank, world_size=ranks, lanes=4, collate_fn=PAD
        )
        found += numbers_of(loader)
        counted.update(loader.statistics.components)
    assert sorted(found) == EVERY
    assert counted == SIZES


def test_ranks_merge_their_states_and_go_on_as_another_world(folder: Folder) -> None:
    recipe = al.mix(folder.recipes(), weights=WEIGHTS, stop="repeat").shuffle(4)

    def make(**options: Any) -> al.DataLoader[Any]:
        return al.DataLoader(recipe, 8, lanes=2, collate_fn=PAD, **options)

    assert_every_world_goes_on(make, sizes=(1, 2))


def test_first_ends_with_the_first_component_that_is_dry_and_keeps_the_weights(folder: Folder) -> None:
    loader = al.DataLoader(al.mix(folder.recipes(), weights=WEIGHTS), 4, collate_fn=PAD)
    numbers = numbers_of(loader)
    assert len(set(numbers)) == len(numbers)
    counts = components_of(numbers)
    assert all(abs(counts[name] - WEIGHTS[name] * len(numbers)) <= 1 for name in SHARDS)
    assert any(counts[name] == SIZES[name] for name in SHARDS)
    assert loader.statistics.components == counts


def test_repeat_keeps_the_weights_until_every_sample_has_come(folder: Folder) -> None:
    recipe = al.mix(folder.recipes(), weights=[1, 1, 1, 1], stop="repeat")
    numbers = numbers_of(al.DataLoader(recipe, 4, collate_fn=PAD))
    assert set(numbers) == set(EVERY)
    counts = components_of(numbers)
    assert max(counts.values()) - min(counts.values()) <= 2
    assert counts["tar"] == SIZES["tar"], "the largest comes once"
    again = Counter(number for number in numbers if number // 1000 == 2)
    assert {count - counts["parquet"] // SIZES["parquet"] for count in again.values()} <= {0, 1}


def test_a_lane_that_has_nothing_of_a_component_passes_it_over(folder: Folder) -> None:
    recipe = al.mix([folder.recipe("parquet"), folder.recipe("jsonl"), folder.recipe("own")])
    numbers = numbers_of(al.DataLoader(recipe, 1, lanes=2, collate_fn=PAD))
    found = [{number // 1000 for number in numbers[lane:8:2]} for lane in range(2)]
    assert found == [{1, 2, 3}, {1, 3}], "the one Parquet shard went to the first lane"


def test_shards_of_all_components_are_dealt_one_after_another(folder: Folder) -> None:
    jsonl = folder.recipe("jsonl")
    source = stages_of(jsonl).source
    assert isinstance(source, Shards)
    jsonl = dataset_of(source.whole())  # as if nobody had an index of them
    recipe = al.mix({"parquet": folder.recipe("parquet"), "jsonl": jsonl}, stop="all")
    first_turn = numbers_of(al.DataLoader(recipe, 1, lanes=4, collate_fn=PAD))[:4]
    assert first_turn == [2000, 1000, 1100, 1200], "four lanes, four shards, each has one"


def test_the_length_is_known_where_that_of_the_components_is(make_corpus: Callable[..., Corpus]) -> None:
    recipes = {
        "a": al.from_urls(make_corpus("jsonl", (5, 4, 6)).paths),
        "b": al.from_urls(make_corpus("jsonl", (12, 3)).paths),
    }
    for recipe in (
        al.mix(recipes, weights=[1, 3]),
        al.mix(recipes, weights=[3, 1], stop="repeat"),
        al.mix(recipes, weights=[3, 1], stop="all").shuffle(3),
        al.mix({name: recipe.shuffle(3) for name, recipe in recipes.items()}, stop="repeat").repeat(3),
        al.mix([recipes["a"].repeat(), recipes["b"]]),
        al.concat(recipes),
    ):
        for lanes in (1, 2, 3):
            loader = al.DataLoader(recipe, 4, lanes=lanes, collate_fn=PAD)
            for _ in range(2):
                assert len(loader) == len(drained(loader))
    endless = al.DataLoader(al.mix([recipe.repeat() for recipe in recipes.values()]), 4)
    with pytest.raises(TypeError, match="never ends"):
        len(endless)


def test_endless_components_are_mixed_for_ever_and_the_weights_hold(folder: Folder) -> None:
    recipe = al.mix(
        {name: folder.recipe(name).repeat() for name in ("jsonl", "parquet", "own")}, weights=[0.7, 0.2, 0.1]
    )
    loader = al.DataLoader(recipe.take(2000), 100, collate_fn=PAD)
    numbers = numbers_of(loader)
    for name, weight in zip(("jsonl", "parquet", "own"), (0.7, 0.2, 0.1), strict=True):
        drawn = np.cumsum([COMPONENTS[number // 1000] == name for number in numbers])
        assert np.abs(drawn - weight * np.arange(1, 2001)).max() <= 1
    assert loader.statistics.components == {"jsonl": 1400, "parquet": 400, "own": 200}


def test_weights_change_from_epoch_to_epoch(folder: Folder) -> None:
    recipe = al.mix(folder.recipes(), weights={0: [1, 0, 0, 0], 1: WEIGHTS, 2: [0, 0, 1, 1]}, stop="all")
    loader = al.DataLoader(recipe, 4, collate_fn=PAD)
    found = [{name for name, count in components_of(numbers_of(loader)).items() if count} for _ in range(3)]
    assert found == [{"tar"}, set(SHARDS), {"parquet", "own"}]


def test_epochs_seeds_and_lanes_have_schedules_of_their_own(folder: Folder) -> None:
    def schedule(seed: int, epoch: int) -> list[int]:
        recipes = [folder.recipe("jsonl").repeat(), folder.recipe("parquet").repeat()]
        recipe = al.mix(recipes, weights=[0.61, 0.39], seed=seed).take(60)
        loader = al.DataLoader(recipe, 1, lanes=2, collate_fn=PAD)
        loader.set_epoch(epoch)
        return [number // 1000 for number in numbers_of(loader)]

    drawn = [schedule(0, 0), schedule(1, 0), schedule(0, 1)]
    assert len({tuple(components) for components in drawn}) == 3
    assert schedule(0, 0) == drawn[0]
    assert drawn[0][::2] != drawn[0][1::2]


def test_components_of_one_recipe_draw_each_for_itself(folder: Folder) -> None:
    def drawing(sample: Mapping[str, Any]) -> dict[str, Any]:
        return {"number": int(sample["number"]), "drawn": al.sample_rng().random()}

    recipe = folder.recipe("tar").map(drawing).shuffle(30, seed=1)
    whole = al.concat([recipe, recipe]).map(lambda sample: {**sample, "behind": al.sample_rng().random()})
    samples = list(al.DataLoader(whole, None, collate_fn=dict))
    first, second = samples[: SIZES["tar"]], samples[SIZES["tar"] :]
    order = [[sample["number"] for sample in part] for part in (first, second)]
    assert order[0] != order[1] and sorted(order[0]) == sorted(order[1]) == NUMBERS["tar"]
    seeds = [sample[name] for sample in samples for name in ("drawn", "behind")]
    assert len(set(seeds)) == len(seeds) == 4 * SIZES["tar"]


def test_a_shuffle_behind_the_mixture_shuffles_the_shards_of_components_without_one(folder: Folder) -> None:
    recipes = [folder.recipe("jsonl"), folder.recipe("parquet")]
    orders = set()
    for seed in range(4):
        numbers = numbers_of(
            al.DataLoader(al.mix(recipes, stop="all").shuffle(1, seed=seed), 4, collate_fn=PAD)
        )
        shards = [number // 100 for number in numbers if number < 2000]
        orders.add(tuple(dict.fromkeys(shards)))
    assert len(orders) > 1


def test_the_state_stays_small(folder: Folder) -> None:
    recipes = {f"component {number}": folder.recipe("jsonl").shuffle(5).repeat() for number in range(8)}
    loader = al.DataLoader(al.mix(recipes, stop="repeat").shuffle(4).take(640), 4, lanes=8, collate_fn=PAD)
    sizes = [len(json.dumps(loader.state_dict())) for _ in loader]
    assert len(sizes) >= 64 and max(sizes) < LARGEST_STATE_BYTES


def test_the_state_of_another_mixture_is_refused(folder: Folder) -> None:
    def state(**options: Any) -> dict[str, Any]:
        return al.DataLoader(al.mix(folder.recipes(), **options), 4).state_dict()

    loader = al.DataLoader(al.mix(folder.recipes(), weights=[4, 3, 2, 1]), 4)
    loader.load_state_dict(state(weights=[4, 3, 2, 1]))
    for options, named in (
        ({"weights": [4, 3, 2, 2]}, "weights: saved"),
        ({"weights": [4, 3, 2, 1], "seed": 1}, "seed: saved 1, now 0"),
        ({"weights": [4, 3, 2, 1], "stop": "all"}, "stop: saved 'all', now 'first'"),
    ):
        with pytest.raises(ValueError, match=named):
            loader.load_state_dict(state(**options))


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_in_a_component_names_it_and_comes_behind_the_samples_before(
    workers: int, folder: Folder
) -> None:
    def refuse(sample: Mapping[str, Any]) -> Any:
        if sample["number"] == 1003:
            raise LookupError("refused")
        return sample

    recipe = al.mix({"good": folder.recipe("own"), "bad": folder.recipe("jsonl").map(refuse)})
    numbers: list[int] = []
    with pytest.raises(LookupError) as caught:
        for sample in al.DataLoader(recipe, None, num_workers=workers, collate_fn=dict):
            numbers.append(int(sample["number"]))
    assert numbers[-1] < 3010 and sorted(number for number in numbers if number < 2000) == [1000, 1001, 1002]
    assert "in component 'bad' of mix" in caught.value.__notes__


def test_a_rank_that_would_get_nothing_is_refused(folder: Folder) -> None:
    recipe = al.mix([folder.recipe("parquet"), folder.recipe("parquet")])
    al.DataLoader(recipe, 4, rank=0, world_size=2)
    with pytest.raises(ValueError, match="2 shards cannot be split over 3 ranks"):
        al.DataLoader(recipe, 4, rank=0, world_size=3)
    al.DataLoader(al.mix([recipe, folder.recipe("own")]), 4, rank=0, world_size=5)
    with pytest.raises(ValueError, match="1 shard cannot be split over 2 ranks"):
        al.DataLoader(al.zip_datasets([recipe, folder.recipe("parquet")]), 4, rank=0, world_size=2)


def test_ranks_share_the_shards_of_indexed_components(tmp_path: Path) -> None:
    """As they share those of a recipe by itself: each component is of one shard."""
    recipes = [al.from_urls(write_indexed(tmp_path / name, "jsonl", [10])) for name in "abc"]
    loaders = [
        al.DataLoader(al.mix(recipes, stop="all"), 1, rank=rank, world_size=8, uneven="ignore")
        for rank in range(8)
    ]
    numbers = [[batch["number"].item() for batch in loader] for loader in loaders]
    assert sorted(number for rank in numbers for number in rank) == sorted([*range(10)] * 3)
    assert [len(rank) for rank in numbers] == [len(loader) for loader in loaders] == [4, 4, 4, 4, 4, 4, 3, 3]


def test_what_is_zipped_stays_side_by_side_inside_of_other_components(tmp_path: Path) -> None:
    """By its index the inner one would be cut at other samples than the other, of which shards stay whole."""
    one = al.from_urls(write_indexed(tmp_path / "one", "jsonl", [7, 2]))
    other = al.from_urls(write_indexed(tmp_path / "other", "jsonl", [7, 2]))
    recipe = al.zip_datasets({"one": al.concat([one]), "other": other})
    loader = al.DataLoader(recipe, None, lanes=2)
    pairs = [(sample["one"]["number"], sample["other"]["number"]) for sample in loader]
    assert len(pairs) == 9 and all(one == other for one, other in pairs)


def _from(name: str, sample: Mapping[str, Any]) -> dict[str, Any]:
    return {"of": name, "number": sample["number"]}


def test_a_position_names_the_sample_that_each_component_goes_on_at(tmp_path: Path) -> None:
    """As the error of a worker that has died does."""
    sizes = [3, 4]
    parts = {
        name: al.from_urls(write_indexed(tmp_path / name, "jsonl", sizes)).map(partial(_from, name))
        for name in "abc"
    }
    recipe = al.mix(
        [parts["a"].shuffle(1).repeat(2).repeat(3), al.concat([parts["b"], parts["c"]])], stop="all"
    )
    loader = al.DataLoader(recipe, None)
    delivered, named = [], []
    for sample in loader:
        delivered.append((sample["of"], sample["number"]))
        position = read_state(loader.state_dict()).parts[0].rows[0].position
        places = places_of(stages_of(recipe), position, Deal((0,), 1, 0, stages_of(recipe).order_seed))
        named.append([(Path(place.shard or "").parent.name, place.number, place.sample) for place in places])
    checked = set()
    for step, places_after in enumerate(named, 1):
        for name, shard, number in places_after:
            if number < sizes[shard]:  # else the component stands between two shards
                ours = "a" if name == "a" else "bc"
                following = next(sample for sample in delivered[step:] if sample[0] in ours)
                assert following == (name, 1000 * shard + number)
                checked.add(name)
    assert checked == set("abc")


@pytest.mark.parametrize("workers", [0, 2])
def test_components_share_little_memory_without_waiting_for_each_other(workers: int, tmp_path: Path) -> None:
    """Each shard is larger than what a component may have in flight."""
    for name in "abc":
        with al.ShardWriter(tmp_path / f"{name}-{{}}.tar", samples_per_shard=4) as writer:
            for index in range(24):
                writer.write({"__key__": f"{name}-{index}", "bin": bytes(200_000)})
    with testing.serve(tmp_path) as server:
        recipes = {
            name: al.from_urls(server.url_of("") + f"{name}-{{0..5}}.tar").shuffle(2) for name in "abc"
        }
        recipe = al.mix(recipes, weights=[90, 9, 1], stop="all").map(lambda sample: sample["__key__"])
        loader = al.DataLoader(
            recipe, 4, num_workers=workers, lanes=6, memory_limit="16 MiB", collate_fn=list
        )
        keys = [key for batch in loader for key in batch]
    assert sorted(keys) == sorted(f"{name}-{index}" for name in "abc" for index in range(24))


# --- side by side ---


def _halves(folder: Path, seconds: tuple[int, ...] = (5, 8, 3)) -> dict[str, al.Dataset]:
    for shard, (first, second) in enumerate(zip((5, 8, 3), seconds, strict=True)):
        for name, size in (("image", first), ("text", second)):
            with al.ShardWriter(folder / f"{name}-{shard}.jsonl") as writer:
                for index in range(size):
                    writer.write({name: 100 * shard + index, f"{name}_of": name})
    return {name: al.from_urls(f"{folder}/{name}-{{0..2}}.jsonl") for name in ("image", "text")}


def test_zip_puts_samples_side_by_side_and_resumes(
    tmp_path: Path, assert_resumes: Callable[..., None]
) -> None:
    halves = _halves(tmp_path)
    recipe = al.zip_datasets([half.shuffle(6, seed=2) for half in halves.values()]).shuffle(4)
    for batch in al.DataLoader(recipe, 3, lanes=2):
        assert batch["image"].tolist() == batch["text"].tolist()
    found = [int(number) for batch in al.DataLoader(recipe, 3, lanes=2) for number in batch["image"]]
    assert len(set(found)) == 16
    assert_resumes(lambda workers: al.DataLoader(recipe, 3, num_workers=workers, lanes=2), workers=(0, 2))
    loader = al.DataLoader(recipe, 3, lanes=2)
    assert len(loader) == len(list(loader))
    assert loader.statistics.components == {}


def test_zip_by_name_keeps_each_sample_under_its_name(tmp_path: Path) -> None:
    (sample, *_) = al.zip_datasets(_halves(tmp_path)).head(1)
    assert sample == {
        "image": {"image": 0, "image_of": "image"},
        "text": {"text": 0, "text_of": "text"},
    }
    numbers = al.from_iterable(lambda topology: topology.split(range(4)))
    assert al.zip_datasets({"a": numbers, "b": numbers}).head(2) == [{"a": 0, "b": 0}, {"a": 1, "b": 1}]


def test_zip_of_columns_stays_columns(folder: Folder) -> None:
    recipe = folder.recipe("parquet")
    zipped = al.zip_datasets(
        [
            recipe.select_columns("number"),
            recipe.rename(number="again", tokens="t").select_columns("again", "t"),
        ]
    )
    (batch,) = al.DataLoader(zipped, 12, collate_fn=al.Pad({"t": 0}))
    assert batch["number"].tolist() == batch["again"].tolist() == NUMBERS["parquet"]


def test_zip_of_unequal_components_is_an_error_or_ends_with_the_shortest(tmp_path: Path) -> None:
    halves = _halves(tmp_path, seconds=(5, 8, 4))
    with pytest.raises(ValueError, match="lane 0 of 1, but 'image' ended before 'text'"):
        drained(al.DataLoader(al.zip_datasets(halves), 3))
    assert len(al.zip_datasets(halves, strict=False).head(50)) == 16
    with pytest.raises(ValueError, match="lane 0 of 2, but '1' ended before '0'"):
        drained(
            al.DataLoader(
                al.zip_datasets([halves["text"].shuffle(1, seed=1), halves["image"].take(8)]), 3, lanes=2
            )
        )


def test_zip_in_lanes_needs_as_many_shards_of_each(tmp_path: Path) -> None:
    halves = _halves(tmp_path)
    recipe = al.zip_datasets([halves["image"], al.from_urls(f"{tmp_path}/text-{{0..1}}.jsonl")], strict=False)
    assert len(drained(al.DataLoader(recipe, 3))) == 5
    with pytest.raises(ValueError, match=r"zip_datasets in 2 lanes needs .*'0' has 3, '1' has 2"):
        drained(al.DataLoader(recipe, 3, lanes=2))


def test_zip_refuses_what_cannot_be_put_together(tmp_path: Path) -> None:
    halves = _halves(tmp_path)
    with pytest.raises(ValueError, match=r"without a field in common, but found \['image', 'image_of'\]"):
        al.zip_datasets([halves["image"], halves["image"]]).head(1)
    numbers = al.from_iterable(lambda topology: topology.split(range(4)))
    with pytest.raises(TypeError, match=r"found dict and int at sample 0 of .*name the components"):
        al.zip_datasets([halves["image"], numbers]).head(1)


def test_zip_of_tars_takes_the_key_of_both(tmp_path: Path) -> None:
    for name, first in (("a", 0), ("b", 0), ("c", 1)):
        with al.ShardWriter(tmp_path / f"{name}.tar") as writer:
            for index in range(first, 3):
                writer.write({"__key__": str(index), name: name.encode()})
    recipes = {name: al.from_urls(str(tmp_path / f"{name}.tar")) for name in "abc"}
    (first, *_) = al.zip_datasets([recipes["a"], recipes["b"]]).head(3)
    assert (first["__key__"], first["__url__"]) == ("0", str(tmp_path / "a.tar"))
    assert (first["a"], first["b"]) == (b"a", b"b")
    with pytest.raises(ValueError, match=r"samples with the same key, .* but found \['0', '1'\]"):
        al.zip_datasets([recipes["a"], recipes["c"]]).head(1)


# --- wrong calls ---


def _numbers(topology: Topology) -> Any:
    return topology.split(range(3))


ONE = al.from_iterable(_numbers)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: al.mix([]), ValueError, "mix should get at least one dataset"),
        (lambda: al.concat({}), ValueError, "concat should get at least one dataset"),
        (lambda: al.mix(ONE), TypeError, "a list of datasets or a mapping .* but got Dataset"),
        (lambda: al.zip_datasets(3), TypeError, "a list of datasets or a mapping .* but got int"),
        (lambda: al.mix([ONE, [1]]), TypeError, "mix should get datasets, .* but got list for '1'"),
        (lambda: al.concat({1: ONE}), TypeError, "names that are strings, but got 1"),
        (lambda: al.mix([ONE, ONE], weights=[1]), ValueError, "weights should be 2"),
        (lambda: al.mix([ONE, ONE], weights=[1, -1]), ValueError, "0 or more"),
        (lambda: al.mix([ONE, ONE], weights=[0, 0]), ValueError, "all are 0"),
        (lambda: al.mix([ONE], stop="never"), ValueError, "'first', 'all' or 'repeat', but got stop='never'"),
        (lambda: al.mix([ONE], seed=0.5), TypeError, "seed should be an int"),
    ],
)
def test_wrong_calls_are_refused_before_anything_is_read(
    call: Callable[[], object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call()
