"""A saved state goes on with the batch behind the last one delivered, or is refused with the reason."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from corpus import Corpus, keys_of

import asyncloader as al
from asyncloader import testing
from asyncloader.plan.topology import Topology

from .harness import LARGEST_STATE_BYTES, drained, recipe_of

pytestmark = pytest.mark.usefixtures("platform", "fork_server")

Recipe = Callable[[al.Dataset], al.Dataset]


async def _later(sample: dict[str, Any]) -> dict[str, Any]:
    await asyncio.sleep(sample["number"] % 3 / 1000)  # so that results overtake one another
    return {**sample, "double": 2 * sample["number"]}


def _odd(sample: dict[str, Any]) -> bool:
    return bool(sample["number"] % 2)


def _halved(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "half": sample["number"] / 2}


def _beside_the_first(batch: dict[str, Any]) -> dict[str, Any]:
    first = np.full(len(batch["number"]), batch["number"][0])
    return {**batch, "first": first, "drawn": al.sample_rng().integers(99, size=len(first))}


def _above_the_first(batch: dict[str, Any]) -> Any:
    return batch["number"] > batch["number"][0]


RECIPES: dict[str, Recipe] = {
    "plain": lambda ds: ds,
    "shuffle": lambda ds: ds.shuffle(5),
    "a window larger than a lane": lambda ds: ds.shuffle(100),
    "shuffle, filter, map": lambda ds: ds.shuffle(5).filter(_odd).map(_halved),
    "map on threads": lambda ds: ds.map(_halved, concurrency=3),
    "async map": lambda ds: ds.map(_later, concurrency=4),
    "take": lambda ds: ds.take(6),
    "take, shuffle": lambda ds: ds.take(6).shuffle(2),
    "repeat": lambda ds: ds.repeat(2),
    "shuffle, repeat, shuffle": lambda ds: ds.shuffle(3, seed=1).repeat(2).shuffle(4, seed=2),
    "filter after shuffle after async map": lambda ds: ds.map(_later).shuffle(4).filter(_odd),
    "map_batches": lambda ds: ds.shuffle(5).map_batches(_beside_the_first, batch_size=4),
    "map_batches on threads": lambda ds: ds.map_batches(_beside_the_first, batch_size=4, concurrency=2),
    "filter_batches": lambda ds: ds.filter_batches(_above_the_first, batch_size=3).shuffle(2).repeat(2),
    "rename, select": lambda ds: ds.rename(number="n").select_columns("n"),
}


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES.keys())
def test_every_batch_can_be_resumed_from(
    recipe: Recipe, make_corpus: Callable[..., Corpus], assert_resumes: Callable[..., None]
) -> None:
    # Two shards a lane; the first lane has six samples, the second eight, the third six.
    source = recipe_of(make_corpus("jsonl", (3, 0, 4, 3, 8, 2)))
    assert_resumes(lambda workers: al.DataLoader(recipe(source), 3, num_workers=workers, lanes=3))


OPTIONS: dict[str, dict[str, Any]] = {
    "single samples": {"batch_size": None},
    "without the short last batches": {"batch_size": 4, "drop_last": True},
    "batches larger than a shard": {"batch_size": 7},
    "padded": {"batch_size": 3, "collate_fn": al.Pad({"tokens": 0})},
    "on the second rank of two": {"batch_size": 2, "rank": 1, "world_size": 2, "lanes": 6},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_every_kind_of_batch_can_be_resumed_from(
    options: dict[str, Any], make_corpus: Callable[..., Corpus], assert_resumes: Callable[..., None]
) -> None:
    corpus = make_corpus("jsonl", (3, 0, 4, 3, 8, 2))
    recipe = al.from_urls(corpus.paths) if "collate_fn" in options else recipe_of(corpus)
    defaults = {"lanes": 3}
    assert_resumes(
        lambda workers: al.DataLoader(recipe.shuffle(4), num_workers=workers, **{**defaults, **options}),
        workers=(0, 3) if options["batch_size"] is None else (0, 1, 3),
    )


@pytest.mark.parametrize("suffix", ["tar", "tar.gz", "tar.zst", "jsonl.gz", "jsonl.zst"])
def test_every_kind_of_shard_can_be_resumed_from(
    suffix: str,
    make_corpus: Callable[..., Corpus],
    served: testing.Server,
    assert_resumes: Callable[..., None],
) -> None:
    recipe = recipe_of(make_corpus(suffix, (3, 0, 4, 3, 8, 2)), served)
    assert_resumes(lambda workers: al.DataLoader(recipe, 3, num_workers=workers, lanes=3))


@pytest.mark.parametrize("kind", ["plain", "asynchronous"])
def test_a_source_of_your_own_can_be_resumed_from(kind: str, assert_resumes: Callable[..., None]) -> None:
    async def count(topology: Topology) -> Any:
        for number in topology.split(range(25)):
            yield number

    recipe = al.from_iterable(count if kind == "asynchronous" else lambda t: t.split(range(25)))
    assert_resumes(lambda workers: al.DataLoader(recipe.shuffle(4), 3, num_workers=workers, lanes=3))


def test_the_state_of_a_deep_recipe_with_many_lanes_stays_under_ten_kilobytes(
    make_corpus: Callable[..., Corpus],
) -> None:
    recipe = recipe_of(make_corpus("jsonl", (3, 4) * 40))
    recipe = recipe.shuffle(3).repeat(3).filter(_odd).take(150).shuffle(2, seed=2).map(_later)
    loader = al.DataLoader(recipe, 2, lanes=64)
    sizes = [len(json.dumps(loader.state_dict())) for _ in loader]
    assert len(sizes) >= 64, "every lane has delivered"
    assert max(sizes) < LARGEST_STATE_BYTES


def test_a_state_after_the_last_batch_inside_the_loop_leaves_nothing_and_then_the_next_epoch(
    make_corpus: Callable[..., Corpus],
) -> None:
    recipe = recipe_of(make_corpus("jsonl")).shuffle(5)
    loader = al.DataLoader(recipe, 4, lanes=3)
    states = [loader.state_dict() for _ in loader]
    second = drained(loader)
    resumed = al.DataLoader(recipe, 4, lanes=3)
    resumed.load_state_dict(states[-1])
    assert drained(resumed) == []
    assert drained(resumed) == second


def test_a_state_after_the_loop_begins_the_next_epoch(make_corpus: Callable[..., Corpus]) -> None:
    recipe = recipe_of(make_corpus("jsonl")).shuffle(5)
    loader = al.DataLoader(recipe, 4, lanes=3)
    drained(loader)
    state = loader.state_dict()
    assert (state["epoch"], state["ranks"]) == (1, {"0": [1, [], []]})
    resumed = al.DataLoader(recipe, 4, lanes=3)
    resumed.load_state_dict(state)
    assert drained(resumed) == drained(loader)


def test_a_later_epoch_is_resumed_in_its_own_order_and_followed_by_the_next(
    make_corpus: Callable[..., Corpus],
) -> None:
    recipe = recipe_of(make_corpus("jsonl")).shuffle(5)
    loader = al.DataLoader(recipe, 4, lanes=3)
    loader.set_epoch(6)
    batches, states = zip(*((keys_of([batch]), loader.state_dict()) for batch in loader), strict=True)
    resumed = al.DataLoader(recipe, 4, lanes=3)
    resumed.load_state_dict(states[2])
    assert [keys_of([batch]) for batch in resumed] == list(batches[3:])
    assert drained(resumed) == drained(loader)


def test_a_pass_that_goes_on_leaves_the_program_s_generator_where_it_was(
    make_corpus: Callable[..., Corpus],
) -> None:
    # A trainer has put it back to where it was behind the last batch; dropout draws from it next.
    loader = al.DataLoader(recipe_of(make_corpus("jsonl")), 4)
    torch.manual_seed(0)
    untouched = torch.get_rng_state()
    batches = iter(loader)
    assert not torch.equal(torch.get_rng_state(), untouched), "an epoch draws a seed, as in torch"
    next(batches)
    loader.load_state_dict(loader.state_dict())
    before = torch.get_rng_state()
    list(loader)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_state_is_of_what_was_delivered_and_not_of_what_was_prefetched(
    workers: int, make_corpus: Callable[..., Corpus]
) -> None:
    recipe = recipe_of(make_corpus("jsonl"))
    options: dict[str, Any] = {"num_workers": workers, "lanes": 2}
    if workers:
        options["prefetch_factor"] = 8
    whole = drained(al.DataLoader(recipe, 2, **options))
    with al.DataLoader(recipe, 2, **options) as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
    resumed = al.DataLoader(recipe, 2, **options)
    resumed.load_state_dict(state)
    assert drained(resumed) == whole[1:]


def test_breaking_off_and_loading_ones_own_state_goes_on(make_corpus: Callable[..., Corpus]) -> None:
    recipe = recipe_of(make_corpus("jsonl")).shuffle(4)
    whole = drained(al.DataLoader(recipe, 4, lanes=2))
    loader = al.DataLoader(recipe, 4, lanes=2)
    for _ in loader:
        break
    loader.load_state_dict(loader.state_dict())
    assert drained(loader) == whole[1:]


def test_a_resumed_loader_can_be_saved_again_before_its_first_batch(
    make_corpus: Callable[..., Corpus],
) -> None:
    recipe = recipe_of(make_corpus("jsonl")).shuffle(4)
    loader = al.DataLoader(recipe, 4, lanes=2)
    for _ in loader:
        break
    state = loader.state_dict()
    resumed = al.DataLoader(recipe, 4, lanes=2)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    iterator = iter(resumed)
    assert resumed.state_dict() == state
    iterator.close()


def test_the_number_of_lanes_comes_from_the_state_unless_it_was_given(
    make_corpus: Callable[..., Corpus],
) -> None:
    recipe = recipe_of(make_corpus("jsonl"))
    loader = al.DataLoader(recipe, 4, num_workers=3)
    batches = iter(loader)
    next(batches)
    state, rest = loader.state_dict(), [keys_of([batch]) for batch in batches]
    resumed = al.DataLoader(recipe, 4)
    resumed.load_state_dict(state)
    assert [keys_of([batch]) for batch in resumed] == rest
    with pytest.raises(ValueError, match="lanes: saved 3, now 2"):
        al.DataLoader(recipe, 4, lanes=2).load_state_dict(state)


def test_a_state_is_a_snapshot(make_corpus: Callable[..., Corpus]) -> None:
    loader = al.DataLoader(recipe_of(make_corpus("jsonl")).shuffle(4), 4, lanes=2)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    before = copy.deepcopy(state)
    next(batches)
    next(batches)
    assert state == before, "what is delivered later does not change it"

    now = loader.state_dict()
    expected = copy.deepcopy(now)
    _spoil(now)
    assert loader.state_dict() == expected, "nor does changing it change the loader"

    loader.load_state_dict(before)
    expected = copy.deepcopy(before)
    _spoil(before)
    assert loader.state_dict() == expected, "not even after it was loaded"


def _spoil(value: Any) -> None:
    for part in list(value.values()):
        if isinstance(part, dict):
            _spoil(part)
    value.clear()


def test_resuming_an_uncompressed_shard_requests_it_from_its_byte_offset(tmp_path: Any) -> None:
    with al.ShardWriter(tmp_path / "large.tar") as writer:
        for index in range(40):
            writer.write({"__key__": str(index), "bin": bytes(100_000)})
    size = (tmp_path / "large.tar").stat().st_size
    with testing.serve(tmp_path) as server:
        recipe = al.from_urls(server.url_of("large.tar"))
        loader = al.DataLoader(recipe, 10)
        states = [loader.state_dict() for _ in loader]
        before = server.counters.bytes_sent
        resumed = al.DataLoader(recipe, 10)
        resumed.load_state_dict(states[2])
        assert keys_of(resumed) == [str(index) for index in range(30, 40)]
        sent = server.counters.bytes_sent - before
        first = next(request for request in server.requests if "bytes=0-" not in (request.range or ""))
        _, names, (row,) = states[2]["ranks"]["0"]
        offset = row[3 + names.index([0, "byte"])]
    assert offset > 0.7 * size
    assert sent <= size - offset + 1
    assert first.range is not None


# --- what is refused ---


@pytest.fixture
def saved(make_corpus: Callable[..., Corpus]) -> Callable[..., dict[str, Any]]:
    """The state of a loader with the given differences after its first batch."""

    def saved(**options: Any) -> dict[str, Any]:
        loader = loader_of(make_corpus, **options)
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        loader.close()
        return state

    return saved


def loader_of(make_corpus: Callable[..., Corpus], **options: Any) -> al.DataLoader[Any]:
    """One loader, or one that differs from it in what the options say."""
    shards = options.pop("shards", 7)
    corpus = make_corpus("jsonl").first(shards)
    seed, window = options.pop("seed", 0), options.pop("window", 4)
    recipe = options.pop("recipe", recipe_of(corpus)).shuffle(window, seed=seed)
    if options.pop("mapped", False):
        recipe = recipe.map(_halved)
    return al.DataLoader(recipe, options.pop("batch_size", 4), **{"lanes": 2, **options})


@pytest.mark.parametrize(
    ("difference", "named"),
    [
        ({"shards": 6}, r"other shards: 7 saved, 6 now$"),
        ({"seed": 1}, r"ops: saved .*'seed': 0.*, now .*'seed': 1"),
        ({"window": 5}, r"ops: saved .*'window': 4.*, now .*'window': 5"),
        ({"mapped": True}, r"ops: saved .*, now .*_halved"),
        ({"batch_size": 5}, r"batch_size: saved 4, now 5"),
        ({"drop_last": True}, r"drop_last: saved False, now True"),
        ({"lanes": 4}, r"lanes: saved 2, now 4"),
        (
            {"recipe": al.from_iterable(lambda t: t.split(range(9)))},
            r"source: saved 'shards', now 'iterable'",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_the_state_of_another_loader_is_refused_with_the_difference_named(
    difference: dict[str, Any],
    named: str,
    saved: Callable[..., dict[str, Any]],
    make_corpus: Callable[..., Corpus],
) -> None:
    with pytest.raises(ValueError, match=named):
        loader_of(make_corpus, **difference).load_state_dict(saved())


def test_the_state_of_another_rank_is_refused(
    saved: Callable[..., dict[str, Any]], make_corpus: Callable[..., Corpus]
) -> None:
    with pytest.raises(ValueError, match="rank: this is the state of rank 0 of 2 alone, now it is rank 1"):
        loader_of(make_corpus, rank=1, world_size=2).load_state_dict(saved(rank=0, world_size=2))


def test_other_shards_of_the_same_number_are_refused(
    saved: Callable[..., dict[str, Any]], make_corpus: Callable[..., Corpus]
) -> None:
    reordered = make_corpus("jsonl").paths[::-1]
    recipe = al.from_urls(reordered).select_columns("key", "number")
    with pytest.raises(
        ValueError, match=r"other shards: (\d+) saved, \1 now, with other names or in another order"
    ):
        loader_of(make_corpus, recipe=recipe).load_state_dict(saved())


def test_a_state_of_relative_paths_moves_with_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loader(urls: str) -> al.DataLoader[Any]:
        return al.DataLoader(al.from_urls(urls), 2, lanes=2, collate_fn=list)

    for job in ("before", "after"):
        (tmp_path / job / "data").mkdir(parents=True)
        for shard in range(2):
            (tmp_path / job / "data" / f"{shard}.txt").write_text("a\nb\nc\n")
    monkeypatch.chdir(tmp_path / "before")
    saved = loader("data/{0..1}.txt")
    next(iter(saved))
    state = saved.state_dict()
    saved.close()
    with pytest.raises(ValueError, match=r"another order; paths and URLs are compared as written"):
        loader(f"{tmp_path}/after/data/{{0..1}}.txt").load_state_dict(state)
    monkeypatch.chdir(tmp_path / "after")
    moved = loader("data/{0..1}.txt")
    moved.load_state_dict(state)
    assert sum(map(len, moved)) == 4


SPELLINGS = ["data/{0..3}.jsonl", "{here}/data/{0..3}.jsonl", "./data/*.jsonl", "file://{here}/data/", "list"]


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("now", SPELLINGS)
@pytest.mark.parametrize("then", SPELLINGS)
def test_a_state_goes_on_with_the_same_files_however_their_paths_are_written(
    then: str, now: str, mixed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    for shard in range(4):
        lines = "".join(f'{{"n": {10 * shard + index}}}\n' for index in range(5))
        (tmp_path / "data" / f"{shard}.jsonl").write_text(lines)
    monkeypatch.chdir(tmp_path)

    def loader(spelling: str) -> al.DataLoader[Any]:
        urls: Any = spelling.replace("{here}", str(tmp_path))
        if spelling == "list":
            urls = [f"data/../data/{shard}.jsonl" for shard in range(4)]
        recipe = al.from_urls(urls).shuffle(4).map(lambda sample: (sample["n"], al.sample_rng().random()))
        if mixed:
            recipe = al.mix([recipe, al.from_urls(urls).map(lambda sample: (sample["n"], 0))], seed=1)
        return al.DataLoader(recipe, 2, lanes=2, collate_fn=list)

    saving = loader(then)
    batches = iter(saving)
    next(batches)
    state = json.loads(json.dumps(saving.state_dict()))
    rest = list(batches)
    merged = al.merge_states([state])
    for each in (state, merged):
        going_on = loader(now)
        going_on.load_state_dict(each)
        assert list(going_on) == rest


def test_ranks_that_run_in_folders_of_their_own_merge_their_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = []
    for rank in range(2):
        (tmp_path / str(rank) / "data").mkdir(parents=True)
        for shard in range(2):
            (tmp_path / str(rank) / "data" / f"{shard}.txt").write_text("a\nb\n")
        monkeypatch.chdir(tmp_path / str(rank))
        loader = al.DataLoader(al.from_urls("data/{0..1}.txt"), 1, rank=rank, world_size=2, uneven="ignore")
        states.append(loader.state_dict())
    merged = al.merge_states(states)
    al.DataLoader(al.from_urls("data/{0..1}.txt"), 1, lanes=2).load_state_dict(merged)


def test_every_difference_is_named_at_once(
    saved: Callable[..., dict[str, Any]], make_corpus: Callable[..., Corpus]
) -> None:
    with pytest.raises(ValueError) as caught:
        loader_of(make_corpus, seed=1, batch_size=5, lanes=4).load_state_dict(saved())
    assert all(f"{name}: saved" in str(caught.value) for name in ("ops", "batch_size", "lanes"))


def test_a_refused_state_leaves_the_loader_as_it_was(
    saved: Callable[..., dict[str, Any]], make_corpus: Callable[..., Corpus]
) -> None:
    corpus = make_corpus("jsonl")
    loader = al.DataLoader(recipe_of(corpus), 4)
    with pytest.raises(ValueError, match="ops"):
        loader.load_state_dict(saved(lanes=6))
    assert keys_of(loader) == [key for key in _in_order(corpus)]


def _in_order(corpus: Corpus) -> list[str]:
    return [f"{shard}-{index}" for shard, size in enumerate(corpus.sizes) for index in range(size)]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda state: state | {"version": 99}, "expected a state of version 4, but got version 99"),
        (lambda state: {"loader": 1}, "no 'version'"),
        (lambda state: "state", "but got str"),
        (lambda state: {k: v for k, v in state.items() if k != "ranks"}, r"lacks \['ranks'\]"),
        (lambda state: state | {"ranks": {"0": [0, [], [[7, 1, 0]]]}}, "do not fit"),
        (lambda state: state | {"dataset": "{}"}, "do not fit"),
        (lambda state: {"version": 1, "kind": "torch", "batches": 3}, "expected the state of a stream"),
    ],
)
def test_what_is_no_state_of_this_release_is_refused(
    change: Callable[[dict[str, Any]], Any],
    named: str,
    saved: Callable[..., dict[str, Any]],
    make_corpus: Callable[..., Corpus],
) -> None:
    with pytest.raises(ValueError, match=named):
        loader_of(make_corpus).load_state_dict(change(saved()))


@pytest.mark.parametrize("workers", [0, 2])
def test_after_an_error_the_state_goes_on_with_the_batch_that_was_not_complete(
    workers: int, make_corpus: Callable[..., Corpus], tmp_path: Path
) -> None:
    corpus = make_corpus("jsonl")
    broken, bad = tmp_path / "broken", corpus.keys[len(corpus.keys) // 2]
    broken.touch()

    def refuse(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["key"] == bad and broken.exists():
            raise LookupError("refused")
        return sample

    recipe = recipe_of(corpus).map(refuse)
    loader = al.DataLoader(recipe, 4, num_workers=workers, lanes=2, collate_fn=list)
    keys: list[str] = []
    with pytest.raises(LookupError):
        for batch in loader:
            keys += [sample["key"] for sample in batch]
    assert keys and bad not in keys
    broken.unlink()
    loader.load_state_dict(loader.state_dict())
    keys += [sample["key"] for batch in loader for sample in batch]
    assert sorted(keys) == corpus.keys
