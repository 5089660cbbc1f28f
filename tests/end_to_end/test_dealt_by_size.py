"""Whole shards dealt by their sizes: every sample once, in any world, by the same sizes throughout."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from corpus import in_turn

import asyncloader as al
from asyncloader import testing
from asyncloader.shards.index_entries import FIRST_LINE, LAST_LINE

from .worlds import assert_every_world_goes_on

pytestmark = pytest.mark.usefixtures("fork_server")

LINES = (13, 40, 7, 29, 18, 22, 51, 4)
LANES = 4


def write(folder: Path, lines: tuple[int, ...] = LINES) -> str:
    """Shards without an index; the pattern that means them."""
    folder.mkdir(parents=True)
    for shard, count in enumerate(lines):
        rows = (json.dumps({"n": 1000 * (shard + 1) + at}) for at in range(count))
        (folder / f"part-{shard}.jsonl").write_text("".join(f"{row}\n" for row in rows))
    return str(folder / "*.jsonl")


def numbers_of(batches: Any) -> list[int]:
    return [number for batch in batches for number in batch["n"].tolist()]


@pytest.fixture
def shards(tmp_path: Path) -> str:
    return write(tmp_path / "shards")


def loader_of(recipe: al.Dataset, **options: Any) -> al.DataLoader[Any]:
    return al.DataLoader(recipe, 3, **{"lanes": LANES, **options})


def test_lanes_of_unequal_shards_are_about_equal(shards: str) -> None:
    recipe = al.from_urls(shards).shuffle(5)
    for epoch in range(3):
        lanes = [loader_of(recipe, rank=rank, world_size=LANES) for rank in range(LANES)]
        for lane in lanes:
            lane.set_epoch(epoch)
        numbers = [numbers_of(lane) for lane in lanes]
        assert len({number for mine in numbers for number in mine}) == sum(LINES)
        assert sorted(map(len, numbers)) == [42, 44, 47, 51], "51 lines are one shard"


def test_a_state_goes_on_in_every_world_with_every_sample_once(shards: str) -> None:
    recipe = al.from_urls(shards).shuffle(5)
    assert_every_world_goes_on(lambda **world: al.DataLoader(recipe, 8, lanes=LANES, **world), epoch=1)


def test_workers_go_by_the_sizes_that_the_recipe_was_made_with(shards: str, tmp_path: Path) -> None:
    recipe = al.from_urls(shards)
    whole = numbers_of(loader_of(recipe))
    with (tmp_path / "shards" / "part-7.jsonl").open("a") as file:
        file.writelines(f'{{"n": {8100 + at}}}\n' for at in range(100))
    with loader_of(recipe, num_workers=2) as loader:
        assert sorted(numbers_of(loader)) == sorted([*whole, *range(8100, 8200)])
    assert sorted(numbers_of(loader_of(recipe))) == sorted([*whole, *range(8100, 8200)])


def state_after(loader: al.DataLoader[Any], batches: int) -> tuple[list[int], Any]:
    """What so many batches have, and the state behind them as it comes back from a file."""
    numbers = numbers_of(islice(loader, batches))
    return numbers, json.loads(json.dumps(loader.state_dict()))


def test_a_state_of_other_sizes_is_refused_within_an_epoch_of_several_lanes(
    shards: str, tmp_path: Path
) -> None:
    _, state = state_after(loader_of(al.from_urls(shards)), 5)
    _, alone = state_after(loader_of(al.from_urls(shards), lanes=1), 5)
    ended = loader_of(al.from_urls(shards))
    numbers_of(ended)
    with (tmp_path / "shards" / "part-7.jsonl").open("a") as file:
        file.write('{"n": 8004}\n')
    changed = al.from_urls(shards)
    mixed = al.mix([changed, changed])
    with pytest.raises(
        ValueError, match="sizes: the lanes were dealt shards by their sizes, which are others"
    ):
        loader_of(changed).load_state_dict(state)
    loader = loader_of(changed)
    loader.load_state_dict(ended.state_dict())
    assert len(numbers_of(loader)) == sum(LINES) + 1, "between two epochs nothing is dealt"
    loader = loader_of(changed, lanes=1)
    loader.load_state_dict(alone)
    assert len(numbers_of(loader)) == sum(LINES) + 1 - 15, "one lane has all shards, whatever their sizes"
    _, state = state_after(loader_of(mixed), 5)
    with (tmp_path / "shards" / "part-7.jsonl").open("a") as file:
        file.write('{"n": 8005}\n')
    with pytest.raises(
        ValueError, match="sizes: the lanes were dealt shards by their sizes, which are others"
    ):
        loader_of(al.mix([al.from_urls(shards)] * 2)).load_state_dict(state)


@pytest.mark.parametrize("is_mixed", [False, True])
def test_a_state_that_tells_no_sizes_goes_on_with_shards_dealt_in_turn(shards: str, is_mixed: bool) -> None:
    sized, unsized = al.from_urls(shards).shuffle(5), in_turn(al.from_urls(shards)).shuffle(5)
    if is_mixed:
        sized, unsized = (al.mix([recipe, recipe], stop="all") for recipe in (sized, unsized))
    twin = loader_of(unsized)
    before, state = state_after(twin, 5)
    loader = loader_of(sized)
    loader.load_state_dict(state)
    whole = numbers_of(loader_of(unsized))
    assert numbers_of(loader_of(sized)) != whole
    assert before + numbers_of(loader) == whole
    # Its own states go on likewise, in this epoch and the next.
    second = loader_of(unsized)
    second.set_epoch(1)
    next_epoch = numbers_of(second)
    before, state = state_after(loader, 4)
    again = loader_of(sized)
    again.load_state_dict(state)
    assert before + numbers_of(again) == next_epoch
    # A state that tells them is taken by the same loader.
    before, state = state_after(loader_of(sized), 5)
    again.load_state_dict(state)
    assert before + numbers_of(again) == numbers_of(loader_of(sized))
    # And one that begins anew deals as if it had loaded nothing.
    loader.load_state_dict({})
    assert numbers_of(loader) == numbers_of(loader_of(sized))


def test_an_index_without_an_index_changes_no_order(shards: str, tmp_path: Path) -> None:
    recipe = al.from_urls(shards).shuffle(5)
    before, state = state_after(loader_of(recipe), 5)
    sizes = [{"name": path.name, "size_bytes": path.stat().st_size} for path in sorted(tmp_path.glob("*/*"))]
    index = tmp_path / "shards" / "asyncloader-index.json"
    index.write_bytes(FIRST_LINE + b",\n".join(json.dumps(entry).encode() for entry in sizes) + LAST_LINE)
    told = al.from_urls(shards).shuffle(5)
    assert "in_index=8" in repr(told)
    loader = loader_of(told)
    loader.load_state_dict(state)
    assert before + numbers_of(loader) == numbers_of(loader_of(recipe))


def test_components_that_are_zipped_are_dealt_alike_whatever_their_sizes(shards: str, tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    for shard, count in enumerate(LINES):
        rows = (
            json.dumps({"n": 1000 * (shard + 1) + at, "text": "x" * 900 * (8 - shard)}) for at in range(count)
        )
        (folder / f"part-{shard}.jsonl").write_text("".join(f"{row}\n" for row in rows))
    sizes = [
        [path.stat().st_size for path in sorted(part.iterdir())] for part in (tmp_path / "shards", folder)
    ]
    assert sizes[0].index(max(sizes[0])) != sizes[1].index(max(sizes[1]))
    recipe = al.zip_datasets({"a": al.from_urls(shards), "b": al.from_urls(f"{folder}/*.jsonl")})
    pairs = [(row["a"]["n"], row["b"]["n"]) for batch in loader_of(recipe, collate_fn=list) for row in batch]
    assert len(pairs) == sum(LINES) and all(one == other for one, other in pairs)


def test_a_mixture_deals_each_component_by_its_own_sizes(shards: str, tmp_path: Path) -> None:
    other = write(tmp_path / "other", (3, 9, 27, 5, 11))
    recipe = al.mix([al.from_urls(shards).shuffle(5), al.from_urls(other)], stop="all")
    lanes = [loader_of(recipe, rank=rank, world_size=LANES) for rank in range(LANES)]
    numbers = [numbers_of(lane) for lane in lanes]
    assert sum(map(len, numbers)) == sum(LINES) + 55
    assert max(map(len, numbers)) - min(map(len, numbers)) <= 51


def test_shards_of_a_web_server_are_dealt_in_turn_as_long_as_nobody_tells_their_sizes(
    shards: str, tmp_path: Path
) -> None:
    with testing.serve(tmp_path / "shards") as server:
        served = al.from_urls(f"{server.url}/part-{{0..7}}.jsonl")
        assert numbers_of(loader_of(served)) == numbers_of(loader_of(in_turn(al.from_urls(shards))))
