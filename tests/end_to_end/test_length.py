"""``len(loader)`` is the number of batches that this rank delivers, or the reason why nobody knows it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from corpus import deal_whole, in_turn

import asyncloader as al

COUNTS = (7, 3, 12, 1, 5, 9)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Shards of different lengths, with the index that their writer makes."""
    return _written(tmp_path_factory.mktemp("shards"))


@pytest.fixture(scope="module")
def whole_shards(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The same, dealt whole: lanes differ in length, and in turn in each epoch otherwise."""
    folder = tmp_path_factory.mktemp("whole_shards")
    paths = _written(folder)
    deal_whole(folder)
    return paths


def _written(folder: Path) -> list[str]:
    paths = [str(folder / f"part-{shard}.jsonl") for shard in range(len(COUNTS))]
    for shard, path in enumerate(paths):
        with al.ShardWriter(path) as writer:
            for number in range(COUNTS[shard]):
                writer.write({"shard": shard, "number": number})
    return paths


def keep(sample: Any) -> Any:
    return sample


async def keep_later(sample: Any) -> Any:
    return sample


RECIPES: dict[str, Callable[[al.Dataset], al.Dataset]] = {
    "plain": lambda recipe: recipe,
    "shuffled": lambda recipe: recipe.shuffle(4, seed=1),
    "mapped": lambda recipe: recipe.map(keep).map(keep_later).map(keep, concurrency=2),
    "fields": lambda recipe: recipe.select_columns("shard", "number").rename(shard="part").decode(),
    "taken": lambda recipe: recipe.take(11),
    "taken of too few": lambda recipe: recipe.take(100),
    "repeated": lambda recipe: recipe.repeat(3),
    "repeated and shuffled": lambda recipe: recipe.shuffle(3).repeat(2).shuffle(5).repeat(2),
    "repeated for ever and taken": lambda recipe: recipe.shuffle(2).repeat().take(50),
    "taken and repeated": lambda recipe: recipe.shuffle(2).take(13).repeat(3),
}


def _cases() -> list[Any]:
    """Each recipe with each way to deal and to batch, over one world; over all in the slow tests.

    The worlds take turns, so that each comes with every recipe, and with every way to deal and to batch.
    """
    worlds = [(1, 1), (1, 4), (2, 4), (3, 6)]
    batching: list[dict[str, Any]] = [
        {"batch_size": 4},
        {"batch_size": 4, "drop_last": True},
        {"batch_size": None},
    ]
    return [
        pytest.param(name, *world, options, dealt, marks=pytest.mark.slow if (nth + turn) % 4 else [])
        for nth, (name, options, dealt) in enumerate(product(RECIPES, batching, ["samples", "whole"]))
        for turn, world in enumerate(worlds, nth // 6)
    ]


@pytest.mark.parametrize(("name", "ranks", "lanes", "options", "dealt"), _cases())
@pytest.mark.filterwarnings("ignore:take")
def test_the_length_is_the_number_of_batches_delivered(
    name: str,
    ranks: int,
    lanes: int,
    options: dict[str, Any],
    dealt: str,
    shards: list[str],
    whole_shards: list[str],
) -> None:
    recipe = RECIPES[name](al.from_urls(whole_shards if dealt == "whole" else shards))
    for rank in range(ranks):
        loader = al.DataLoader(recipe, collate_fn=list, lanes=lanes, rank=rank, world_size=ranks, **options)
        for _ in range(3):
            before = len(loader)
            delivered = 0
            for _ in loader:
                delivered += 1
                assert len(loader) == before, "of the running epoch"
            assert delivered == before


@pytest.mark.usefixtures("fork_server")
def test_workers_make_no_difference_to_the_length_of_the_same_lanes(shards: list[str]) -> None:
    for workers in (0, 2):
        loader = al.DataLoader(al.from_urls(shards), 4, num_workers=workers, lanes=4, collate_fn=list)
        assert len(loader) == len([*loader]) == 12


def test_epochs_of_unequal_shards_may_differ_in_length_and_each_is_told(whole_shards: list[str]) -> None:
    loader = al.DataLoader(in_turn(al.from_urls(whole_shards)).shuffle(4), 4, lanes=3)
    lengths = []
    for epoch in range(10):
        loader.set_epoch(epoch)
        lengths.append(len(loader))
    assert len(set(lengths)) > 1
    loader.set_epoch(3)
    assert len(loader) == lengths[3]


def test_by_an_index_all_epochs_are_of_one_length(shards: list[str]) -> None:
    loader = al.DataLoader(al.from_urls(shards).shuffle(4), 4, lanes=3, collate_fn=list)
    lengths = []
    for epoch in range(10):
        loader.set_epoch(epoch)
        lengths.append(len(loader))
    assert set(lengths) == {10} == {len([*loader])}


def test_a_resumed_loader_has_the_length_of_the_whole_epoch(shards: list[str]) -> None:
    loader = al.DataLoader(al.from_urls(shards).shuffle(4), 4, lanes=2, collate_fn=list)
    length = len(loader)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    state = json.loads(json.dumps(loader.state_dict()))
    batches.close()
    again = al.DataLoader(al.from_urls(shards).shuffle(4), 4, lanes=2, collate_fn=list)
    again.load_state_dict(state)
    assert len(again) == length
    assert len([*again]) == length - 3


def test_a_loop_that_was_left_is_followed_by_the_next_epoch(whole_shards: list[str]) -> None:
    loader = al.DataLoader(in_turn(al.from_urls(whole_shards)).shuffle(4), 4, lanes=3, collate_fn=list)
    loader.set_epoch(4)
    lengths = []
    for _ in range(4):
        for _ in loader:
            lengths.append(len(loader))
            break
        twin = al.DataLoader(in_turn(al.from_urls(whole_shards)).shuffle(4), 4, lanes=3)
        twin.set_epoch(4 + len(lengths))
        assert len(loader) == len(twin)
    assert len(set(lengths)) > 1


UNKNOWN: list[tuple[Callable[[list[str]], al.Dataset], str]] = [
    (lambda paths: al.from_urls(paths).filter(keep), r"filter\(keep\) does not say how many"),
    (lambda paths: al.from_urls(paths).repeat(), r"repeat\(\) never ends"),
    (lambda paths: al.from_urls(paths).shuffle(2).repeat(5000), r"repeat\(5000\) .* in each repetition"),
    (lambda paths: al.from_iterable(lambda lane: lane.split("ab")), r"<lambda> does not say how many"),
    (
        lambda paths: al.from_urls([*paths[:-1], unlisted(paths)]),
        "in 1 of the 6 shards; .*asyncloader-index.json does not list them",
    ),
    (lambda paths: al.from_urls(unlisted(paths)), r"in 1 of the 1 shards; .* asyncloader index"),
]


def unlisted(paths: list[str]) -> str:
    """A shard beside them of which no index knows."""
    path = Path(paths[0]).with_name("unlisted.jsonl")
    path.write_text('{"number": 1}\n')
    return str(path)


@pytest.mark.parametrize("row", range(len(UNKNOWN)))
def test_where_nobody_knows_the_length_the_error_says_why_and_what_to_do(row: int, shards: list[str]) -> None:
    make, why = UNKNOWN[row]
    loader = al.DataLoader(make(shards), 4)
    with pytest.raises(TypeError, match=f"the length of this loader is not known: .*{why}.*take"):
        len(loader)


def test_what_the_user_says_by_take_is_the_length(shards: list[str]) -> None:
    for recipe in (al.from_iterable(lambda lane: lane.split(range(100))), al.from_urls(shards).filter(keep)):
        loader = al.DataLoader(recipe.take(10), 4, collate_fn=list)
        assert len(loader) == len(list(loader)) == 3


def test_a_progress_bar_has_a_total_and_starts_where_the_run_goes_on(
    shards: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    loader = al.DataLoader(al.from_urls(shards), 4, lanes=2, collate_fn=list, progress=True)
    batches = iter(loader)
    for _ in range(4):
        next(batches)
    state = loader.state_dict()
    batches.close()
    assert f"4/{len(loader)} [" in capsys.readouterr().err
    loader.load_state_dict(state)
    list(loader)
    shown = capsys.readouterr().err
    assert f"| 4/{len(loader)} [" in shown
    assert f"| {len(loader)}/{len(loader)} [" in shown


def of_several_lengths(shards: list[str]) -> tuple[Any, list[int]]:
    """A loader whose epochs differ in length, and how long the first ten are."""
    loader = al.DataLoader(in_turn(al.from_urls(shards)).shuffle(4), 4, lanes=3, collate_fn=list)
    lengths = []
    for epoch in range(10):
        loader.set_epoch(epoch)
        lengths.append(len(loader))
    return loader, lengths


def test_a_loop_that_is_left_where_another_epoch_ends_is_told(whole_shards: list[str]) -> None:
    loader, lengths = of_several_lengths(whole_shards)
    shortest, longest = min(lengths), max(lengths)
    loader.set_epoch(lengths.index(longest))
    for delivered, _ in enumerate(loader, 1):
        if delivered == shortest:
            break
    with pytest.warns(UserWarning, match=f"left after {shortest} of its {longest} batches") as warned:
        iter(loader).close()
    assert warned[0].filename == __file__


def test_who_asks_for_the_length_of_a_pass_before_its_first_batch_goes_by_it(shards: list[str]) -> None:
    def make() -> al.DataLoader[Any]:
        return al.DataLoader(al.from_urls(shards).shuffle(4), 4, lanes=2, collate_fn=list)

    whole = list(make())
    loader = make()
    unread = iter(loader)
    assert len(loader) == len(whole)
    batches = iter(loader)  # of the same epoch, since nothing of it was read
    assert loader.state_dict()["epoch"] == 0
    assert [next(batches) for _ in range(len(loader))] == whole
    state = loader.state_dict()
    assert state["ranks"] == {"0": [1, [], []]}, "nobody asks whether there is one batch more"
    unread.close()
    batches.close()
    again = make()
    again.load_state_dict(state)
    following = make()
    following.set_epoch(1)
    assert list(again) == list(following)


def test_passes_beside_each_other_are_of_different_epochs(shards: list[str]) -> None:
    loader = al.DataLoader(al.from_urls(shards).shuffle(4), 4, lanes=2, collate_fn=list)
    pairs = list(zip(loader, loader, strict=False))
    assert any(first != second for first, second in pairs)


def ten() -> al.DataLoader[Any]:
    return al.DataLoader(al.from_iterable(list(range(10))).take(10), 2, collate_fn=list)


def state_after(batches: int) -> dict[str, Any]:
    """As saved inside a loop that asked for no length."""
    loader = ten()
    for delivered, _ in enumerate(loader, 1):
        if delivered == batches:
            break
    return loader.state_dict()


@pytest.mark.parametrize("read", [True, False])
def test_a_pass_that_has_no_batch_is_followed_by_the_next_epoch(read: bool) -> None:
    def open_and_leave(loader: al.DataLoader[Any]) -> int:
        """The epoch that follows."""
        batches: Any = iter(loader)
        assert len(loader) in (0, 5)
        assert not read or list(batches) == []
        batches.close()
        epoch: int = loader.state_dict()["epoch"]
        return epoch

    empty = al.DataLoader(al.from_iterable([1]).take(1), 2, drop_last=True)
    assert [open_and_leave(empty) for _ in range(3)] == [1, 2, 3]
    resumed = ten()
    resumed.load_state_dict(state_after(5))
    assert open_and_leave(resumed) == 1
    assert len(list(resumed)) == 5


def test_an_epoch_that_is_set_keeps_the_position_of_a_pass_that_was_not_read() -> None:
    loader = ten()
    loader.load_state_dict(state_after(2))
    iter(loader).close()
    loader.load_state_dict(state_after(2))
    unread: Any = iter(loader)
    assert len(loader) == 5
    unread.close()
    loader.set_epoch(0)
    assert list(loader) == [[4, 5], [6, 7], [8, 9]]
    loader.set_epoch(0)
    assert len(list(loader)) == 5, "it was read"


def test_length_and_copies_are_those_of_the_pass_that_was_not_read(whole_shards: list[str]) -> None:
    loader, lengths = of_several_lengths(whole_shards)
    epoch = next(number for number in range(9) if lengths[number] != lengths[number + 1])
    loader.set_epoch(epoch)
    unread: Any = iter(loader)
    assert len(loader) == lengths[epoch]
    unread.close()
    assert len(loader) == lengths[epoch]
    twin = copy.copy(loader)
    assert list(twin) == list(loader)


def test_a_pass_that_another_one_takes_the_place_of_is_closed() -> None:
    loader = ten()
    unread = iter(loader)
    assert len(loader) == 5
    batches = iter(loader)
    with pytest.raises(RuntimeError, match="an iterator made later that began at the same place"):
        next(unread)
    assert list(batches) == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]


async def test_a_cut_epoch_is_told_at_the_line_of_an_async_loop_too(whole_shards: list[str]) -> None:
    loader, lengths = of_several_lengths(whole_shards)
    loader.set_epoch(lengths.index(max(lengths)))
    for delivered, _ in enumerate(loader, 1):
        if delivered == min(lengths):
            break
    with pytest.warns(UserWarning, match=f"left after {min(lengths)} of its {max(lengths)}") as warned:
        async for _ in loader:
            break
    assert warned[0].filename == __file__
